package eviction

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

const (
	// catchUp is how late a plan may come without losing evictions of the rate.
	catchUp = 100 * time.Millisecond
	// minRate is one Pod per hour. Smaller rates are raised to it.
	minRate = 1.0 / 3600
)

// Rules are the settings of the decisions.
type Rules struct {
	// Rate is how many Pods leave per second; 0 means no limit, as in upstream.
	Rate float64
}

// State is what a plan is made from.
type State struct {
	// Nodes are by name. Nodes without pending Pods may be missing.
	Nodes map[string]NodeEvictions
	// Unreliable says that the taints that come from node health must not evict now.
	Unreliable bool
	// Paused Pods are not evicted before the given time, for example while an eviction is running.
	Paused    map[types.UID]monotonic.Instant
	RateLimit RateLimit
}

// Plan is which Pods leave now.
type Plan struct {
	// Evictions are in the order in which they became due.
	Evictions []Eviction
	// RateLimit is for the next plan.
	RateLimit RateLimit
	// Waiting is how many pending Pods are not due, Due how many are. Held is how many due Pods
	// stay, because node health is unreliable.
	Waiting, Due, Held int
	// HeldOn are the Nodes of the held Pods, ordered.
	HeldOn []string
}

// Eviction is a Pod that must leave now.
type Eviction struct {
	Node string
	// NodeEvictions is the state of the Node that the eviction was decided from.
	NodeEvictions NodeEvictions
	Pod           *corev1.Pod
	Cause
}

// Plan chooses the Pods that leave now, at most limit. The next plan has the remaining ones.
func (r Rules) Plan(now monotonic.Instant, state State, limit int) Plan {
	plan := Plan{RateLimit: state.RateLimit}
	queue := dueQueue{limit: limit}
	for _, node := range slices.Sorted(maps.Keys(state.Nodes)) {
		plan.count(now, node, state)
		queue.offer(now, node, state)
	}
	for _, d := range queue.first() {
		if !plan.RateLimit.take(now, r.Rate) {
			break
		}
		plan.Evictions = append(plan.Evictions, Eviction{Node: d.node, NodeEvictions: state.Nodes[d.node], Pod: d.pending.Pod, Cause: *d.cause})
	}
	return plan
}

func (p *Plan) count(now monotonic.Instant, node string, state State) {
	pending := state.Nodes[node].Pending
	due := pending[:countDue(pending, now)]
	p.Waiting += len(pending) - len(due)
	p.Due += len(due)
	if !state.Unreliable {
		return
	}
	held := 0
	for i := range due {
		if cause := due[i].CauseNow(true); cause == nil || cause.Due > now {
			held++
		}
	}
	if held > 0 {
		p.Held += held
		p.HeldOn = append(p.HeldOn, node)
	}
}

func countDue(pending []PendingPod, now monotonic.Instant) int {
	due, _ := slices.BinarySearchFunc(pending, now, func(p PendingPod, now monotonic.Instant) int {
		if p.Due <= now {
			return -1
		}
		return 1
	})
	return due
}

// Holds returns whether an eviction is still right for the Node as it was just read from
// kube-apiserver.
func (e *Eviction) Holds(now monotonic.Instant, wall time.Time, live *corev1.Node) bool {
	if live.UID != e.NodeEvictions.UID {
		return false
	}
	for _, pending := range e.NodeEvictions.Observe(now, wall, live, []*corev1.Pod{e.Pod}).Pending {
		cause := pending.CauseNow(!FromNodeHealth(&e.Taint))
		return cause != nil && cause.Due <= now
	}
	return false
}

// dueQueue chooses the Pods that were due first, up to a limit. When all Pods of a large cluster
// are due, it looks at few of them.
type dueQueue struct {
	limit int
	due   []duePod
	// sorted says that due is sorted and has at most limit Pods.
	sorted bool
}

type duePod struct {
	node    string
	pending *PendingPod
	cause   *Cause
}

// offer adds the due Pods of a Node. Nodes are offered in order of name, which decides between Pods
// that were due at the same time.
func (q *dueQueue) offer(now monotonic.Instant, node string, state State) {
	if q.limit <= 0 {
		return
	}
	pending := state.Nodes[node].Pending
	for i := range pending {
		p := &pending[i]
		if p.Due > now || q.full() && p.Due >= q.last() {
			return // pending Pods are ordered by Due
		}
		cause := p.CauseNow(state.Unreliable)
		if cause == nil || cause.Due > now || state.Paused[p.Pod.UID] > now || q.full() && cause.Due >= q.last() {
			continue
		}
		q.due, q.sorted = append(q.due, duePod{node: node, pending: p, cause: cause}), false
		if len(q.due) > 2*q.limit {
			q.first()
		}
	}
}

// full returns whether only a Pod that was due before the last one can be chosen.
func (q *dueQueue) full() bool { return q.sorted && len(q.due) == q.limit }

func (q *dueQueue) last() monotonic.Instant { return q.due[q.limit-1].cause.Due }

// first returns the Pods chosen so far, in order.
func (q *dueQueue) first() []duePod {
	if !q.sorted {
		slices.SortStableFunc(q.due, func(a, b duePod) int { return cmp.Compare(a.cause.Due, b.cause.Due) })
		q.due, q.sorted = q.due[:min(q.limit, len(q.due))], true
	}
	return q.due
}

// RateLimit is when the next Pod may leave. The zero RateLimit allows one at once.
type RateLimit struct {
	next monotonic.Instant
	used bool
}

// take takes one eviction if the rate allows it. A late plan makes up for at most catchUp. In no
// time window do more Pods leave than its length plus catchUp, times the rate, plus one.
func (l *RateLimit) take(now monotonic.Instant, rate float64) bool {
	if rate <= 0 {
		return true
	}
	next := l.next
	if earliest := now.Add(-catchUp); !l.used {
		next = now
	} else if next < earliest {
		next = earliest
	}
	if next > now {
		return false
	}
	*l = RateLimit{next: next.Add(time.Duration(float64(time.Second) / max(rate, minRate))), used: true}
	return true
}
