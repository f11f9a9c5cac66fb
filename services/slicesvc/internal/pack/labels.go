package pack

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// labeling is the labels every slice of a Service should have: the Service's
// own, except for the three keys that mean something on a slice.
type labeling struct {
	service   *corev1.Service
	managedBy string
}

func newLabeling(service *corev1.Service, managedBy string) labeling {
	return labeling{service: service, managedBy: managedBy}
}

// wanted gives the labels in a map of its own.
func (l labeling) wanted() map[string]string {
	labels := make(map[string]string, len(l.service.Labels)+3)
	for key, value := range l.service.Labels {
		if !reserved(key) {
			labels[key] = value
		}
	}
	if desired.Headless(l.service) {
		labels[corev1.IsHeadlessService] = ""
	}
	labels[discoveryv1.LabelServiceName] = l.service.Name
	labels[discoveryv1.LabelManagedBy] = l.managedBy
	return labels
}

// differ reports whether a slice's labels differ from the Service's. The
// reserved keys alone are no reason to write, as upstream has it.
func (l labeling) differ(slice *discoveryv1.EndpointSlice) bool {
	return !covers(l.service.Labels, slice.Labels) || !covers(slice.Labels, l.service.Labels)
}

// covers reports whether every label of b that is not reserved is in a.
func covers(a, b map[string]string) bool {
	for key, value := range b {
		if reserved(key) {
			continue
		}
		if has, ok := a[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// isPlaceholder reports whether a slice is what placeholder would create.
func (l labeling) isPlaceholder(slice *discoveryv1.EndpointSlice) bool {
	return owned(slice, l.service) &&
		len(slice.Endpoints) == 0 &&
		len(slice.Ports) == 0 &&
		maps.Equal(slice.Labels, l.wanted())
}

func reserved(key string) bool {
	switch key {
	case discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy, corev1.IsHeadlessService:
		return true
	default:
		return false
	}
}
