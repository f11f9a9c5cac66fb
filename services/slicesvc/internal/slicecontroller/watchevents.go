package slicecontroller

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

var _ kube.Handler = &Controller{}

// PutService caches a new or changed Service. The Put and Delete methods return as soon as the
// change is recorded. They own the objects.
func (c *Controller) PutService(service *corev1.Service) {
	key := keyOf(service.Namespace, service.Name)
	before, _ := c.index.Service(key)
	c.index.PutService(service)
	c.requestSync(key, syncCause{trigger: ByService, urgency: serviceUrgency(before, service), object: service})
	c.changes.record(ServiceChange{Key: key, UID: service.UID})
}

// serviceUrgency returns the urgency of a change of a Service; before is nil for a new one. Only
// the spec and the annotations of hints decide about traffic. Other changes, which include those
// that a list repeats, must not go before changes of Pods.
func serviceUrgency(before, after *corev1.Service) index.Urgency {
	switch {
	case before == nil,
		before.UID != after.UID,
		(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil),
		hints.ModeName(before) != hints.ModeName(after),
		!equality.Semantic.DeepEqual(before.Spec, after.Spec):
		return index.Urgent
	default:
		return index.Lazy
	}
}

// DeleteService removes a Service. The sync that follows finds nothing to do, but drops what a
// running sync records afterwards.
func (c *Controller) DeleteService(service *corev1.Service) {
	key := keyOf(service.Namespace, service.Name)
	c.index.DeleteService(key)
	c.shards.forget(key, ErrServiceNotFound)
	c.shards.enqueue(key, background, 0)
	c.changes.record(ServiceChange{Key: key, UID: service.UID, Deleted: true})
}

// PutPod caches a new or changed Pod.
func (c *Controller) PutPod(pod *corev1.Pod) {
	effect := c.index.PutPod(pod)
	c.requestSyncs(effect, ByPod, pod)
}

// DeletePod removes a Pod.
func (c *Controller) DeletePod(pod *corev1.Pod) {
	effect := c.index.DeletePod(pod)
	if effect.Time.IsZero() && isWatchedDeletion(pod) {
		effect.Time = time.Now()
	}
	c.requestSyncs(effect, ByPod, pod)
}

// isWatchedDeletion returns whether a watch showed the deletion, so that it happened just now. A
// Pod that was missing in a list comes with its names alone, and the time of its deletion is
// unknown.
func isWatchedDeletion(pod *corev1.Pod) bool { return !pod.CreationTimestamp.IsZero() }

// PutNode caches a new or changed Node.
func (c *Controller) PutNode(node *corev1.Node) {
	effect := c.index.PutNode(node.Name, hints.NodeOf(node))
	c.requestSyncs(effect, ByNode, node)
}

// DeleteNode removes a Node.
func (c *Controller) DeleteNode(node *corev1.Node) {
	effect := c.index.DeleteNode(node.Name)
	c.requestSyncs(effect, ByNode, node)
}

// PutSlice caches a new or changed slice of any manager. It ignores a slice that the cache has in
// that version or a newer one, as every slice that was written here.
func (c *Syncer) PutSlice(slice *discoveryv1.EndpointSlice) {
	before := c.index.Slice(keyOf(slice.Namespace, slice.Name))
	services, edit := c.index.PutSlice(slice)
	if before != nil && edit == index.EditedMetadata && !maps.Equal(before.Annotations, slice.Annotations) &&
		slices.ContainsFunc(services, func(key Key) bool { return c.source.annotationsEdited(key, before, slice) }) {
		edit = index.EditedForeignLabels
	}
	event := sliceEvent{
		name:    slice.Name,
		version: slice.ResourceVersion,
		edit:    edit,
		// A plan ignores a slice that is being deleted. A finalizer may keep it for long.
		terminating: slice.DeletionTimestamp != nil,
	}
	if newest := kube.NewestManager(slice.ManagedFields); len(newest) > 0 {
		event.writer = newest[0].Manager
	}
	c.sliceChanged(services, event)
}

// DeleteSlice removes a slice.
func (c *Syncer) DeleteSlice(slice *discoveryv1.EndpointSlice) {
	c.reads.recordDeletion(slice)
	services := c.index.DeleteSlice(slice)
	c.sliceChanged(services, sliceEvent{name: slice.Name, version: slice.ResourceVersion, edit: index.EditedContent, deleted: true})
	// The answer of an earlier write may have put the slice back before sliceChanged recorded the
	// deletion.
	c.index.DeleteSlice(slice)
}

