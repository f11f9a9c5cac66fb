package slicecontroller

import (
	"slices"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

const (
	// compactionPause is the pause between two compaction steps of a Service. A slice that took
	// endpoints is written once more after it, and Cilium must not see this write in one batch with
	// the deletion before: it reads the events of half a second together.
	compactionPause = time.Second
	// takerPause is the pause until the slices of a Service are looked at again, because another
	// slice still has the endpoints that one of them took.
	takerPause = 5 * time.Second
	// compactionWrites is the maximum number of writes of one compaction step.
	compactionWrites = 12
	// compactionRate is how many writes compaction may make in a second, over all Services: a tenth
	// of a client's default limit, so that a cluster is not rewritten when it becomes quiet.
	compactionRate = 20
	// compactionBurst is how many of these writes may be made at once.
	compactionBurst = 2 * compactionWrites
	// minCompactionGrant is enough writes for any compaction to make progress.
	minCompactionGrant = 6
	// minCompactionWrites is the least that a compaction writes: two slices become one.
	minCompactionWrites = 2
	// compactionTurn is the least wait for the end of another compaction.
	compactionTurn = 50 * time.Millisecond
)

// untilCompaction returns how long until the Service may be compacted, -1 if it has nothing to
// compact. A Service is not compacted during a pause because of another writer.
func (r *serviceRecord) untilCompaction(now time.Time) time.Duration {
	if r.quietAt.IsZero() {
		return -1
	}
	return max(r.quietAt.Sub(now), r.contention.pausedFor(now), 0)
}

// scheduleCompaction sets when the Service may be compacted if nothing else happens. A compaction
// that fails is tried again with a growing pause. Slices that took endpoints are written once more
// in the same way, but do not wait until the Service is quiet.
func (r *serviceRecord) scheduleCompaction(input syncInput, result syncResult, now time.Time) {
	r.takers = result.takers
	compacted := slices.ContainsFunc(result.plan.Changes, func(change pack.Change) bool { return change.Reason == pack.Compacted })
	switch {
	case input.compacting && compacted && result.err != nil:
		r.compaction = r.compaction.next(&result, true, now)
	case result.complete() && (compacted || !result.compactable):
		r.compaction = failure{}
	}
	switch {
	case r.takers && input.compacting && result.plan.Empty():
		r.quietAt = now.Add(takerPause)
	case r.takers && (result.takes() || r.quietAt.IsZero() || input.compacting || input.repeating):
		r.quietAt = now.Add(compactionPause)
	case r.takers:
		// The slices wait as before.
	case !result.compactable, input.compacting && result.plan.Empty():
		r.quietAt = time.Time{}
	case input.compacting:
		r.quietAt = now.Add(compactionPause)
	case result.lastPlan.writes() == 0 && !r.quietAt.IsZero():
		// The Service is as quiet as before.
	default:
		r.quietAt = now.Add(max(result.quietPeriod, r.compaction.delay()))
	}
}

// compactionBudget limits compaction to one Service at a time, so that a slow kube-apiserver leaves
// the other workers to changes, and limits its writes. Unlike a token bucket it grants as many
// writes as are left, and spreads the Services that must wait.
type compactionBudget struct {
	mu sync.Mutex // guards all below
	// left is the number of writes that were left at the time updated.
	left    float64
	updated time.Time
	// running says that finish is still to be called.
	running bool
	// waiting is an estimate of how many Services wait.
	waiting int
}

func newCompactionBudget() *compactionBudget { return &compactionBudget{left: compactionBurst} }

// take grants up to wanted writes; then finish must follow. If none is granted the Service must
// wait.
func (b *compactionBudget) take(now time.Time, wanted int) (granted int, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if passed := now.Sub(b.updated); passed > 0 {
		b.left = min(b.left+passed.Seconds()*compactionRate, compactionBurst)
		b.updated = now
	}
	if b.left >= minCompactionGrant && !b.running {
		b.running = true
		granted = min(wanted, int(b.left))
		b.left -= float64(granted)
		b.waiting = max(b.waiting-1, 0)
		return granted, 0
	}
	missing := max(minCompactionGrant-b.left, 0) + float64(b.waiting*minCompactionWrites)
	b.waiting++
	wait = time.Duration(missing/compactionRate*float64(time.Second)) + time.Millisecond
	if b.running {
		wait = max(wait, compactionTurn)
	}
	return 0, wait
}

// finish ends a compaction that made all but the unused writes.
func (b *compactionBudget) finish(unused int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running = false
	b.left = min(b.left+float64(max(unused, 0)), compactionBurst)
}
