package baseline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/wording"
)

const (
	// NamespaceMissing: a system namespace does not exist.
	NamespaceMissing Reason = "NAMESPACE_MISSING"
	// NamespaceTerminating: a system namespace is being deleted; it is created again afterwards.
	NamespaceTerminating Reason = "NAMESPACE_TERMINATING"
	// NamespaceMislabelled: the label kubernetes.io/metadata.name of a system namespace is not its
	// name.
	NamespaceMislabelled Reason = "NAMESPACE_MISLABELLED"
)

// maxMessage bounds the repeated part of a condition's message, in bytes. Some messages list every
// kind of the cluster.
const maxMessage = 300

// SystemNamespaces returns the names of the namespaces that every cluster must have, ordered.
func SystemNamespaces() []string {
	return []string{
		metav1.NamespaceDefault,
		corev1.NamespaceNodeLease,
		metav1.NamespacePublic,
		metav1.NamespaceSystem,
	}
}

// PlanNamespaces plans the creation of missing system namespaces. It ignores other namespaces.
func PlanNamespaces(existing []*corev1.Namespace) []Change {
	byName := make(map[string]*corev1.Namespace, len(existing))
	for _, namespace := range existing {
		byName[namespace.Name] = namespace
	}
	var changes []Change
	for _, name := range SystemNamespaces() {
		changes = append(changes, planNamespace(name, byName[name])...)
	}
	return changes
}

func planNamespace(name string, existing *corev1.Namespace) []Change {
	if existing == nil {
		return []Change{{
			Verb:   planned.Create,
			Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			Reason: NamespaceMissing,
			Detail: "system namespace " + name + " does not exist",
		}}
	}
	var reports []Change
	if existing.DeletionTimestamp != nil || existing.Status.Phase == corev1.NamespaceTerminating {
		detail := "system namespace " + name + " is being deleted" + since(existing.DeletionTimestamp) +
			"; it is created again afterwards" + heldBy(existing)
		reports = append(reports, report(existing.DeepCopy(), NamespaceTerminating, detail))
	}
	if has := existing.Labels[corev1.LabelMetadataName]; has != name {
		reports = append(reports, report(existing.DeepCopy(), NamespaceMislabelled, fmt.Sprintf(
			"system namespace %s has label %s %q, want %q; policies that select it by this label do not match",
			name, corev1.LabelMetadataName, has, name)))
	}
	return reports
}

func since(deleted *metav1.Time) string {
	if deleted == nil {
		return ""
	}
	return " since " + deleted.UTC().Format(time.RFC3339)
}

// heldBy says what the deletion of a namespace waits for, as far as its status tells.
func heldBy(namespace *corev1.Namespace) string {
	var finalizers []string
	for _, finalizer := range namespace.Spec.Finalizers {
		finalizers = append(finalizers, string(finalizer))
	}
	finalizers = append(finalizers, namespace.Finalizers...)
	var obstacles []string
	if len(finalizers) > 0 {
		slices.Sort(finalizers)
		obstacles = append(obstacles, "finalizers "+strings.Join(finalizers, ", "))
	}
	conditions := slices.Clone(namespace.Status.Conditions)
	slices.SortFunc(conditions, func(a, b corev1.NamespaceCondition) int { return cmp.Compare(a.Type, b.Type) })
	for _, condition := range conditions {
		if condition.Status == corev1.ConditionTrue { // each names one obstacle
			obstacles = append(obstacles, fmt.Sprintf("%s: %s", condition.Type, wording.Clip(condition.Message, maxMessage)))
		}
	}
	if len(obstacles) == 0 {
		return ""
	}
	return "; it waits for: " + strings.Join(obstacles, "; ")
}
