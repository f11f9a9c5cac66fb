package eviction

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

const (
	// catchUp is how late a plan may come without a turn being lost.
	catchUp = 100 * time.Millisecond
	// slowest is one pod an hour: a smaller rate is taken for that.
	slowest = 1.0 / 3600
)

// Rules is how fast pods leave.
type Rules struct {
	// Rate is how many pods leave per second; 0 stands for no limit, as upstream has none.
	Rate float64
}

// Pace is when the next pod may leave. The zero Pace lets one leave at once.
type RateLimit struct {
	next monotonic.Instant
	used bool
}

// State is all that a plan is made from.
type State struct {
	// Wards are by the names of their Nodes; those without waits may be missing.
	Nodes map[string]NodeEvictions
	// Doubted are Nodes whose taints from node health are in doubt, with the reason.
	Unreliable map[string]string
	// Paused pods are not to be evicted before the given time, for example while an eviction is under way.
	Paused    map[types.UID]monotonic.Instant
	RateLimit RateLimit
}

// Eviction is a pod that has to leave now.
type Eviction struct {
	Node string
	// Ward is the state of the Node that was decided from.
	NodeEvictions NodeEvictions
	Pod           *corev1.Pod
	Cause
}

// Plan is who has to leave now.
type Plan struct {
	// Evictions are in the order in which they fell due.
	Evictions []Eviction
	// Pace is for the next plan.
	RateLimit RateLimit
	// Waiting is how many pods are not due, Due how many are, and Held how many of these stay because node health is in doubt.
	Waiting, Due, Held int
	// HeldOn are the Nodes of the held, ordered.
	HeldOn []string
}

// Plan decides who leaves now; at most budget pods. The others come up again in the next plan.
func (r Rules) Plan(now monotonic.Instant, state State, budget int) Plan {
	plan := Plan{RateLimit: state.RateLimit}
	chosen := queue{room: budget}
	for _, node := range slices.Sorted(maps.Keys(state.Nodes)) {
		plan.count(now, node, state)
		chosen.offer(now, node, state)
	}
	for _, c := range chosen.first() {
		if !r.turn(now, &plan.RateLimit) {
			break
		}
		plan.Evictions = append(plan.Evictions, Eviction{Node: c.node, NodeEvictions: state.Nodes[c.node], Pod: c.wait.Pod, Cause: *c.cause})
	}
	return plan
}

// count counts the waits of one Node.
func (p *Plan) count(now monotonic.Instant, node string, state State) {
	waits := state.Nodes[node].Pending
	due := waits[:dueBy(waits, now)]
	p.Waiting += len(waits) - len(due)
	p.Due += len(due)
	if _, doubted := state.Unreliable[node]; !doubted {
		return
	}
	held := 0
	for i := range due {
		if cause := due[i].cause(true); cause == nil || cause.Due > now {
			held++
		}
	}
	if held > 0 {
		p.Held += held
		p.HeldOn = append(p.HeldOn, node)
	}
}

// dueBy is how many of the waits are due.
func dueBy(waits []PendingPod, now monotonic.Instant) int {
	due, _ := slices.BinarySearchFunc(waits, now, func(w PendingPod, now monotonic.Instant) int {
		if w.Due <= now {
			return -1
		}
		return 1
	})
	return due
}

// cause is what a pod has to leave for, or nil.
func (w *PendingPod) cause(doubted bool) *Cause {
	if doubted && FromNodeHealth(&w.Taint) {
		return w.OtherCause
	}
	return &w.Cause
}

// turn takes a turn if it has come. A plan that comes late makes up for catchUp at most, so in no window do more pods leave than
// its length and catchUp, times the rate, and one.
func (r Rules) turn(now monotonic.Instant, pace *RateLimit) bool {
	if r.Rate <= 0 {
		return true
	}
	next := pace.next
	if earliest := now.Add(-catchUp); !pace.used {
		next = now
	} else if next < earliest {
		next = earliest
	}
	if next > now {
		return false
	}
	*pace = RateLimit{next: next.Add(time.Duration(float64(time.Second) / max(r.Rate, slowest))), used: true}
	return true
}

// Holds tells whether an eviction still stands when its Node is looked at again, past any cache.
func (e *Eviction) Holds(now monotonic.Instant, wall time.Time, live *corev1.Node) bool {
	if live.UID != e.NodeEvictions.UID {
		return false
	}
	for _, wait := range e.NodeEvictions.Observe(now, wall, live, []*corev1.Pod{e.Pod}).Pending {
		cause := wait.cause(!FromNodeHealth(&e.Taint))
		return cause != nil && cause.Due <= now
	}
	return false
}
