package index

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// UnmanagedReason is why slicesvc writes no slices for a Service; empty for a managed Service.
type UnmanagedReason string

// Reasons why a Service is not managed.
const (
	ExternalName UnmanagedReason = "EXTERNAL_NAME"
	NoSelector   UnmanagedReason = "NO_SELECTOR"
)

// UnmanagedReasonOf returns why a Service is not managed; empty for a managed Service.
func UnmanagedReasonOf(service *corev1.Service) UnmanagedReason {
	switch {
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return ExternalName
	case len(service.Spec.Selector) == 0:
		return NoSelector
	default:
		return ""
	}
}

// Managed returns whether slicesvc writes slices for a Service.
func Managed(service *corev1.Service) bool { return UnmanagedReasonOf(service) == "" }

// Service returns a Service; false when there is none of that name.
func (x *Index) Service(key Key) (*corev1.Service, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	_, found := x.find(key)
	if found == nil {
		return nil, false
	}
	return found.object, true
}

// Slices returns a Service with its managed slices, in no particular order, without the cost of its
// Pods; false when there is no such Service.
func (x *Index) Slices(key Key) (*corev1.Service, []*discoveryv1.EndpointSlice, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ns, found := x.find(key)
	if found == nil {
		return nil, nil, false
	}
	return found.object, ns.slicesOf(key.Name), true
}

// SlicesOf returns the managed slices that name a Service, which may not exist, in no particular
// order.
func (x *Index) SlicesOf(service Key) []*discoveryv1.EndpointSlice {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ns := x.namespaces[service.Namespace]
	if ns == nil {
		return nil
	}
	return ns.slicesOf(service.Name)
}

// SliceOwners returns the Services of a shard that managed slices name. They may not exist.
func (x *Index) SliceOwners(number int) []Key {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var keys []Key
	for within, ns := range x.namespaces {
		for name := range ns.byService {
			if key := (Key{Namespace: within, Name: name}); x.shardOf(key) == &x.shards[number] {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// SnapshotOfSlices returns a snapshot with the managed slices that name a Service, which may not
// exist, and the names that are taken.
func (x *Index) SnapshotOfSlices(service Key) Snapshot {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ns := x.namespaces[service.Namespace]
	if ns == nil {
		return Snapshot{}
	}
	return Snapshot{Slices: ns.slicesOf(service.Name), SliceNames: ns.sliceNames[SliceNamePrefix(service.Name)]}
}

// Slice returns a managed slice; nil if there is none of that name.
func (x *Index) Slice(key Key) *discoveryv1.EndpointSlice {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.slices[key.Name] == nil {
		return nil
	}
	return ns.slices[key.Name].object
}

// PutService adds or replaces a Service.
func (x *Index) PutService(object *corev1.Service) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ns := x.namespace(object.Namespace)
	entry := ns.services[object.Name]
	x.fileAuto(object)
	switch {
	case entry == nil:
		entry = &service{object: object}
		ns.services[object.Name] = entry
		x.fileInShard(objectKey(object))
	case selectorOf(entry.object).equal(selectorOf(object)):
		entry.object = object
		return
	default:
		x.unlink(ns, entry)
		entry.object = object
	}
	x.link(ns, entry)
}

// DeleteService removes a Service. Its slices stay until their own deletion is shown: the garbage
// collector deletes them in the cluster.
func (x *Index) DeleteService(key Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ns, entry := x.find(key)
	if entry == nil {
		return
	}
	x.unlink(ns, entry)
	delete(ns.services, key.Name)
	delete(x.auto, key)
	x.unfileFromShard(key)
	x.prune(key.Namespace)
}

// fileAuto keeps the set of Services whose hints depend on all Nodes.
func (x *Index) fileAuto(object *corev1.Service) {
	if Managed(object) && hints.ModeOf(object) == hints.Auto {
		x.auto[objectKey(object)] = struct{}{}
		return
	}
	delete(x.auto, objectKey(object))
}

func (x *Index) fileInShard(key Key) {
	own := x.shardOf(key)
	own.services[key] = struct{}{}
	own.counts.Services++
}

func (x *Index) unfileFromShard(key Key) {
	own := x.shardOf(key)
	delete(own.services, key)
	own.counts.Services--
}

// link files a Service under its anchor and finds its Pods.
func (x *Index) link(ns *namespace, entry *service) {
	entry.pods = map[*podEntry]struct{}{}
	selector := selectorOf(entry.object)
	if len(selector) == 0 {
		return
	}
	x.shardOf(objectKey(entry.object)).counts.Managed++
	pairs := selector.pairs()
	entry.anchor = ns.lightestAnchor(pairs)
	file(ns.anchors, entry.anchor, entry.object.Name, entry)
	for pod := range ns.byPair[ns.rarest(pairs)] {
		if selector.matches(pod.labels) {
			entry.pods[pod] = struct{}{}
			pod.services = append(pod.services, entry)
		}
	}
}

// unlink undoes link.
func (x *Index) unlink(ns *namespace, entry *service) {
	if len(selectorOf(entry.object)) == 0 {
		return
	}
	x.shardOf(objectKey(entry.object)).counts.Managed--
	unfile(ns.anchors, entry.anchor, entry.object.Name)
	for pod := range entry.pods {
		pod.services = slices.DeleteFunc(pod.services, func(s *service) bool { return s == entry })
	}
}

// lightestAnchor picks the pair with the fewest Services, so that a label which all Pods of a
// namespace share does not lead each of them to all Services.
func (ns *namespace) lightestAnchor(pairs []pair) pair {
	return slices.MinFunc(pairs, func(a, b pair) int { return len(ns.anchors[a]) - len(ns.anchors[b]) })
}

// rarest picks the pair that the fewest Pods carry.
func (ns *namespace) rarest(pairs []pair) pair {
	return slices.MinFunc(pairs, func(a, b pair) int { return len(ns.byPair[a]) - len(ns.byPair[b]) })
}

// selector has the labels that a Pod must have, all of them.
type selector map[string]string

// selectorOf returns the selector of a managed Service, and nil for any other.
func selectorOf(object *corev1.Service) selector {
	if !Managed(object) {
		return nil
	}
	return object.Spec.Selector
}

func (s selector) equal(other selector) bool { return maps.Equal(s, other) }

func (s selector) matches(labels map[string]string) bool {
	for key, value := range s {
		if has, ok := labels[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// pairs returns the selector's pairs in order of their keys.
func (s selector) pairs() []pair {
	pairs := make([]pair, 0, len(s))
	for _, key := range slices.Sorted(maps.Keys(s)) {
		pairs = append(pairs, pair{key: key, value: s[key]})
	}
	return pairs
}
