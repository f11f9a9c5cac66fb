package eviction

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// NodeEvictions is what is known of one Node: its NoExecute taints, and the Pods that must leave
// for them. The zero NodeEvictions has no observation. It is immutable.
type NodeEvictions struct {
	UID types.UID
	// Taints are the NoExecute taints in the Node's order.
	Taints []CountedTaint
	// Pending are ordered by Due.
	Pending []PendingPod

	// arrivals are when Pods came to the Node. It is empty without taints.
	arrivals map[types.UID]monotonic.Instant
	// replaced are the causes of pending Pods when one taint of node health replaced the other.
	replaced map[types.UID]Cause
}

// CountedTaint is a taint with the time from which it counts.
type CountedTaint struct {
	Taint corev1.Taint
	Since monotonic.Instant
}

// Cause is the taint for which a Pod must leave. Since is when its toleration begins to count, Due
// when the toleration is over.
type Cause struct {
	Taint      corev1.Taint
	Since, Due monotonic.Instant
}

// PendingPod is a Pod that must leave.
type PendingPod struct {
	// Pod is as last observed. It is shared, so it must not be written to.
	Pod *corev1.Pod
	// Cause is the one that is due first.
	Cause
	// OtherCause is the first that does not come from node health; nil without one. It counts while
	// node health is unreliable.
	OtherCause *Cause
	// healthCause is the first that comes from node health; nil without one.
	healthCause *Cause
}

// Observe returns the state after an observation of the Node with all Pods on it. wall is the
// wall-clock time of now. Repeating an observation changes nothing, except that a new Pod arrives.
func (n NodeEvictions) Observe(now monotonic.Instant, wall time.Time, node *corev1.Node, pods []*corev1.Pod) NodeEvictions {
	if n.UID != node.UID {
		n = NodeEvictions{}
	}
	o := observation{before: n, first: n.UID == "", now: now, wall: wall}
	after := NodeEvictions{UID: node.UID, Taints: o.taints(node)}
	if len(after.Taints) == 0 {
		return after
	}
	o.swapped = o.swaps(after.Taints)
	after.arrivals, after.replaced = make(map[types.UID]monotonic.Instant, len(pods)), map[types.UID]Cause{}
	for _, pod := range pods {
		after.arrivals[pod.UID] = o.arrival(pod)
		pending, must := pendingPod(pod, after.arrivals[pod.UID], after.Taints)
		if cause, found := o.replacedCause(pod.UID); found && pending.healthCause != nil {
			after.replaced[pod.UID] = cause
			pending = pending.noLater(cause)
		}
		if must {
			after.Pending = append(after.Pending, pending)
		}
	}
	slices.SortFunc(after.Pending, comparePending)
	return after
}

// Cancelled returns the pending Pods of n that are still on the Node and not pending in after.
func (n NodeEvictions) Cancelled(after NodeEvictions, pods []*corev1.Pod) []PendingPod {
	if len(n.Pending) == 0 {
		return nil
	}
	present := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		present[pod.UID] = pod.DeletionTimestamp == nil
	}
	for _, pending := range after.Pending {
		delete(present, pending.Pod.UID)
	}
	var cancelled []PendingPod
	for _, pending := range n.Pending {
		if present[pending.Pod.UID] {
			cancelled = append(cancelled, pending)
		}
	}
	return cancelled
}

// observation is one call of Observe.
type observation struct {
	before NodeEvictions
	// first says that there was no observation of the Node before.
	first bool
	// swapped says that one taint of node health replaced the other.
	swapped bool
	now     monotonic.Instant
	wall    time.Time
}

func (o observation) taints(node *corev1.Node) []CountedTaint {
	var taints []CountedTaint
	for i := range node.Spec.Taints {
		if taint := &node.Spec.Taints[i]; taint.Effect == corev1.TaintEffectNoExecute {
			taints = append(taints, CountedTaint{Taint: *taint, Since: o.since(node, taint)})
		}
	}
	return taints
}

