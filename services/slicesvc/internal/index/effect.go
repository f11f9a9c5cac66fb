package index

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Effect is what a change of a Pod or Node means for Services.
type Effect struct {
	// Services are the Services whose endpoints may have changed, sorted.
	Services []Key
	// Pods are the Pods whose endpoints in these Services may have changed, sorted.
	Pods []Key
	// Deferred tells that the change of the Pods is no reason for a sync of the Services. Their
	// next sync must plan the Pods too.
	Deferred bool
	// Hinted are the Services whose hints depend on all Nodes and may have changed, whatever their
	// Pods; sorted.
	Hinted []Key
	// Time is when the change happened, as far as the Pod tells. It is zero when the Pod does not
	// tell: no Pod tells when it was removed.
	Time time.Time
	// Urgency is what a delay of the change costs.
	Urgency Urgency
}

// Urgency is what a delay of a change costs clients.
type Urgency uint8

const (
	// Lazy changes do not affect routing.
	Lazy Urgency = iota
	// Normal changes prepare what clients will use, for example an endpoint that is not ready yet.
	Normal
	// Urgent changes decide to which endpoints clients send traffic now.
	Urgent
)

// podEffect returns the effect of a Pod's change at the given time on some Services. before is nil
// for a new Pod.
func podEffect(services []*service, before, after *Pod, at time.Time) Effect {
	if len(services) == 0 {
		return Effect{}
	}
	urgency := Normal
	keys := make([]Key, 0, len(services))
	for _, selecting := range services {
		keys = append(keys, objectKey(selecting.object))
		if selecting.object.Spec.PublishNotReadyAddresses {
			urgency = Urgent // clients send traffic to the Pod although it is not ready
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

// endpointChanged reports whether the endpoint of a Pod may have changed for another reason than
// its labels. Containers need no comparison: their ports change only when a Pod was replaced under
// its name, and then the UID differs.
func endpointChanged(a, b *Pod) bool {
	return a.uid != b.uid ||
		a.node != b.node ||
		a.hostname != b.hostname ||
		a.subdomain != b.subdomain ||
		(a.deletion == nil) != (b.deletion == nil) ||
		a.finished() != b.finished() ||
		a.isReady() != b.isReady() ||
		!slices.Equal(a.addresses, b.addresses)
}

// changeTime returns when a Pod changed from before to after, as far as the Pod tells. A new
// readiness or deletion has a time of its own. Any other change, for example of the phase or the
// addresses, happened when that version of the Pod was written.
func changeTime(before, after *Pod, object *corev1.Pod) time.Time {
	if at := datedChange(before, after); !at.IsZero() {
		return at
	}
	return lastWrite(object)
}

// datedChange returns the earlier of the times of a new readiness and of a new deletion; zero for
// neither. before is nil for a Pod that was not known.
func datedChange(before, after *Pod) time.Time {
	if before != nil && before.uid != after.uid {
		before = nil
	}
	at := readinessChange(before, after)
	if before != nil && before.deletion != nil {
		return at
	}
	if requested := deletionRequest(after); !requested.IsZero() && (at.IsZero() || requested.Before(at)) {
		return requested
	}
	return at
}

// readinessChange returns the time of the Pod's last change of readiness if that is new, else zero.
func readinessChange(before, after *Pod) time.Time {
	switch {
	case after.ready == nil:
		return time.Time{}
	case before != nil && before.ready != nil && !after.ready.since.After(before.ready.since.Time):
		return time.Time{}
	default:
		return after.ready.since.Time
	}
}

// deletionRequest returns when the Pod's deletion was requested. The deletionTimestamp is the end
// of the grace period.
func deletionRequest(pod *Pod) time.Time {
	if pod.deletion == nil || pod.deletion.grace == nil {
		return time.Time{}
	}
	return pod.deletion.at.Add(-time.Duration(*pod.deletion.grace) * time.Second)
}

// lastWrite returns when that version of the Pod was written.
func lastWrite(object *corev1.Pod) time.Time {
	var newest time.Time
	for i := range object.ManagedFields {
		if at := object.ManagedFields[i].Time; at != nil && at.After(newest) {
			newest = at.Time
		}
	}
	return newest
}

// union merges the Services that select a Pod before and after its labels changed. A Service that
// selects it both times is included only if the Pod itself changed too.
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
