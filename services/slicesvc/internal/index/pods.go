package index

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// PutPod adds or replaces a Pod. The effect is empty when nothing changed that endpoints are made
// from.
func (x *Index) PutPod(object *corev1.Pod) Effect {
	x.mu.Lock()
	defer x.mu.Unlock()
	ns := x.namespace(object.Namespace)
	entry := ns.pods[object.Name]
	if entry == nil {
		entry = &podEntry{Pod: NewPod(object), affinity: desired.AffinityOf(object)}
		ns.pods[object.Name] = entry
		x.shardOf(entry.key()).counts.Pods++
		x.fileUnderNode(entry)
		ns.fileUnderLabels(entry)
		return podEffect(entry.services, nil, entry.Pod, datedChange(nil, entry.Pod))
	}
	before, next := entry.Pod, NewPod(object)
	changed, at := endpointChanged(before, next), changeTime(before, next, object)
	if maps.Equal(before.labels, next.labels) {
		x.replacePod(entry, next)
		if before.uid != next.uid {
			entry.affinity = desired.AffinityOf(object)
		}
		if !changed {
			return Effect{}
		}
		return podEffect(entry.services, before, next, at)
	}
	selecting := slices.Clone(entry.services)
	ns.unfileFromLabels(entry)
	x.replacePod(entry, next)
	entry.affinity = desired.AffinityOf(object)
	ns.fileUnderLabels(entry)
	return podEffect(union(selecting, entry.services, changed), before, next, at)
}

// DeletePod removes a Pod and names the Services that lose it. last is the last version of the Pod,
// which may be newer than the version that was put in.
func (x *Index) DeletePod(last *corev1.Pod) Effect {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := objectKey(last)
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.pods[key.Name] == nil {
		return Effect{}
	}
	entry := ns.pods[key.Name]
	affected := slices.Clone(entry.services)
	x.unfileFromNode(entry)
	ns.unfileFromLabels(entry)
	delete(ns.pods, key.Name)
	x.shardOf(key).counts.Pods--
	x.prune(key.Namespace)
	gone := NewPod(last)
	effect := podEffect(affected, entry.Pod, gone, datedChange(entry.Pod, gone))
	if entry.isReady() {
		effect.Urgency = Urgent
	}
	return effect
}

// fileUnderLabels files a Pod under its labels and joins it with the Services that select it.
func (ns *namespace) fileUnderLabels(entry *podEntry) {
	for key, value := range entry.labels {
		under := pair{key: key, value: value}
		file(ns.byPair, under, entry, struct{}{})
		for _, candidate := range ns.anchors[under] {
			if selectorOf(candidate.object).matches(entry.labels) {
				candidate.pods[entry] = struct{}{}
				entry.services = append(entry.services, candidate)
			}
		}
	}
}

// unfileFromLabels undoes fileUnderLabels.
func (ns *namespace) unfileFromLabels(entry *podEntry) {
	for key, value := range entry.labels {
		unfile(ns.byPair, pair{key: key, value: value}, entry)
	}
	for _, selecting := range entry.services {
		delete(selecting.pods, entry)
	}
	entry.services = nil
}

// replacePod sets the next version of a Pod, which may be bound to another Node.
func (x *Index) replacePod(entry *podEntry, next *Pod) {
	if entry.node == next.node {
		entry.Pod = next
		return
	}
	x.unfileFromNode(entry)
	entry.Pod = next
	x.fileUnderNode(entry)
}

func (x *Index) fileUnderNode(entry *podEntry) {
	if entry.node == "" {
		return
	}
	bound := x.nodes[entry.node]
	if bound == nil {
		bound = &node{pods: map[*podEntry]struct{}{}}
		x.nodes[entry.node] = bound
	}
	bound.pods[entry] = struct{}{}
}

func (x *Index) unfileFromNode(entry *podEntry) {
	if bound := x.nodes[entry.node]; bound != nil {
		delete(bound.pods, entry)
		x.pruneNode(entry.node)
	}
}
