package decisions

// bounds are the largest number of decisions of a ring, and of their bytes. A process keeps at most
// 9 MiB.
type bounds struct{ count, bytes int }

var limits = [ringCount]bounds{
	Cluster: {2048, 1 << 20},
	Objects: {8192, 4 << 20},
	Pods:    {4096, 2 << 20},
	Slices:  {4096, 2 << 20},
}

// rings are all rings of a process. They read no clock and need a lock.
type rings [ringCount]ring

// ring has the newest decisions, within its bounds.
type ring struct {
	bounds
	// slots grows to bounds.count. The decision with number n is in slot (n-1) % bounds.count.
	slots []Decision
	// first is the number of the oldest decision that is kept, next that of the next one.
	first, next uint64
	size        int
}

func newRings(limits [ringCount]bounds) rings {
	var all rings
	for i := range all {
		all[i] = ring{bounds: limits[i], first: 1, next: 1}
	}
	return all
}

func (r *ring) slot(number uint64) *Decision { return &r.slots[(number-1)%uint64(r.count)] }

// add keeps a decision and drops the oldest ones that do not fit any more.
func (r *ring) add(d Decision) {
	d.Number = r.next
	if int(r.next-r.first) == r.count {
		r.drop()
	}
	if len(r.slots) < r.count {
		r.slots = append(r.slots, d)
	} else {
		*r.slot(r.next) = d
	}
	r.next++
	r.size += d.size()
	for r.size > r.bytes && r.next-r.first > 1 {
		r.drop()
	}
}

func (r *ring) drop() {
	oldest := r.slot(r.first)
	r.size -= oldest.size()
	*oldest = Decision{} // its texts must not live on
	r.first++
}

// Cursor is a position in all rings. The zero value is before the first decision.
type Cursor [ringCount]uint64

// after returns the decisions that are kept after a position, ring by ring, how many are not kept
// any more, and the position after them.
func (all *rings) after(at Cursor) (kept []Decision, lost uint64, end Cursor) {
	for i := range all {
		r := &all[i]
		from := max(at[i]+1, r.first)
		if from > at[i]+1 {
			lost += from - at[i] - 1
		}
		for number := from; number < r.next; number++ {
			kept = append(kept, *r.slot(number))
		}
		end[i] = max(at[i], r.next-1)
	}
	return kept, lost, end
}

// dropped returns the position up to which nothing is kept.
func (all *rings) dropped() (end Cursor) {
	for i := range all {
		end[i] = all[i].first - 1
	}
	return end
}
