package baseline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// NamespaceMissing: a system namespace does not exist.
	NamespaceMissing Reason = "NAMESPACE_MISSING"
	// NamespaceTerminating: a system namespace is being deleted; it is created again once it has gone.
	NamespaceTerminating Reason = "NAMESPACE_TERMINATING"
	// NamespaceMislabelled: a system namespace does not carry its own name in the label by which policies select it.
	NamespaceMislabelled Reason = "NAMESPACE_MISLABELLED"
)

// maxMessage bounds how much of a condition's message is repeated, in bytes; some list every kind of the cluster.
const maxMessage = 300

// SystemNamespaces returns the names of the namespaces every cluster must have, ordered.
func SystemNamespaces() []string {
	return []string{
		metav1.NamespaceDefault,
		corev1.NamespaceNodeLease,
		metav1.NamespacePublic,
		metav1.NamespaceSystem,
	}
}

// PlanNamespaces says which system namespaces to create, given those that exist. Other namespaces are ignored.
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
			Verb:   Create,
			Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			Reason: NamespaceMissing,
			Detail: "system namespace " + name + " does not exist",
		}}
	}
	var reports []Change
	if existing.DeletionTimestamp != nil || existing.Status.Phase == corev1.NamespaceTerminating {
		detail := "system namespace " + name + " is being deleted" + since(existing.DeletionTimestamp) +
			"; it will be created again once it has gone" + heldBy(existing)
		reports = append(reports, report(existing.DeepCopy(), NamespaceTerminating, detail))
	}
	if has := existing.Labels[corev1.LabelMetadataName]; has != name {
		reports = append(reports, report(existing.DeepCopy(), NamespaceMislabelled, fmt.Sprintf(
			"system namespace %s has label %s %q, want %q; policies that select it by its name miss it",
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

// heldBy says what a namespace's deletion waits for, as far as the namespace says it itself.
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
		if condition.Status == corev1.ConditionTrue { // each names something that is in the way
			obstacles = append(obstacles, fmt.Sprintf("%s: %s", condition.Type, shortened(condition.Message)))
		}
	}
	if len(obstacles) == 0 {
		return ""
	}
	return "; what it waits for: " + strings.Join(obstacles, "; ")
}

// shortened cuts a text at a character's edge.
func shortened(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "…"
}
