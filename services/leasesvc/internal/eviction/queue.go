package eviction

import (
	"cmp"
	"slices"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// queue chooses those who were due first among any number, for as many as there is room. When all of a large cluster is due, it
// looks at few of them.
type queue struct {
	room    int
	chosen  []choice
	ordered bool // and no more than room
}

// choice is a pod that may leave.
type choice struct {
	node  string
	wait  *PendingPod
	cause *Cause
}

// offer takes in the waits of a Node. Nodes are offered in their order, which decides between pods that were due at once.
func (q *queue) offer(now monotonic.Instant, node string, state State) {
	if q.room <= 0 {
		return
	}
	waits := state.Nodes[node].Pending
	_, doubted := state.Unreliable[node]
	for i := range waits {
		wait := &waits[i]
		if wait.Due > now || q.full() && wait.Due >= q.last() {
			return // and so are those behind it
		}
		cause := wait.cause(doubted)
		if cause == nil || cause.Due > now || state.Paused[wait.Pod.UID] > now || q.full() && cause.Due >= q.last() {
			continue
		}
		q.chosen, q.ordered = append(q.chosen, choice{node: node, wait: wait, cause: cause}), false
		if len(q.chosen) > 2*q.room {
			q.first()
		}
	}
}

// full tells that whoever is not due before the last one has no chance.
func (q *queue) full() bool { return q.ordered && len(q.chosen) == q.room }

// last is when the last one that is chosen was due.
func (q *queue) last() monotonic.Instant { return q.chosen[q.room-1].cause.Due }

// first returns those that are chosen by now, in their order.
func (q *queue) first() []choice {
	if !q.ordered {
		slices.SortStableFunc(q.chosen, func(a, b choice) int { return cmp.Compare(a.cause.Due, b.cause.Due) })
		q.chosen, q.ordered = q.chosen[:min(q.room, len(q.chosen))], true
	}
	return q.chosen
}
