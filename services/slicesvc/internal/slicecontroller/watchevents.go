package slicecontroller

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// PutService takes in a new or changed Service. None of the Put and Delete
// methods blocks for longer than it takes to note the change; the objects are
// given away: they are kept and must not be used afterwards.
func (e *Engine) PutService(service *corev1.Service) {
	key := keyOf(service.Namespace, service.Name)
	e.cache.change(service.ResourceVersion, func(x *index.Index) { x.PutService(service) })
	e.mark(key, cause{trigger: ByService}, index.Urgent)
	e.feed.touch(Changed{Key: key, UID: service.UID})
}

// DeleteService takes note that a Service is gone. The pass that follows finds
// nothing to do, but forgets what a pass under way notes after this.
func (e *Engine) DeleteService(service *corev1.Service) {
	key := keyOf(service.Namespace, service.Name)
	e.cache.change(service.ResourceVersion, func(x *index.Index) { x.DeleteService(key) })
	e.ledger.forget(key, ErrNoService)
	e.ledger.enqueue(key, rankOf(index.Lazy), 0)
	e.feed.touch(Changed{Key: key, UID: service.UID, Gone: true})
}

// PutPod takes in a new or changed pod.
func (e *Engine) PutPod(pod *corev1.Pod) {
	var effect index.Effect
	e.cache.change(pod.ResourceVersion, func(x *index.Index) { effect = x.PutPod(pod) })
	e.affected(effect, ByPod)
}

// DeletePod takes note that a pod is gone.
func (e *Engine) DeletePod(pod *corev1.Pod) {
	var effect index.Effect
	e.cache.change(pod.ResourceVersion, func(x *index.Index) { effect = x.DeletePod(pod) })
	if effect.Time.IsZero() && shownGoing(pod) {
		effect.Time = time.Now()
	}
	e.affected(effect, ByPod)
}

// shownGoing reports whether a pod was seen to go, in which case it went just now.
// Of one that was found missing after a watch was interrupted the names alone are
// known, and nobody can say when it went.
func shownGoing(pod *corev1.Pod) bool { return !pod.CreationTimestamp.IsZero() }

// PutNode takes in a new or changed node.
func (e *Engine) PutNode(node *corev1.Node) {
	var effect index.Effect
	e.cache.change(node.ResourceVersion, func(x *index.Index) { effect = x.PutNode(node.Name, hints.NodeOf(node)) })
	e.affected(effect, ByNode)
}

// DeleteNode takes note that a node is gone.
func (e *Engine) DeleteNode(node *corev1.Node) {
	var effect index.Effect
	e.cache.change(node.ResourceVersion, func(x *index.Index) { effect = x.DeleteNode(node.Name) })
	e.affected(effect, ByNode)
}

// PutSlice takes in a new or changed EndpointSlice, anybody's. One that is known
// in that version or a newer one, as every slice that was written here is, costs
// nothing.
func (e *Engine) PutSlice(slice *discoveryv1.EndpointSlice) {
	var services []Key
	e.cache.change(slice.ResourceVersion, func(x *index.Index) { services = x.PutSlice(slice) })
	// A slice that is being deleted is planned around as if it were gone, and
	// may stay for long if somebody's finalizer is on it.
	e.sliceNews(services, sliceNews{
		name:    slice.Name,
		version: slice.ResourceVersion,
		ending:  slice.DeletionTimestamp != nil,
		by:      writerOf(slice.ManagedFields),
	})
}

// DeleteSlice takes note that an EndpointSlice is gone.
func (e *Engine) DeleteSlice(slice *discoveryv1.EndpointSlice) {
	var services []Key
	e.cache.change(slice.ResourceVersion, func(x *index.Index) { services = x.DeleteSlice(slice) })
	e.sliceNews(services, sliceNews{name: slice.Name, version: slice.ResourceVersion, gone: true})
	// The answer of a write that came before the deletion may have put the slice back
	// before it could know of this.
	e.cache.change("", func(x *index.Index) { x.DeleteSlice(slice) })
}

// SlicesListed takes note of which slices there were at a resourceVersion. What is
// known in an older version and was not among them is gone: a slice that was
// written here and deleted by somebody while no watch was open was never shown.
func (e *Engine) SlicesListed(there map[Key]struct{}, resourceVersion string) {
	for _, gone := range e.cache.unlisted(there, resourceVersion) {
		e.DeleteSlice(gone)
	}
}

