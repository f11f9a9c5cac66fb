package admission

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Verdict is what is thought of a message.
type Verdict uint8

const (
	// Fine: the sender keeps to his rate, or has only just begun not to.
	Fine Verdict = iota
	// Slow: he should send less.
	Slow
	// TooMuch: he was told, and did not.
	TooMuch
)

const (
	// slack is how far ahead of his rate a sender may be, and limit how far before it is too much.
	slack = time.Second
	limit = 10 * time.Second
)

// Meter counts the messages of one sender, on however many streams.
type Meter struct {
	// ahead is until when the messages so far would last at the rate.
	ahead    atomic.Int64
	interval time.Duration
	senders  int // streams that use it; guarded by Meters
}

// Note counts a message. One that is TooMuch is not counted, so a sender who pauses is Fine again after ten seconds at most.
func (m *Meter) Note(now monotonic.Instant) Verdict {
	for {
		before := m.ahead.Load()
		ahead := monotonic.Instant(max(before, int64(now))).Add(m.interval)
		lead := ahead.Sub(now)
		if lead > limit {
			return TooMuch
		}
		if !m.ahead.CompareAndSwap(before, int64(ahead)) {
			continue
		}
		if lead > slack {
			return Slow
		}
		return Fine
	}
}

// Meters are those of all who have a stream open.
type Meters struct {
	interval time.Duration

	mu     sync.Mutex // guards meters and their senders
	meters map[string]*Meter
}

// NewMeters measures each sender against a rate of messages per second.
func NewMeters(rate int) *Meters {
	return &Meters{interval: time.Second / time.Duration(rate), meters: map[string]*Meter{}}
}

// Open returns the sender's meter. Each Open is followed by a Close in the end.
func (m *Meters) Open(sender string) *Meter {
	m.mu.Lock()
	defer m.mu.Unlock()
	meter := m.meters[sender]
	if meter == nil {
		meter = &Meter{interval: m.interval}
		m.meters[sender] = meter
	}
	meter.senders++
	return meter
}

// Close forgets the meter of a sender with his last stream, unless he has sent so much that he may not begin anew.
func (m *Meters) Close(sender string, now monotonic.Instant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if meter := m.meters[sender]; meter != nil {
		meter.senders--
	}
	// Those who are through are found when somebody goes, a few at a time, so that the meters of the past do not pile up.
	looked := 0
	for name, meter := range m.meters {
		if meter.senders == 0 && monotonic.Instant(meter.ahead.Load()) <= now {
			delete(m.meters, name)
		}
		if looked++; looked == 4 {
			return
		}
	}
}