// SlicesListed removes the slices that are older than a list and not in it. No watch shows the
// deletion of a slice that was written here and deleted while no watch was open.
func (c *Syncer) SlicesListed(listed map[Key]struct{}, resourceVersion string) {
	for _, slice := range c.index.Unlisted(listed, resourceVersion) {
		c.DeleteSlice(slice)
	}
}

// ObserveSliceMetadata records that a watch showed the metadata of a slice. It returns whether
// PutSlice must follow. That is not needed if the slice is not ours, or if the cache has that
// version or a newer one. With a Reader it is not needed during a write of the slice either: the
// answer of the write has its state, and after a failed write the Reader reads it.
func (c *Syncer) ObserveSliceMetadata(meta *metav1.ObjectMeta) (fetch bool) {
	service := meta.Labels[discoveryv1.LabelServiceName]
	ours := meta.Labels[discoveryv1.LabelManagedBy] == c.cfg.ManagedBy && service != ""
	if !ours && c.ownSlicesOnly {
		if _, _, _, known := c.index.SliceVersion(keyOf(meta.Namespace, meta.Name)); !known {
			return false
		}
	}
	if !ours || meta.DeletionTimestamp != nil {
		// The metadata is all that the index uses of such a slice.
		c.PutSlice(&discoveryv1.EndpointSlice{ObjectMeta: *meta})
		return false
	}
	_, version, _, known := c.index.SliceVersion(keyOf(meta.Namespace, meta.Name))
	if known && index.CompareVersions(meta.ResourceVersion, version) <= 0 {
		return false
	}
	key := keyOf(meta.Namespace, service)
	owned := c.shards.ownerOf(key)
	return c.deps.Reader == nil || owned == nil || !owned.observeDuringWrite(key, meta.Name, meta.ResourceVersion)
}

// sliceChanged requests syncs of the Services that a slice names or named, after another writer
// changed the slice.
func (c *Syncer) sliceChanged(services []Key, event sliceEvent) {
	for _, key := range services {
		c.source.changed(key)
		owned := c.shards.ownerOf(key)
		if owned == nil {
			continue
		}
		next, contender := owned.sliceChanged(key, event, time.Now())
		if next.needed {
			c.shards.enqueue(key, next.priority, max(next.delay, c.cfg.SliceEventDelay))
		}
		if contender != "" {
			c.reportContention(key, contender)
		}
	}
}

func (c *Syncer) reportContention(key Key, writer string) {
	object, err := c.source.object(key)
	if err != nil {
		return
	}
	c.logger.Warn("another writer keeps reverting the slices of a service", "service", key.String(), "writer", writer)
	c.metrics.contentions.Inc()
	c.deps.Decisions.Record(decisions.Decision{
		Action: decisions.SlicesContended, Object: recordedObject(key, object),
		Message: fmt.Sprintf("the writer %q keeps reverting its EndpointSlices; repairs wait longer each time", writer),
	})
	c.source.contended(object, writer)
}

// requestSyncs requests a sync of every Service that a change concerns.
func (c *Controller) requestSyncs(effect index.Effect, trigger Trigger, object metav1.Object) {
	for _, key := range effect.Services {
		if effect.Deferred {
			c.deferPods(key, effect.Pods)
			continue
		}
		c.requestSync(key, syncCause{trigger: trigger, urgency: effect.Urgency, pods: effect.Pods, changeTime: effect.Time, object: object})
	}
	for _, key := range effect.Hinted {
		c.requestSync(key, syncCause{trigger: trigger, urgency: index.Lazy, object: object})
	}
}

// deferPods makes the next sync of a Service plan some Pods too, without a sync for them alone.
func (c *Controller) deferPods(key Key, pods []Key) {
	if owned := c.shards.ownerOf(key); owned != nil {
		owned.deferPods(key, pods)
	}
}

// requestSync records why a Service needs a sync and queues the Service if its shard is held. The
// Batcher may delay a sync after changes of Pods and Nodes.
func (c *Syncer) requestSync(key Key, cause syncCause) {
	owned := c.shards.ownerOf(key)
	if owned == nil {
		return
	}
	if c.deps.Tracer.On() {
		cause.span = c.spanOfChange(owned, key, cause)
	}
	now := time.Now()
	since, urgency, wait, caughtUp := owned.addCause(key, cause, now)
	if !caughtUp {
		return
	}
	if c.deps.Batcher != nil && (cause.trigger == ByPod || cause.trigger == ByNode) {
		wait = max(wait, c.deps.Batcher.Delay(now, BatchedChange{
			Since:       since,
			Urgency:     cause.urgency,
			QueueLength: c.QueueLength(),
		}))
	}
	c.shards.enqueue(key, priorityOf(urgency), wait) // an urgent cause may be from before the shard had caught up
}