func (o observation) since(node *corev1.Node, taint *corev1.Taint) monotonic.Instant {
	if o.first {
		return o.instant(addedAt(node, taint))
	}
	since := o.now
	for _, before := range o.before.Taints {
		if before.Taint.MatchTaint(taint) && before.Taint.Value == taint.Value && !addedAgain(&before.Taint, taint) {
			since = before.Since
		}
	}
	return since
}

// swaps returns whether one taint of node health is new while the other was there before.
func (o observation) swaps(taints []CountedTaint) bool {
	known := func(key string) bool {
		return slices.ContainsFunc(o.before.Taints, func(t CountedTaint) bool { return t.Taint.Key == key })
	}
	return slices.ContainsFunc(taints, func(t CountedTaint) bool {
		switch t.Taint.Key {
		case corev1.TaintNodeNotReady:
			return !known(corev1.TaintNodeNotReady) && known(corev1.TaintNodeUnreachable)
		case corev1.TaintNodeUnreachable:
			return !known(corev1.TaintNodeUnreachable) && known(corev1.TaintNodeNotReady)
		}
		return false
	})
}

// replacedCause returns why a Pod was pending before one taint of node health replaced the other.
func (o observation) replacedCause(pod types.UID) (cause Cause, found bool) {
	if !o.swapped {
		cause, found = o.before.replaced[pod]
		return cause, found
	}
	for i := range o.before.Pending {
		if p := &o.before.Pending[i]; p.Pod.UID == pod && p.healthCause != nil {
			return *p.healthCause, true
		}
	}
	return Cause{}, false
}

// arrival returns when a Pod came to the Node.
func (o observation) arrival(pod *corev1.Pod) monotonic.Instant {
	if arrival, known := o.before.arrivals[pod.UID]; known {
		return arrival
	}
	if !o.first {
		return o.now
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return o.instant(c.LastTransitionTime.Time)
		}
	}
	return o.now
}

// instant converts a time of another clock. It returns now for the zero time and for times in the
// future.
func (o observation) instant(at time.Time) monotonic.Instant {
	if at.IsZero() {
		return o.now
	}
	return o.now.Add(-max(o.wall.Sub(at)-ClockTolerance, 0))
}

// pendingPod returns why a Pod must leave, and whether it must.
func pendingPod(pod *corev1.Pod, arrival monotonic.Instant, taints []CountedTaint) (pending PendingPod, must bool) {
	if pod.DeletionTimestamp != nil {
		return PendingPod{}, false
	}
	pending.Pod = pod
	for i := range taints {
		tolerated := toleratedFor(pod.Spec.Tolerations, &taints[i].Taint)
		if tolerated == forever {
			continue
		}
		cause := Cause{Taint: taints[i].Taint, Since: max(taints[i].Since, arrival)}
		cause.Due = cause.Since.Add(tolerated)
		if !must || cause.Due < pending.Due {
			pending.Cause = cause
		}
		if FromNodeHealth(&cause.Taint) {
			pending.healthCause = earlier(pending.healthCause, cause)
		} else {
			pending.OtherCause = earlier(pending.OtherCause, cause)
		}
		must = true
	}
	return pending, must
}

func earlier(known *Cause, cause Cause) *Cause {
	if known != nil && known.Due <= cause.Due {
		return known
	}
	return &cause
}

// noLater returns the Pod with a healthCause that is due no later than the replaced one.
func (p PendingPod) noLater(replaced Cause) PendingPod {
	if replaced.Due >= p.healthCause.Due {
		return p
	}
	replaced.Taint = p.healthCause.Taint
	p.healthCause = &replaced
	if replaced.Due < p.Due {
		p.Cause = replaced
	}
	return p
}

// CauseNow returns why the Pod must leave, or nil if its only causes come from node health, which
// is unreliable.
func (p *PendingPod) CauseNow(unreliable bool) *Cause {
	if unreliable && FromNodeHealth(&p.Taint) {
		return p.OtherCause
	}
	return &p.Cause
}

func comparePending(a, b PendingPod) int {
	return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
}
