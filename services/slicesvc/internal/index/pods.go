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
	ns, next := x.namespace(object.Namespace), keep(object)
	entry := ns.pods[object.Name]
	if entry == nil {
		entry = &pod{kept: next, affinity: desired.AffinityOf(object)}
		ns.pods[object.Name] = entry
		x.share(next.key()).counts.Pods++
		x.place(entry)
		ns.label(entry)
		return effect(entry.services, nil, next, dated(nil, next))
	}
	before := entry.kept
	changed, at := endpointChanged(before, next), changeTime(before, next, object)
	if maps.Equal(before.labels, next.labels) {
		x.replacePod(entry, next)
		if before.uid != next.uid {
			entry.affinity = desired.AffinityOf(object)
		}
		if !changed {
			return Effect{}
		}
		return effect(entry.services, before, next, at)
	}
	selecting := slices.Clone(entry.services)
	ns.unlabel(entry)
	x.replacePod(entry, next)
	entry.affinity = desired.AffinityOf(object)
	ns.label(entry)
	return effect(union(selecting, entry.services, changed), before, next, at)
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
	affected := slices.Clone(entry.services)
	x.displace(entry)
	ns.unlabel(entry)
	delete(ns.pods, key.Name)
	x.share(key).counts.Pods--
	x.prune(key.Namespace)
	gone := keep(last)
	went := effect(affected, entry.kept, gone, dated(entry.kept, gone))
	if entry.isReady() {
		went.Urgency = Urgent
	}
	return went
}

// Pod returns a pod, with the fields that endpoints are made from; false when
// there is none of that name.
func (x *Index) Pod(key Key) (*corev1.Pod, bool) {
	ns := x.namespaces[key.Namespace]
	if ns == nil || ns.pods[key.Name] == nil {
		return nil, false
	}
	return ns.pods[key.Name].object(), true
}

// label files a pod under its labels and joins it with the Services that select it.
func (ns *namespace) label(entry *pod) {
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

// unlabel undoes label.
func (ns *namespace) unlabel(entry *pod) {
	for key, value := range entry.labels {
		unfile(ns.byPair, pair{key: key, value: value}, entry)
	}
	for _, selecting := range entry.services {
		delete(selecting.pods, entry)
	}
	entry.services = nil
}

// replacePod takes in the next version of a pod, and files it anew when that is
// bound to another node.
func (x *Index) replacePod(entry *pod, next *kept) {
	if entry.node == next.node {
		entry.kept = next
		return
	}
	x.displace(entry)
	entry.kept = next
	x.place(entry)
}

// place files a pod under its node, displace takes it away from there.
func (x *Index) place(entry *pod) {
	if entry.node == "" {
		return
	}
	bound := x.nodes[entry.node]
	if bound == nil {
		bound = &node{pods: map[*pod]struct{}{}}
		x.nodes[entry.node] = bound
	}
	bound.pods[entry] = struct{}{}
}

func (x *Index) displace(entry *pod) {
	if bound := x.nodes[entry.node]; bound != nil {
		delete(bound.pods, entry)
		x.pruneNode(entry.node)
	}
}

// endpointChanged reports whether anything but the labels differs that an
// endpoint is made from. Ports count although they cannot change while a pod
// lives: a pod may have been deleted and made again under its name unseen.
func endpointChanged(a, b *kept) bool {
	return a.uid != b.uid ||
		a.node != b.node ||
		a.hostname != b.hostname ||
		a.subdomain != b.subdomain ||
		(a.ending == nil) != (b.ending == nil) ||
		a.finished() != b.finished() ||
		a.isReady() != b.isReady() ||
		!slices.Equal(a.addresses, b.addresses)
}

// changeTime gives when a change of a pod to what it is now came about, as far as
// the pod says so: the times of what is new in it, its readiness or that it is to
// be deleted, and of these the earliest. Other changes, as of its phase or
// addresses, have no time of their own and came about when that version of the pod
// was written.
func changeTime(before, after *kept, object *corev1.Pod) time.Time {
	if at := dated(before, after); !at.IsZero() {
		return at
	}
	return lastWrite(object)
}

// dated gives the earliest of the times that the pod has for what is new in it.
// before is nil for a pod that was not known.
func dated(before, after *kept) time.Time {
	if before != nil && before.uid != after.uid {
		before = nil
	}
	at := transition(before, after)
	if asked := deletionAsked(after); !asked.IsZero() && (before == nil || before.ending == nil) && (at.IsZero() || asked.Before(at)) {
		at = asked
	}
	return at
}

// transition gives the time of the pod's last change of readiness if it is new.
func transition(before, after *kept) time.Time {
	switch {
	case after.ready == nil:
		return time.Time{}
	case before != nil && before.ready != nil && !after.ready.since.After(before.ready.since.Time):
		return time.Time{}
	default:
		return after.ready.since.Time
	}
}

// deletionAsked gives when somebody asked for the pod's deletion: the
// deletionTimestamp is when its grace will have passed.
func deletionAsked(pod *kept) time.Time {
	if pod.ending == nil || pod.ending.grace == nil {
		return time.Time{}
	}
	return pod.ending.at.Add(-time.Duration(*pod.ending.grace) * time.Second)
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
func union(before, after []*service, changed bool) []*service {
	var merged []*service
	for _, entry := range before {
		if changed || !slices.Contains(after, entry) {
			merged = append(merged, entry)
		}
	}
	for _, entry := range after {
		if !slices.Contains(before, entry) {
			merged = append(merged, entry)
		}
	}
	return merged
}

// effect is what a change of a pod, that came about at a time, means for the
// Services it concerns; before is nil for a new pod.
func effect(services []*service, before, after *kept, at time.Time) Effect {
	if len(services) == 0 {
		return Effect{}
	}
	urgency := Normal
	keys := make([]Key, 0, len(services))
	for _, selecting := range services {
		keys = append(keys, objectKey(selecting.object))
		if selecting.object.Spec.PublishNotReadyAddresses {
			urgency = Urgent // clients are sent to the pod, ready or not
		}
	}
	slices.SortFunc(keys, CompareKeys)
	if after.isReady() || (before != nil && before.isReady()) {
		urgency = Urgent
	}
	return Effect{
		Services: keys,
		Pods:     []Key{after.key()},
		Time:     at,
		Urgency:  urgency,
	}
}