// SliceSeen takes note of a slice of which a watch shows the metadata alone, and
// reports whether the whole of it must be fetched and put. It need not be when it
// is known in that version or a newer one, when it is not ours, and when a write
// of it is under way: then the answer tells what became of it.
func (e *Engine) SliceSeen(meta *metav1.ObjectMeta) (fetch bool) {
	owner := meta.Labels[discoveryv1.LabelServiceName]
	if meta.Labels[discoveryv1.LabelManagedBy] != e.cfg.ManagedBy || owner == "" || meta.DeletionTimestamp != nil {
		// What counts is in the metadata.
		e.PutSlice(&discoveryv1.EndpointSlice{ObjectMeta: *meta})
		return false
	}
	_, version, _, known := e.cache.sliceVersion(keyOf(meta.Namespace, meta.Name))
	if known && index.CompareVersions(meta.ResourceVersion, version) <= 0 {
		return false
	}
	key := keyOf(meta.Namespace, owner)
	h := e.ledger.holderOf(key)
	return h == nil || !h.sighted(key, meta.Name, meta.ResourceVersion)
}

// sliceNews is what a watch shows of a slice that was not known.
type sliceNews struct {
	name, version string
	gone          bool
	// ending says that the slice is being deleted, which need not undo anything.
	ending bool
	// by is who wrote it, if it says so.
	by string
}

// sliceNews asks for passes over the Services that a slice spoke of, before or
// after it was changed by somebody else.
func (e *Engine) sliceNews(services []Key, news sliceNews) {
	for _, key := range services {
		service, ok := e.cache.service(key)
		if ok {
			e.feed.touch(Changed{Key: key, UID: service.UID})
		}
		h := e.ledger.holderOf(key)
		if h == nil {
			continue
		}
		pass, rests, by := h.sliceNews(key, news, time.Now())
		if pass {
			e.ledger.enqueue(key, rankOf(index.Urgent), 0)
		}
		if rests && ok {
			e.contended(service, by)
		}
	}
}

// contended tells that a Service is being left alone.
func (e *Engine) contended(service *corev1.Service, by string) {
	e.logger.Warn("somebody else keeps undoing what is written for a service; it is left alone for a while, but for what is missing",
		"service", service.Namespace+"/"+service.Name, "by", by)
	e.metrics.contended.Inc()
	if e.deps.Contended != nil {
		e.deps.Contended(service, by)
	}
}

// affected asks for passes over the Services a change concerns.
func (e *Engine) affected(effect index.Effect, trigger Trigger) {
	for _, key := range effect.Services {
		e.mark(key, cause{trigger: trigger, pods: effect.Pods, at: effect.Time}, effect.Urgency)
	}
	for _, key := range effect.Hinted {
		e.mark(key, cause{trigger: trigger}, index.Lazy)
	}
}

// mark notes why a Service needs a pass and asks for it. Changes of pods and nodes
// come in swarms and may wait for each other.
func (e *Engine) mark(key Key, c cause, urgency index.Urgency) {
	h := e.ledger.holderOf(key)
	if h == nil {
		return
	}
	now := time.Now()
	since, wait, begun := h.mark(key, c, now)
	if !begun {
		return
	}
	if e.deps.Pace != nil && (c.trigger == ByPod || c.trigger == ByNode) {
		wait = max(wait, e.deps.Pace.Wait(now, Due{
			Since:   since,
			Urgency: urgency,
			Depth:   e.QueueLength(),
		}))
	}
	e.ledger.enqueue(key, rankOf(urgency), wait)
}

// writerOf names whoever changed an object last, as far as it tells.
func writerOf(fields []metav1.ManagedFieldsEntry) string {
	var latest *metav1.ManagedFieldsEntry
	for i := range fields {
		entry := &fields[i]
		if latest == nil || (entry.Time != nil && (latest.Time == nil || entry.Time.After(latest.Time.Time))) {
			latest = entry
		}
	}
	if latest == nil {
		return ""
	}
	return latest.Manager
}

func keyOf(namespace, name string) Key { return Key{Namespace: namespace, Name: name} }
