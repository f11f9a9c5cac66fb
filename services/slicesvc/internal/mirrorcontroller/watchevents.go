package mirrorcontroller

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

var _ kube.EndpointsHandler = &Controller{}

// ObserveEndpoints records the metadata of a new or changed Endpoints object. It returns whether
// PutEndpoints must follow: whether the object is mirrored, or is once there is a Service.
func (c *Controller) ObserveEndpoints(meta *metav1.ObjectMeta) (fetch bool) {
	observed := &corev1.Endpoints{ObjectMeta: *meta}
	key := keyOf(observed)
	service, exists := c.deps.Services.Service(key)
	if !exists {
		service = &corev1.Service{}
	}
	reason := mirror.ReasonOf(observed, service)
	if reason == "" {
		known := c.cache.get(key)
		return !known.whole || index.CompareVersions(meta.ResourceVersion, known.object.ResourceVersion) > 0
	}
	before := c.subject(key)
	if reason == mirror.HasSelector {
		observed = nameOnly(meta) // the Endpoints of Services with a selector change often
	}
	c.cache.put(observed, false)
	if before.object == nil || before.reason() != reason {
		c.Changed(key)
	}
	c.requestSync(key, slicecontroller.ByEndpoints)
	return false
}

// PutEndpoints caches a whole Endpoints object.
func (c *Controller) PutEndpoints(object *corev1.Endpoints) {
	key := keyOf(object)
	c.cache.put(object, true)
	c.Changed(key)
	c.requestSync(key, slicecontroller.ByEndpoints)
}

// DeleteEndpoints removes an Endpoints object.
func (c *Controller) DeleteEndpoints(last *metav1.ObjectMeta) {
	key := Key{Namespace: last.Namespace, Name: last.Name}
	c.cache.remove(last)
	if c.cache.get(key).object == nil {
		c.reports.forget(key)
	}
	c.Changed(key)
	c.requestSync(key, slicecontroller.ByEndpoints)
}

// ServiceChanged must be called after a Service was added, changed or deleted; before and after are
// nil if there was or is none. Only the presence of a selector decides.
func (c *Controller) ServiceChanged(key Key, before, after *corev1.Service) {
	if after != nil && len(after.Spec.Selector) > 0 {
		c.cache.shrink(key)
	}
	if (before == nil) == (after == nil) && (after == nil || (len(before.Spec.Selector) > 0) == (len(after.Spec.Selector) > 0)) {
		return
	}
	c.requestSync(key, slicecontroller.ByService)
}

// requestSync requests a sync of a key that is to be mirrored or has mirrored slices. Of others
// there is nothing to report.
func (c *Controller) requestSync(key Key, trigger slicecontroller.Trigger) {
	if _, err := c.Object(key); err == nil {
		c.Request(key, trigger, index.Urgent)
		return
	}
	c.reports.forget(key)
	c.callWritten(key)
}
