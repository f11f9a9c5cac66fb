package writeback

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/slab"
)

// Granularity is the width of a bucket of the wheel, and thereby how late a slot may be found due.
const Granularity = 100 * time.Millisecond

const (
	// buckets spans 102 s. What is due later waits in the last bucket and is filed again when that comes up.
	buckets = 1024
	nobody  = ^uint32(0)
)

// wheel files slots by when they are due: a doubly linked list per bucket, through the slots themselves.
type wheel struct {
	heads [buckets]uint32
	// cursor counts buckets from the origin of time; all before it are empty.
	cursor int64
}

func newWheel() wheel {
	w := wheel{}
	for i := range w.heads {
		w.heads[i] = nobody
	}
	return w
}

func (w *wheel) file(slots *slab.Slab[slot], i uint32) {
	s := slots.At(i)
	number := (int64(s.due) + int64(Granularity) - 1) / int64(Granularity)
	number = min(max(number, w.cursor), w.cursor+buckets-1)
	s.bucket = uint16(number % buckets)
	s.place, s.next, s.previous = waiting, w.heads[s.bucket], nobody
	if s.next != nobody {
		slots.At(s.next).previous = i
	}
	w.heads[s.bucket] = i
}

func (w *wheel) remove(slots *slab.Slab[slot], i uint32) {
	s := slots.At(i)
	if s.previous == nobody {
		w.heads[s.bucket] = s.next
	} else {
		slots.At(s.previous).next = s.next
	}
	if s.next != nobody {
		slots.At(s.next).previous = s.previous
	}
	s.place = nowhere
}

// turn takes out everything up to now and shows it to visit, one by one.
func (w *wheel) turn(slots *slab.Slab[slot], now monotonic.Instant, visit func(i uint32)) {
	last := int64(now) / int64(Granularity)
	// After a jump of more than one turn every bucket has come up, and once is enough.
	w.cursor = max(w.cursor, last-buckets+1)
	for w.cursor <= last {
		bucket := w.cursor % buckets
		// The list is cut off and the cursor moved first: what is filed again while it is walked lies ahead.
		i := w.heads[bucket]
		w.heads[bucket] = nobody
		w.cursor++
		for i != nobody {
			next := slots.At(i).next
			slots.At(i).place = nowhere
			visit(i)
			i = next
		}
	}
}
