package baseline

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/change"
)

const (
	// NamespaceMissing: a system namespace does not exist.
	NamespaceMissing change.Reason = "NAMESPACE_MISSING"
	// NamespaceTerminating: a system namespace is being deleted; it is created again once it has gone.
	NamespaceTerminating change.Reason = "NAMESPACE_TERMINATING"
)

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
func PlanNamespaces(existing []*corev1.Namespace) []change.Change {
	byName := make(map[string]*corev1.Namespace, len(existing))
	for _, namespace := range existing {
		byName[namespace.Name] = namespace
	}
	var changes []change.Change
	for _, name := range SystemNamespaces() {
		changes = append(changes, planNamespace(name, byName[name])...)
	}
	return changes
}

func planNamespace(name string, existing *corev1.Namespace) []change.Change {
	switch {
	case existing == nil:
		return []change.Change{{
			Verb:   change.Create,
			Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			Reason: NamespaceMissing,
			Detail: "system namespace " + name + " does not exist",
		}}
	case existing.DeletionTimestamp != nil || existing.Status.Phase == corev1.NamespaceTerminating:
		return []change.Change{{
			Verb:   change.Report,
			Object: existing.DeepCopy(),
			Reason: NamespaceTerminating,
			Detail: "system namespace " + name + " is being deleted; it will be created again once it has gone",
		}}
	default:
		return nil
	}
}
