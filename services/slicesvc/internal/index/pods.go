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
	// Pods are those whose endpoints in these Services may have changed, sorted.
	Pods []Key
	// Hinted are Services whose hints depend on all nodes and may have changed,
	// whatever their pods; sorted.
	Hinted []Key
	// Time is when the change came about, as its pod says; zero when it does not say,
	// as no pod says when it was removed.
	Time time.Time
	// Urgency says what waiting would cost.
	Urgency Urgency
}

// Urgency says what it costs clients that a change waits.
type Urgency uint8

// The urgencies, in order.
const (
	// Lazy changes are those nobody routes by.
	Lazy Urgency = iota
	// Normal changes prepare what clients will use, as an endpoint that is not ready yet.
	Normal
	// Urgent changes decide where clients may send traffic now.
	Urgent
)

// PutPod takes in a new or changed pod. The effect is empty when nothing changed
// that endpoints are made from.
func (x *Index) PutPod(object *corev1.Pod) Effect {
	ns := x.namespace(object.Namespace)
	entry := ns.pods[object.Name]
	if entry == nil {
		entry = &pod{
			object:   object,
			affinity: desired.AffinityOf(object),
			services: map[string]*service{},
		}
		ns.pods[object.Name] = entry
		x.share(objectKey(object)).counts.Pods++
		x.place(entry, object.Spec.NodeName)
		ns.label(entry)
		return effect(entry.services, nil, object)
	}
	before := entry.object
	changed := endpointChanged(before, object)
	x.move(entry, object)
	if maps.Equal(before.Labels, object.Labels) {
		entry.object = object
		if before.UID != object.UID {
			entry.affinity = desired.AffinityOf(object)
		}
		if !changed {
			return Effect{}
		}
		return effect(entry.services, before, object)
	}
	selecting := maps.Clone(entry.services)
	ns.unlabel(entry)
	entry.object, entry.affinity = object, desired.AffinityOf(object)
	ns.label(entry)
	return effect(union(selecting, entry.services, changed), before, object)
}

// DeletePod forgets a pod and names the Services that lose it. last is the pod as
// it was when it went, which may be newer than what was put in.
func (x *Index) DeletePod(last *corev1.Pod) Effect {
	key := objectKey(last)
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
	went := effect(affected, entry.object, last)
	went.Time = dated(entry.object, last) // when it was written last is not when it was removed
	if desired.Ready(entry.object) {
		went.Urgency = Urgent
	}
	return went
}

// Pod returns a pod; false when there is none of that name.
func (x *Index) Pod(key Key) (*corev1.Pod, bool) {
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.pods[key.Name] == nil {
		return nil, false
	}
	return ns.pods[key.Name].object, true
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

// changeTime gives when a change of a pod came about, as far as the pod says so:
// the times of what is new in it, its readiness or that it is to be deleted, and
// of these the earliest. Other changes, as of its phase or addresses, have no time
// of their own and came about when that version of the pod was written. before is
// nil for a pod that was not known.
func changeTime(before, after *corev1.Pod) time.Time {
	at := dated(before, after)
	if at.IsZero() && before != nil {
		return lastWrite(after)
	}
	return at
}

// dated gives the earliest of the times that the pod has for what is new in it.
func dated(before, after *corev1.Pod) time.Time {
	if before != nil && before.UID != after.UID {
		before = nil
	}
	at := transition(before, after)
	if asked := deletionAsked(after); !asked.IsZero() && (before == nil || before.DeletionTimestamp == nil) && (at.IsZero() || asked.Before(at)) {
		at = asked
	}
	return at
}

// transition gives the time of the pod's last change of readiness if it is new.
func transition(before, after *corev1.Pod) time.Time {
	condition := desired.ReadyCondition(after)
	if condition == nil {
		return time.Time{}
	}
	if before != nil {
		if earlier := desired.ReadyCondition(before); earlier != nil && !condition.LastTransitionTime.After(earlier.LastTransitionTime.Time) {
			return time.Time{}
		}
	}
	return condition.LastTransitionTime.Time
}

// deletionAsked gives when somebody asked for the pod's deletion: the
// deletionTimestamp is when its grace will have passed.
func deletionAsked(object *corev1.Pod) time.Time {
	if object.DeletionTimestamp == nil || object.DeletionGracePeriodSeconds == nil {
		return time.Time{}
	}
	return object.DeletionTimestamp.Add(-time.Duration(*object.DeletionGracePeriodSeconds) * time.Second)
}

// lastWrite gives when that version of the pod was written.
func lastWrite(object *corev1.Pod) time.Time {
	var newest time.Time
	for i := range object.ManagedFields {
		if at := object.ManagedFields[i].Time; at != nil && at.After(newest) {
			newest = at.Time
		}
	}
	return newest
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

// effect is what a change of a pod means for the Services it concerns; before is
// nil for a new pod.
func effect(services map[string]*service, before, after *corev1.Pod) Effect {
	if len(services) == 0 {
		return Effect{}
	}
	urgency := Normal
	keys := make([]Key, 0, len(services))
	for name, selecting := range services {
		keys = append(keys, Key{Namespace: after.Namespace, Name: name})
		if selecting.object.Spec.PublishNotReadyAddresses {
			urgency = Urgent // clients are sent to the pod, ready or not
		}
	}
	slices.SortFunc(keys, CompareKeys)
	if desired.Ready(after) || (before != nil && desired.Ready(before)) {
		urgency = Urgent
	}
	return Effect{
		Services: keys,
		Pods:     []Key{objectKey(after)},
		Time:     changeTime(before, after),
		Urgency:  urgency,
	}
}
