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
type Ward struct {
	UID types.UID
	// Taints are in the Node's order.
	Taints []Standing
	// Waits are ordered by Due.
	Waits []Wait

	// arrivals are since when pods are on the Node, as long as it has taints.
	arrivals map[types.UID]monotonic.Instant
}

// Standing is a taint and since when it counts.
type Standing struct {
	Taint corev1.Taint
	Since monotonic.Instant

	// formers are the taints of node health whose place this one took, each since it first counted.
	formers []Standing
}

// Cause is the taint for which a pod has to leave. Since is from when its toleration counts, Due when that is over.
type Cause struct {
	Taint      corev1.Taint
	Since, Due monotonic.Instant
}

// Wait is a pod that has to leave.
type Wait struct {
	// Pod is as last seen, and shared: nobody writes to it.
	Pod *corev1.Pod
	// Cause is the one that is due first.
	Cause
	// Sure is the first that does not come from node health, which is what counts while that is in doubt; nil without one.
	Sure *Cause
}

// FromHealth tells whether node health puts the taint on Nodes, be it Trivet's or upstream's.
func FromHealth(taint *corev1.Taint) bool {
	return taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable
}

// See returns the Ward after its Node was seen with all the pods on it, where wall is now by the wall clock. Seeing the same again
// changes nothing but for pods that came.
func (w Ward) See(now monotonic.Instant, wall time.Time, node *corev1.Node, pods []*corev1.Pod) Ward {
	if w.UID != node.UID {
		w = Ward{}
	}
	s := sight{Ward: w, first: w.UID == "", now: now, wall: wall}
	after := Ward{UID: node.UID, Taints: s.standings(node)}
	if len(after.Taints) == 0 {
		return after
	}
	after.arrivals = make(map[types.UID]monotonic.Instant, len(pods))
	for _, pod := range pods {
		arrival := s.arrival(pod)
		after.arrivals[pod.UID] = arrival
		if wait, must := waitOf(pod, arrival, after.Taints); must {
			after.Waits = append(after.Waits, wait)
		}
	}
	slices.SortFunc(after.Waits, compareWaits)
	return after
}

// sight is one look at a Node.
type sight struct {
	Ward // as it was before
	// first tells that there was none before.
	first bool
	now   monotonic.Instant
	wall  time.Time
}

func (s sight) standings(node *corev1.Node) []Standing {
	var standings []Standing
	for i := range node.Spec.Taints {
		if taint := &node.Spec.Taints[i]; taint.Effect == corev1.TaintEffectNoExecute {
			standings = append(standings, s.standing(node, taint))
		}
	}
	return standings
}

func (s sight) standing(node *corev1.Node, taint *corev1.Taint) Standing {
	if s.first {
		return Standing{Taint: *taint, Since: s.witnessed(writtenAt(node, taint))}
	}
	standing := Standing{Taint: *taint, Since: s.now}
	for _, before := range s.Taints {
		switch {
		case before.Taint.MatchTaint(taint) && before.Taint.Value == taint.Value:
			if !cameBack(&before.Taint, taint) {
				return Standing{Taint: *taint, Since: before.Since, formers: before.formers}
			}
			return standing
		case FromHealth(&before.Taint) && FromHealth(taint):
			standing.formers = succeeded(before)
		}
	}
	return standing
}

// succeeded are the formers of the taint that takes the place of another: those of that one, and itself, each since it was first
// there.
func succeeded(before Standing) []Standing {
	for _, former := range before.formers {
		if former.Taint.Key == before.Taint.Key {
			return before.formers
		}
	}
	return append(slices.Clip(before.formers), Standing{Taint: before.Taint, Since: before.Since})
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

func waitOf(pod *corev1.Pod, arrival monotonic.Instant, taints []Standing) (wait Wait, must bool) {
	if pod.DeletionTimestamp != nil {
		return Wait{}, false
	}
	wait.Pod = pod
	for i := range taints {
		cause, drives := causeOf(pod, arrival, &taints[i])
		if !drives {
			continue
		}
		if !must || cause.Due < wait.Due {
			wait.Cause = cause
		}
		if !FromHealth(&cause.Taint) && (wait.Sure == nil || cause.Due < wait.Sure.Due) {
			wait.Sure = &cause
		}
		must = true
	}
	return wait, must
}

// causeOf tells when a taint drives a pod out, if it ever does. A pod that was waiting for a former taint waits no longer for
// this one.
func causeOf(pod *corev1.Pod, arrival monotonic.Instant, standing *Standing) (cause Cause, drives bool) {
	for _, s := range append([]Standing{*standing}, standing.formers...) {
		patience := patienceOf(pod.Spec.Tolerations, &s.Taint)
		since := max(s.Since, arrival)
		switch due := since.Add(patience); {
		case patience == forever && !drives:
			return Cause{}, false // whatever was before, this one does not
		case patience == forever:
		case !drives || due < cause.Due:
			cause, drives = Cause{Taint: standing.Taint, Since: since, Due: due}, true
		}
	}
	return cause, drives
}

func compareWaits(a, b Wait) int {
	return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
}

// Spared returns the waits of pods that are still on the Node and need not leave any more, after compared with w.
func (w Ward) Spared(after Ward, pods []*corev1.Pod) []Wait {
	if len(w.Waits) == 0 {
		return nil
	}
	present := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		present[pod.UID] = pod.DeletionTimestamp == nil
	}
	for _, wait := range after.Waits {
		delete(present, wait.Pod.UID)
	}
	var spared []Wait
	for _, wait := range w.Waits {
		if present[wait.Pod.UID] {
			spared = append(spared, wait)
		}
	}
	return spared
}
