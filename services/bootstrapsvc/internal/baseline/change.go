package baseline

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Verb is what happens to an object. The values are stable: metrics carry them as labels.
type Verb string

const (
	// Create writes an object that must not exist yet.
	Create Verb = "create"
	// Update writes over exactly the resourceVersion that the object carries.
	Update Verb = "update"
	// Delete removes exactly the UID and resourceVersion that the object carries.
	Delete Verb = "delete"
	// Report writes nothing: what was found needs a person, or time.
	Report Verb = "report"
)

// Reason is a stable UPPER_SNAKE_CASE code that says why.
type Reason string

// Object is a Kubernetes object of one of the kinds that this service owns.
type Object interface {
	metav1.Object
	runtime.Object
}

// Change is one step of a plan.
type Change struct {
	Verb Verb
	// Object is the whole object as it is to be written (Create, Update), or as it was read (Delete). For a Report it
	// may be a mere name. It belongs to the plan and is never shared with what the plan was made from.
	Object Object
	Reason Reason
	// Detail says the same as Reason for people, with the values that differ.
	Detail string
}

// IsWrite says whether the change would write anything.
func (c Change) IsWrite() bool { return c.Verb != Report }

// Kind is the group, version and kind of the object, which typed objects do not carry themselves. It is empty for a
// kind that this service does not own.
func (c Change) Kind() schema.GroupVersionKind {
	switch c.Object.(type) {
	case *corev1.Namespace:
		return corev1.SchemeGroupVersion.WithKind("Namespace")
	case *corev1.Service:
		return corev1.SchemeGroupVersion.WithKind("Service")
	case *corev1.Endpoints:
		return corev1.SchemeGroupVersion.WithKind("Endpoints")
	case *discoveryv1.EndpointSlice:
		return discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice")
	case *networkingv1.ServiceCIDR:
		return networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")
	default:
		return schema.GroupVersionKind{}
	}
}

// Writes returns the changes that write something, in the same order.
func Writes(changes []Change) []Change {
	var writing []Change
	for _, c := range changes {
		if c.IsWrite() {
			writing = append(writing, c)
		}
	}
	return writing
}
