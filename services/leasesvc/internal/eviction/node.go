package eviction

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// ClockTolerance is what is added to a time that another clock wrote: so much clocks may disagree, the second to which such
// times are cut included.
const ClockTolerance = 10 * time.Second

// Ward is what is known of one Node: its NoExecute taints, and the pods that have to leave it for them. The zero Ward has seen
// nothing. Its fields are not written to once it is made.
type NodeEvictions struct {
	UID types.UID
	// Taints are in the Node's order.
	Taints []CountedTaint
	// Waits are ordered by Due.
	Pending []PendingPod

	// arrivals are since when pods are on the Node, as long as it has taints.
	arrivals map[types.UID]monotonic.Instant
	// carried are what pods were waiting for when one taint of node health took the place of another.
	carried map[types.UID]Cause
}

// Standing is a taint and since when it counts.
type CountedTaint struct {
	Taint corev1.Taint
	Since monotonic.Instant
}

// Cause is the taint for which a pod has to leave. Since is from when its toleration counts, Due when that is over.
type Cause struct {
	Taint      corev1.Taint
	Since, Due monotonic.Instant
}

// Wait is a pod that has to leave.
type PendingPod struct {
	// Pod is as last seen, and shared: nobody writes to it.
	Pod *corev1.Pod
	// Cause is the one that is due first.
	Cause
	// Sure is the first that does not come from node health, which is what counts while that is in doubt; nil without one.
	OtherCause *Cause
	// health is the first that does.
	health *Cause
}

// FromHealth tells whether node health puts the taint on Nodes, be it Trivet's or upstream's.
func FromNodeHealth(taint *corev1.Taint) bool {
	return taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable
}

// See returns the Ward after its Node was seen with all the pods on it, where wall is now by the wall clock. Seeing the same again
// changes nothing but for pods that came.
func (w NodeEvictions) Observe(now monotonic.Instant, wall time.Time, node *corev1.Node, pods []*corev1.Pod) NodeEvictions {
	if w.UID != node.UID {
		w = NodeEvictions{}
	}
	s := sight{NodeEvictions: w, first: w.UID == "", now: now, wall: wall}
	after := NodeEvictions{UID: node.UID, Taints: s.standings(node)}
	if len(after.Taints) == 0 {
		return after
	}
	s.swapped = s.swaps(after.Taints)
	after.arrivals, after.carried = make(map[types.UID]monotonic.Instant, len(pods)), map[types.UID]Cause{}
	for _, pod := range pods {
		after.arrivals[pod.UID] = s.arrival(pod)
		wait, must := waitOf(pod, after.arrivals[pod.UID], after.Taints)
		if carried, waited := s.carry(pod.UID); waited && wait.health != nil {
			after.carried[pod.UID] = carried
			wait = wait.noLater(carried)
		}
		if must {
			after.Pending = append(after.Pending, wait)
		}
	}
	slices.SortFunc(after.Pending, compareWaits)
	return after
}

// sight is one look at a Node.
type sight struct {
	NodeEvictions // as it was before
	// first tells that there was none before.
	first bool
	// swapped tells that one taint of node health took the place of another.
	swapped bool
	now     monotonic.Instant
	wall    time.Time
}

func (s sight) standings(node *corev1.Node) []CountedTaint {
	var standings []CountedTaint
	for i := range node.Spec.Taints {
		if taint := &node.Spec.Taints[i]; taint.Effect == corev1.TaintEffectNoExecute {
			standings = append(standings, s.standing(node, taint))
		}
	}
	return standings
}

func (s sight) standing(node *corev1.Node, taint *corev1.Taint) CountedTaint {
	if s.first {
		return CountedTaint{Taint: *taint, Since: s.witnessed(writtenAt(node, taint))}
	}
	since := s.now
	for _, before := range s.Taints {
		if before.Taint.MatchTaint(taint) && before.Taint.Value == taint.Value && !cameBack(&before.Taint, taint) {
			since = before.Since
		}
	}
	return CountedTaint{Taint: *taint, Since: since}
}

