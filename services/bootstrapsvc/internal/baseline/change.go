package baseline

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trivet-dev/trivet/internal/planned"
)

// Reason is the stable UPPER_SNAKE_CASE code of a change.
type Reason string

// Object is a Kubernetes object of a kind that this service owns.
type Object interface {
	metav1.Object
	runtime.Object
}

// Change is one step of a plan.
type Change struct {
	Verb planned.Verb
	// Object is the whole object to write (Create, Update), or the object as it was read (Delete).
	// For a Report it may have a name only. The plan owns it and shares it with no input.
	Object Object
	// Before is the object that an Update replaces, as it was read; nil for other verbs.
	Before Object
	Reason Reason
	// Detail explains the reason for operators, with the values that differ.
	Detail string
	// NeedsApproval says that the change releases something that may be in use. It is written only
	// when an operator asks for exactly this plan. Safe is the part of it that needs no approval;
	// nil if there is none.
	NeedsApproval bool
	Safe          *Change
}

// IsWrite says whether applying the change writes the object.
func (c Change) IsWrite() bool { return c.Verb != planned.Report }

// Kind is the group, version and kind of the object, which typed objects do not have themselves. It
// is empty for a kind that this service does not own.
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
	return slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return !c.IsWrite() })
}

// Automatic returns what may be written without an operator, in the same order.
func Automatic(writes []Change) []Change {
	var automatic []Change
	for _, c := range writes {
		switch {
		case !c.NeedsApproval:
			automatic = append(automatic, c)
		case c.Safe != nil:
			automatic = append(automatic, *c.Safe)
		}
	}
	return automatic
}

// Reports returns the changes that write nothing, in the same order.
func Reports(changes []Change) []Change {
	return slices.DeleteFunc(slices.Clone(changes), Change.IsWrite)
}

// Fingerprint identifies writes and the versions that they were planned from. Equal plans have
// equal fingerprints, on every replica.
func Fingerprint(writes []Change) string {
	sum := sha256.New()
	encoder := json.NewEncoder(sum)
	for _, c := range writes {
		// Objects of Kubernetes can always be encoded; an error would only make plans more alike.
		_ = encoder.Encode([]any{c.Verb, c.Kind(), c.Object, c.Reason})
	}
	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:16])
}
