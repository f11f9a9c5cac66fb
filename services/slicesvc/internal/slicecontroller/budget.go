package slicecontroller

import (
	"sync"
	"time"
)

const (
	// compactionRate is how many writes a second compaction may make on this replica,
	// over all Services: a tenth of what a client may send unless told otherwise, so
	// that a cluster which has become quiet is not rewritten at once.
	compactionRate = 20
	// compactionBurst is how many of them may be made at once.
	compactionBurst = 2 * compactionBudget
	// leastBudget is how many writes any compaction gets on with.
	leastBudget = 6
	// leastCompaction is how many it makes at least: one slice takes what another had.
	leastCompaction = 2
)

// budget is how many writes compaction may make. Services that are turned away
// are told when to come again, one after the other.
type budget struct {
	mu sync.Mutex // guards all below; taken while holding a holding's, and nothing after it
	// left is how many there were at the time last.
	left float64
	last time.Time
	// turned counts those turned away for whom nobody was served since.
	turned int
}

func newBudget() *budget { return &budget{left: compactionBurst} }

// take gives a Service up to so many writes, of which it must give back what it
// does not make; none when it must wait.
func (b *budget) take(now time.Time, want int) (granted int, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if passed := now.Sub(b.last); passed > 0 {
		b.left = min(b.left+passed.Seconds()*compactionRate, compactionBurst)
		b.last = now
	}
	if b.left >= leastBudget {
		granted = min(want, int(b.left))
		b.left -= float64(granted)
		b.turned = max(b.turned-1, 0)
		return granted, 0
	}
	missing := leastBudget - b.left + float64(b.turned*leastCompaction)
	b.turned++
	return 0, time.Duration(missing/compactionRate*float64(time.Second)) + time.Millisecond
}

// giveBack returns writes that were not made.
func (b *budget) giveBack(unused int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = min(b.left+float64(max(unused, 0)), compactionBurst)
}
