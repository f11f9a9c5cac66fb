package index

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// Effect is what a change of a pod or node means for Services.
type Effect struct {
	// Services are those whose endpoints may have changed, sorted.
	Services []Key
	// Time is when the change came about, as its pod says; zero when it does not say.
	Time time.Time
}

// PutPod takes in a new or changed pod. The effect is empty when nothing changed
// that endpoints are made from.
func (x *Index) PutPod(object *corev1.Pod) Effect {
	ns := x.namespace(object.Namespace)
	entry := ns.pods[object.Name]
	if entry == nil {
		entry = &pod{object: object, services: map[string]*service{}}
		ns.pods[object.Name] = entry
		x.share(objectKey(object)).counts.Pods++
		x.place(entry, object.Spec.NodeName)
		ns.label(entry)
		return effect(object.Namespace, entry.services, transition(nil, object))
	}

	before := entry.object
	changed := endpointChanged(before, object)
	x.move(entry, object)
	if maps.Equal(before.Labels, object.Labels) {
		entry.object = object
		if !changed {
			return Effect{}
		}
		return effect(object.Namespace, entry.services, transition(before, object))
	}

	selecting := maps.Clone(entry.services)
	ns.unlabel(entry)
	entry.object = object
	ns.label(entry)
	affected := union(selecting, entry.services, changed)
	return effect(object.Namespace, affected, transition(before, object))
}

// DeletePod forgets a pod and names the Services that lose it.
func (x *Index) DeletePod(key Key) Effect {
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.pods[key.Name] == nil {
		return Effect{}
	}
	entry := ns.pods[key.Name]
	affected := maps.Clone(entry.services)
	x.displace(entry)
	ns.unlabel(entry)
	delete(ns.pods, key.Name)
	x.share(key).counts.Pods--
	x.prune(key.Namespace)
	return effect(key.Namespace, affected, time.Time{})
}

// label files a pod under its labels and joins it with the Services that select it.
func (ns *namespace) label(entry *pod) {
	for key, value := range entry.object.Labels {
		under := pair{key: key, value: value}
		file(ns.byPair, under, entry.object.Name, entry)
		for name, candidate := range ns.anchors[under] {
			if selectorOf(candidate.object).matches(entry.object.Labels) {
				candidate.pods[entry.object.Name] = entry
				entry.services[name] = candidate
			}
		}
	}
}

// unlabel undoes label.
func (ns *namespace) unlabel(entry *pod) {
	for key, value := range entry.object.Labels {
		unfile(ns.byPair, pair{key: key, value: value}, entry.object.Name)
	}
	for name, selecting := range entry.services {
		delete(selecting.pods, entry.object.Name)
		delete(entry.services, name)
	}
}

// move files a pod anew when its next version is bound to another node.
func (x *Index) move(entry *pod, next *corev1.Pod) {
	if entry.object.Spec.NodeName == next.Spec.NodeName {
		return
	}
	x.displace(entry)
	x.place(entry, next.Spec.NodeName)
}

// place files a pod under a node, displace takes it away from its node.
func (x *Index) place(entry *pod, name string) {
	if name == "" {
		return
	}
	bound := x.nodes[name]
	if bound == nil {
		bound = &node{pods: map[Key]*pod{}}
		x.nodes[name] = bound
	}
	bound.pods[objectKey(entry.object)] = entry
}

func (x *Index) displace(entry *pod) {
	name := entry.object.Spec.NodeName
	if bound := x.nodes[name]; bound != nil {
		delete(bound.pods, objectKey(entry.object))
		x.pruneNode(name)
	}
}

// endpointChanged reports whether anything but the labels differs that an
// endpoint is made from. Ports count although they cannot change while a pod
// lives: a pod may have been deleted and made again under its name unseen.
func endpointChanged(a, b *corev1.Pod) bool {
	return a.UID != b.UID ||
		a.Spec.NodeName != b.Spec.NodeName ||
		a.Spec.Hostname != b.Spec.Hostname ||
		a.Spec.Subdomain != b.Spec.Subdomain ||
		(a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
		desired.Finished(a) != desired.Finished(b) ||
		desired.Ready(a) != desired.Ready(b) ||
		!slices.Equal(a.Status.PodIPs, b.Status.PodIPs)
}

// transition gives the time of the pod's last change of readiness if it is new.
func transition(before, after *corev1.Pod) time.Time {
	condition := desired.ReadyCondition(after)
	if condition == nil {
		return time.Time{}
	}
	if before != nil && before.UID == after.UID {
		if earlier := desired.ReadyCondition(before); earlier != nil && !condition.LastTransitionTime.After(earlier.LastTransitionTime.Time) {
			return time.Time{}
		}
	}
	return condition.LastTransitionTime.Time
}

// union merges the Services that select a pod before and after its labels
// changed. A Service that selects it both times is left out unless the pod
// itself changed too.
func union(before, after map[string]*service, changed bool) map[string]*service {
	merged := map[string]*service{}
	for name, entry := range before {
		if changed || after[name] == nil {
			merged[name] = entry
		}
	}
	for name, entry := range after {
		if changed || before[name] == nil {
			merged[name] = entry
		}
	}
	return merged
}

func effect(namespace string, services map[string]*service, at time.Time) Effect {
	if len(services) == 0 {
		return Effect{}
	}
	keys := make([]Key, 0, len(services))
	for name := range services {
		keys = append(keys, Key{Namespace: namespace, Name: name})
	}
	slices.SortFunc(keys, CompareKeys)
	return Effect{Services: keys, Time: at}
}