// swaps tells whether a taint of node health is there that was not, while another one was.
func (s sight) swaps(taints []CountedTaint) bool {
	known := func(key string) bool {
		return slices.ContainsFunc(s.Taints, func(before CountedTaint) bool { return before.Taint.Key == key })
	}
	return slices.ContainsFunc(taints, func(standing CountedTaint) bool {
		switch standing.Taint.Key {
		case corev1.TaintNodeNotReady:
			return !known(corev1.TaintNodeNotReady) && known(corev1.TaintNodeUnreachable)
		case corev1.TaintNodeUnreachable:
			return !known(corev1.TaintNodeUnreachable) && known(corev1.TaintNodeNotReady)
		}
		return false
	})
}

// carry is what a pod was waiting for under a taint of node health that another one has taken the place of.
func (s sight) carry(pod types.UID) (cause Cause, waited bool) {
	if !s.swapped {
		cause, waited = s.carried[pod]
		return cause, waited
	}
	for i := range s.Pending {
		if wait := &s.Pending[i]; wait.Pod.UID == pod && wait.health != nil {
			return *wait.health, true
		}
	}
	return Cause{}, false
}

// noLater is the wait of a pod that was waiting already.
func (w PendingPod) noLater(carried Cause) PendingPod {
	if carried.Due >= w.health.Due {
		return w
	}
	carried.Taint = w.health.Taint
	w.health = &carried
	if carried.Due < w.Due {
		w.Cause = carried
	}
	return w
}

// arrival is since when a pod is on the Node.
func (s sight) arrival(pod *corev1.Pod) monotonic.Instant {
	if arrival, known := s.arrivals[pod.UID]; known {
		return arrival
	}
	if !s.first {
		return s.now
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return s.witnessed(c.LastTransitionTime.Time)
		}
	}
	return s.now
}

// witnessed is when something happened that another clock put at a time; now when nothing is said of it, or the future.
func (s sight) witnessed(at time.Time) monotonic.Instant {
	if at.IsZero() {
		return s.now
	}
	return s.now.Add(-max(s.wall.Sub(at)-ClockTolerance, 0))
}

// writtenAt is when a taint was added, or not after that, as the Node tells; zero when it does not.
func writtenAt(node *corev1.Node, taint *corev1.Taint) time.Time {
	if taint.TimeAdded != nil {
		return taint.TimeAdded.Time
	}
	return LastTaintWrite(node)
}

// cameBack tells that a taint of the same name was added later than the one known before.
func cameBack(before, taint *corev1.Taint) bool {
	return taint.TimeAdded != nil && before.TimeAdded != nil && before.TimeAdded.Before(taint.TimeAdded)
}

// waitOf tells for what a pod has to leave, if it must.
func waitOf(pod *corev1.Pod, arrival monotonic.Instant, taints []CountedTaint) (wait PendingPod, must bool) {
	if pod.DeletionTimestamp != nil {
		return PendingPod{}, false
	}
	wait.Pod = pod
	for i := range taints {
		patience := patienceOf(pod.Spec.Tolerations, &taints[i].Taint)
		if patience == forever {
			continue
		}
		cause := Cause{Taint: taints[i].Taint, Since: max(taints[i].Since, arrival)}
		cause.Due = cause.Since.Add(patience)
		if !must || cause.Due < wait.Due {
			wait.Cause = cause
		}
		if FromNodeHealth(&cause.Taint) {
			wait.health = earlier(wait.health, cause)
		} else {
			wait.OtherCause = earlier(wait.OtherCause, cause)
		}
		must = true
	}
	return wait, must
}

func earlier(known *Cause, cause Cause) *Cause {
	if known != nil && known.Due <= cause.Due {
		return known
	}
	return &cause
}

func compareWaits(a, b PendingPod) int {
	return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
}

// Spared returns the waits of pods that are still on the Node and need not leave any more, after compared with w.
func (w NodeEvictions) Cancelled(after NodeEvictions, pods []*corev1.Pod) []PendingPod {
	if len(w.Pending) == 0 {
		return nil
	}
	present := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		present[pod.UID] = pod.DeletionTimestamp == nil
	}
	for _, wait := range after.Pending {
		delete(present, wait.Pod.UID)
	}
	var spared []PendingPod
	for _, wait := range w.Pending {
		if present[wait.Pod.UID] {
			spared = append(spared, wait)
		}
	}
	return spared
}
