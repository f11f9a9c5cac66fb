package pack

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Owner is the object that owns the slices of a plan. Its parts are only read.
type Owner struct {
	// Object has the name, namespace and UID of the owner. Its labels are the labels of the slices,
	// except for the reserved keys. While it has a deletionTimestamp, no slice is created.
	Object *metav1.ObjectMeta
	// Mirror has the rules for the slices of an Endpoints object; nil for a Service.
	Mirror *MirrorRules
}

// ServiceOwner returns a Service as the owner of slices.
func ServiceOwner(service *corev1.Service) Owner { return Owner{Object: &service.ObjectMeta} }

// kind returns the kind of the owner, whose apiVersion is v1.
func (o Owner) kind() string {
	if o.Mirror != nil {
		return "Endpoints"
	}
	return "Service"
}

// owns reports whether a slice belongs to this very object, not to an earlier one of the same name.
func (o Owner) owns(slice *discoveryv1.EndpointSlice) bool {
	for i := range slice.OwnerReferences {
		owner := &slice.OwnerReferences[i]
		if owner.UID == o.Object.UID && owner.Kind == o.kind() && owner.APIVersion == "v1" {
			return true
		}
	}
	return false
}

// reference returns the reference to the owner as the controller of a slice.
func (o Owner) reference() metav1.OwnerReference {
	return *metav1.NewControllerRef(o.Object, corev1.SchemeGroupVersion.WithKind(o.kind()))
}

// reserved reports whether the value of a label does not come from the owner.
func (o Owner) reserved(key string) bool {
	switch key {
	case discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy:
		return true
	case corev1.IsHeadlessService:
		return o.Mirror == nil
	default:
		return false
	}
}

// canUse reports whether the plan may update a slice that is not needed as it is. A slice of an
// earlier Service is replaced, because the garbage collector deletes it.
func (o Owner) canUse(slice *discoveryv1.EndpointSlice) bool { return o.Mirror != nil || o.owns(slice) }
