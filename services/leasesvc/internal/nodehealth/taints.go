package nodehealth

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// taintChange is how a Node's taints have to change.
type taintChange struct {
	add, remove []corev1.Taint
}

func (c taintChange) empty() bool { return len(c.add) == 0 && len(c.remove) == 0 }

func (c taintChange) and(other taintChange) taintChange {
	return taintChange{add: slices.Concat(c.add, other.add), remove: slices.Concat(c.remove, other.remove)}
}

// applied returns the taints after the change: those of others as they are and where they are, new ones behind them.
func (c taintChange) applied(taints []corev1.Taint, at time.Time) []corev1.Taint {
	after := slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		return slices.ContainsFunc(c.remove, func(gone corev1.Taint) bool { return same(gone, t) })
	})
	for _, t := range c.add {
		t.TimeAdded = &metav1.Time{Time: at}
		after = append(after, t)
	}
	return after
}

// same compares taints as the kube-apiserver tells them apart.
func same(a, b corev1.Taint) bool { return a.Key == b.Key && a.Effect == b.Effect }

func has(taints []corev1.Taint, wanted corev1.Taint) bool {
	return slices.ContainsFunc(taints, func(t corev1.Taint) bool { return same(t, wanted) })
}

// byCondition is the taint that each status of a condition stands for.
func byCondition(condition *corev1.NodeCondition) (key string, tainted bool) {
	switch condition.Type {
	case corev1.NodeReady:
		return readyKey(condition.Status)
	case corev1.NodeMemoryPressure:
		key = corev1.TaintNodeMemoryPressure
	case corev1.NodeDiskPressure:
		key = corev1.TaintNodeDiskPressure
	case corev1.NodePIDPressure:
		key = corev1.TaintNodePIDPressure
	case corev1.NodeNetworkUnavailable:
		key = corev1.TaintNodeNetworkUnavailable
	}
	return key, key != "" && condition.Status == corev1.ConditionTrue
}

func readyKey(status corev1.ConditionStatus) (key string, tainted bool) {
	switch status {
	case corev1.ConditionFalse:
		return corev1.TaintNodeNotReady, true
	case corev1.ConditionUnknown:
		return corev1.TaintNodeUnreachable, true
	}
	return "", false
}

// scheduleKeys are the NoSchedule taints that follow from conditions and from spec.unschedulable. Whoever sets one of them
// by hand sees it go, as with upstream's controller.
func scheduleKeys() []string {
	return []string{
		corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable, corev1.TaintNodeMemoryPressure,
		corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable,
	}
}

// scheduleTaints compares the NoSchedule taints with the conditions.
func scheduleTaints(node *corev1.Node) taintChange {
	var wanted []corev1.Taint
	want := func(key string) {
		if t := (corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}); !has(wanted, t) {
			wanted = append(wanted, t)
		}
	}
	for i := range node.Status.Conditions {
		if key, tainted := byCondition(&node.Status.Conditions[i]); tainted {
			want(key)
		}
	}
	if node.Spec.Unschedulable {
		want(corev1.TaintNodeUnschedulable)
	}
	var change taintChange
	for _, t := range wanted {
		if !has(node.Spec.Taints, t) {
			change.add = append(change.add, t)
		}
	}
	for _, t := range node.Spec.Taints {
		ours := t.Effect == corev1.TaintEffectNoSchedule && slices.Contains(scheduleKeys(), t.Key)
		if ours && !has(wanted, t) {
			change.remove = append(change.remove, t)
		}
	}
	return change
}

func noExecute(key string) corev1.Taint {
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
}

func isOurNoExecute(t *corev1.Taint) bool {
	return same(*t, noExecute(corev1.TaintNodeNotReady)) || same(*t, noExecute(corev1.TaintNodeUnreachable))
}

// executeTaints compares the NoExecute taints with the Ready condition. queued tells that the addition is a new one, which has
// to wait for the zone's turn; a swap of one for the other does not wait.
func executeTaints(node *corev1.Node, ready corev1.ConditionStatus) (change taintChange, queued bool) {
	key, tainted := readyKey(ready)
	if !tainted && ready != corev1.ConditionTrue {
		return taintChange{}, false // nobody has said anything yet
	}
	for _, t := range node.Spec.Taints {
		if isOurNoExecute(&t) && (!tainted || t.Key != key) {
			change.remove = append(change.remove, t)
		}
	}
	if tainted && !has(node.Spec.Taints, noExecute(key)) {
		change.add = []corev1.Taint{noExecute(key)}
	}
	return change, len(change.add) > 0 && len(change.remove) == 0
}

// removeExecute takes both away.
func removeExecute(node *corev1.Node) taintChange {
	change, _ := executeTaints(node, corev1.ConditionTrue)
	return change
}

// ScheduleDrift names the NoSchedule taints that are missing on a Node, and those that should not be there.
func NoScheduleDrift(node *corev1.Node) (missing, extra []string) {
	change := scheduleTaints(node)
	for _, t := range change.add {
		missing = append(missing, t.Key)
	}
	for _, t := range change.remove {
		extra = append(extra, t.Key)
	}
	return missing, extra
}

// ExecuteTaints are the keys of the NoExecute taint that a Node should have by its Ready condition, and of the one that it has;
// empty for none. Of two that are present it names the one that should not be.
func NoExecuteTaints(node *corev1.Node) (wanted, present string) {
	if ready := conditionOf(node, corev1.NodeReady); ready != nil {
		wanted, _ = readyKey(ready.Status)
	}
	for i := range node.Spec.Taints {
		if t := &node.Spec.Taints[i]; isOurNoExecute(t) && (present == "" || present == wanted) {
			present = t.Key
		}
	}
	return wanted, present
}
