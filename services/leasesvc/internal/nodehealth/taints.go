package nodehealth

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NoScheduleDrift returns the keys of the NoSchedule taints that are missing on a Node, and of
// those that are not wanted.
func NoScheduleDrift(node *corev1.Node) (missing, extra []string) {
	change := noScheduleTaints(node)
	for _, t := range change.add {
		missing = append(missing, t.Key)
	}
	for _, t := range change.remove {
		extra = append(extra, t.Key)
	}
	return missing, extra
}

// LabelDrift returns the labels that a Node must get: the beta labels that differ from their stable
// ones.
func LabelDrift(node *corev1.Node) map[string]string { return missingLabels(node.Labels) }

// NoExecuteTaints returns the keys of the NoExecute taint that a Node needs for its Ready
// condition, and of the one that it has. A key is "" for none. If both taints of node health are
// present, it returns the one that is not wanted.
func NoExecuteTaints(node *corev1.Node) (wanted, present string) {
	if ready := ConditionOf(node, corev1.NodeReady); ready != nil {
		wanted, _ = taintKeyOfReady(ready.Status)
	}
	for _, t := range node.Spec.Taints {
		if isNoExecuteOfHealth(t) && (present == "" || present == wanted) {
			present = t.Key
		}
	}
	return wanted, present
}

// noScheduleTaints compares the NoSchedule taints with the conditions.
func noScheduleTaints(node *corev1.Node) taintChange {
	var wanted []corev1.Taint
	want := func(key string) {
		if t := (corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}); !has(wanted, t) {
			wanted = append(wanted, t)
		}
	}
	for i := range node.Status.Conditions {
		if key, tainted := taintKeyOf(&node.Status.Conditions[i]); tainted {
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
		managed := t.Effect == corev1.TaintEffectNoSchedule && slices.Contains(noScheduleKeys(), t.Key)
		if managed && !has(wanted, t) {
			change.remove = append(change.remove, t)
		}
	}
	return change
}

// noScheduleKeys are the keys of the NoSchedule taints that follow conditions and
// spec.unschedulable. A user that sets one by hand loses it again, as with the node-lifecycle
// controller.
func noScheduleKeys() []string {
	return []string{
		corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable, corev1.TaintNodeMemoryPressure,
		corev1.TaintNodeDiskPressure, corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable,
	}
}

// noExecuteTaints compares the NoExecute taints with the Ready condition. rateLimited says that the
// change adds one where none was. Replacing one by the other uses no rate.
func noExecuteTaints(node *corev1.Node, ready corev1.ConditionStatus) (change taintChange, rateLimited bool) {
	key, tainted := taintKeyOfReady(ready)
	if !tainted && ready != corev1.ConditionTrue {
		return taintChange{}, false // there is no Ready condition yet
	}
	for _, t := range node.Spec.Taints {
		if isNoExecuteOfHealth(t) && (!tainted || t.Key != key) {
			change.remove = append(change.remove, t)
		}
	}
	if tainted && !has(node.Spec.Taints, noExecute(key)) {
		change.add = []corev1.Taint{noExecute(key)}
	}
	return change, len(change.add) > 0 && len(change.remove) == 0
}

func removeNoExecuteTaints(node *corev1.Node) taintChange {
	change, _ := noExecuteTaints(node, corev1.ConditionTrue)
	return change
}

// taintKeyOf returns the taint key of a condition, and whether its status needs the taint.
func taintKeyOf(condition *corev1.NodeCondition) (key string, tainted bool) {
	switch condition.Type {
	case corev1.NodeReady:
		return taintKeyOfReady(condition.Status)
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

func taintKeyOfReady(status corev1.ConditionStatus) (key string, tainted bool) {
	switch status {
	case corev1.ConditionFalse:
		return corev1.TaintNodeNotReady, true
	case corev1.ConditionUnknown:
		return corev1.TaintNodeUnreachable, true
	}
	return "", false
}

func noExecute(key string) corev1.Taint {
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
}

func isNoExecuteOfHealth(t corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable)
}

// taintChange is a change of the taints of a Node.
type taintChange struct {
	add, remove []corev1.Taint
}

func (c taintChange) empty() bool { return len(c.add) == 0 && len(c.remove) == 0 }

func (c taintChange) and(other taintChange) taintChange {
	return taintChange{add: slices.Concat(c.add, other.add), remove: slices.Concat(c.remove, other.remove)}
}

// applied returns the taints after the change. Other taints keep their values and order; new ones
// come last.
func (c taintChange) applied(taints []corev1.Taint, at time.Time) []corev1.Taint {
	after := slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool { return has(c.remove, t) })
	for _, t := range c.add {
		t.TimeAdded = &metav1.Time{Time: at}
		after = append(after, t)
	}
	return after
}

func has(taints []corev1.Taint, wanted corev1.Taint) bool {
	return slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.MatchTaint(&wanted) })
}

// Labels that the node-lifecycle controller keeps equal to the stable ones.
const (
	LabelBetaOS   = "beta.kubernetes.io/os"
	LabelBetaArch = "beta.kubernetes.io/arch"
)

// missingLabels returns the beta labels that differ from their stable labels. Without a stable
// label nothing is missing.
func missingLabels(labels map[string]string) map[string]string {
	var missing map[string]string
	for _, pair := range [...]struct{ stable, beta string }{
		{corev1.LabelOSStable, LabelBetaOS}, {corev1.LabelArchStable, LabelBetaArch},
	} {
		stable, known := labels[pair.stable]
		if beta, has := labels[pair.beta]; !known || has && beta == stable {
			continue
		}
		if missing == nil {
			missing = map[string]string{}
		}
		missing[pair.beta] = stable
	}
	return missing
}

// RequiredLabels returns the labels of Nodes that decisions are made from, beside
// Rules.ExcludeLabels.
func RequiredLabels() []string {
	return []string{
		corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion,
		corev1.LabelOSStable, corev1.LabelArchStable, LabelBetaOS, LabelBetaArch,
	}
}
