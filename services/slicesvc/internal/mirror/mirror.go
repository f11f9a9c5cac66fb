package mirror

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// ManagedBy is the value of the managed-by label of mirrored slices.
const ManagedBy = "endpointslicemirroring-controller.k8s.io"

// LeaderElectionAnnotation marks an Endpoints object that serves as the lock of a leader election.
const LeaderElectionAnnotation = "control-plane.alpha.kubernetes.io/leader"

// Reason says why an Endpoints object has no mirrored slices; empty if it is mirrored.
type Reason string

const (
	// NoEndpoints: there is no Endpoints object.
	NoEndpoints Reason = "NO_ENDPOINTS"
	// NoService: there is no Service of the same name.
	NoService Reason = "NO_SERVICE"
	// HasSelector: the Service has a selector, so it has slices of its own.
	HasSelector Reason = "HAS_SELECTOR"
	// SkipMirrorLabel: the label endpointslice.kubernetes.io/skip-mirror is "true".
	SkipMirrorLabel Reason = "SKIP_MIRROR_LABEL"
	// LeaderAnnotation: the Endpoints object is the lock of a leader election.
	LeaderAnnotation Reason = "LEADER_ANNOTATION"
)

// ReasonOf returns why an Endpoints object is not mirrored. endpoints or service is nil if it does
// not exist. As upstream has it, the type, the addresses and the families of the Service do not
// count.
func ReasonOf(endpoints *corev1.Endpoints, service *corev1.Service) Reason {
	switch {
	case endpoints == nil:
		return NoEndpoints
	case service == nil:
		return NoService
	case len(service.Spec.Selector) > 0:
		return HasSelector
	case endpoints.Labels[discoveryv1.LabelSkipMirror] == "true":
		return SkipMirrorLabel
	}
	if _, locks := endpoints.Annotations[LeaderElectionAnnotation]; locks {
		return LeaderAnnotation
	}
	return ""
}

// fieldManagers returns the field managers of the programs that mirror: this one and
// kube-controller-manager. The name of a field manager is the first part of the user agent.
func fieldManagers() []string { return []string{"trivet", "kube-controller-manager"} }

// Owner returns an Endpoints object as the owner of slices.
func Owner(endpoints *corev1.Endpoints) pack.Owner {
	return pack.Owner{
		Object: &endpoints.ObjectMeta,
		Mirror: &pack.MirrorRules{Annotations: annotations(endpoints), Managers: fieldManagers()},
	}
}

// AnnotationFields returns what a plan needs of the managed fields of a mirrored slice: which
// annotations this program or kube-controller-manager set. The result is not for kube-apiserver:
// its entries have no fieldsType and no time.
func AnnotationFields(fields []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	return pack.AnnotationFields(fields, fieldManagers())
}

// AnnotationsDiffer returns whether two versions of a slice differ in an annotation that they
// should have from an Endpoints object. An annotation of another writer does not count.
func AnnotationsDiffer(endpoints *corev1.Endpoints, one, other *discoveryv1.EndpointSlice) bool {
	for key := range annotations(endpoints) {
		was, had := one.Annotations[key]
		is, has := other.Annotations[key]
		if was != is || had != has {
			return true
		}
	}
	return false
}

// annotations returns the annotations that the slices of an Endpoints object have: all but those
// that are about the Endpoints object itself.
func annotations(endpoints *corev1.Endpoints) map[string]string {
	all := maps.Clone(endpoints.Annotations)
	delete(all, corev1.EndpointsLastChangeTriggerTime)
	delete(all, corev1.LastAppliedConfigAnnotation)
	delete(all, pack.TookEndpoints)
	return all
}
