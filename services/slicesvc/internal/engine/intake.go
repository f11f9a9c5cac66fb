package engine

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/expect"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// PutService takes in a new or changed Service. None of the Put and Delete
// methods blocks for longer than it takes to note the change; the objects are
// kept and must not be changed afterwards.
func (e *Engine) PutService(service *corev1.Service) {
	e.cache.change(service.ResourceVersion, func(x *index.Index) { x.PutService(service) })
	e.ledger.enqueue(keyOf(service.Namespace, service.Name))
}

// DeleteService takes note that a Service is gone. The pass that follows finds
// nothing to do, but forgets what a pass under way notes after this.
func (e *Engine) DeleteService(service *corev1.Service) {
	key := keyOf(service.Namespace, service.Name)
	e.cache.change(service.ResourceVersion, func(x *index.Index) { x.DeleteService(key) })
	e.ledger.forget(key)
	e.ledger.enqueue(key)
}

// PutPod takes in a new or changed pod.
func (e *Engine) PutPod(pod *corev1.Pod) {
	var effect index.Effect
	e.cache.change(pod.ResourceVersion, func(x *index.Index) { effect = x.PutPod(pod) })
	e.ledger.affected(effect)
}

// DeletePod takes note that a pod is gone.
func (e *Engine) DeletePod(pod *corev1.Pod) {
	var effect index.Effect
	e.cache.change(pod.ResourceVersion, func(x *index.Index) { effect = x.DeletePod(pod) })
	e.ledger.affected(effect)
}

// PutNode takes in a new or changed node.
func (e *Engine) PutNode(node *corev1.Node) {
	var effect index.Effect
	e.cache.change(node.ResourceVersion, func(x *index.Index) {
		effect = x.PutNode(node.Name, hints.NodeOf(node))
	})
	e.ledger.affected(effect)
}

// DeleteNode takes note that a node is gone.
func (e *Engine) DeleteNode(node *corev1.Node) {
	var effect index.Effect
	e.cache.change(node.ResourceVersion, func(x *index.Index) { effect = x.DeleteNode(node.Name) })
	e.ledger.affected(effect)
}

// PutSlice takes in a new or changed EndpointSlice, anybody's.
func (e *Engine) PutSlice(slice *discoveryv1.EndpointSlice) {
	var services []Key
	e.cache.change(slice.ResourceVersion, func(x *index.Index) { services = x.PutSlice(slice) })
	// A slice that is being deleted is planned around as if it were gone, and
	// may stay for long if somebody's finalizer is on it.
	gone := slice.DeletionTimestamp != nil
	e.ledger.sliceSeen(services, versionOf(slice), gone, time.Now())
}

// DeleteSlice takes note that an EndpointSlice is gone.
func (e *Engine) DeleteSlice(slice *discoveryv1.EndpointSlice) {
	var services []Key
	e.cache.change(slice.ResourceVersion, func(x *index.Index) {
		services = x.DeleteSlice(slice)
	})
	e.ledger.sliceSeen(services, versionOf(slice), true, time.Now())
}

func keyOf(namespace, name string) Key { return Key{Namespace: namespace, Name: name} }

func versionOf(slice *discoveryv1.EndpointSlice) expect.Version {
	return expect.Version{Name: slice.Name, UID: slice.UID, ResourceVersion: slice.ResourceVersion}
}
