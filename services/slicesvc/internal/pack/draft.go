package pack

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// draft is a slice in the making.
type draft struct {
	// from is the slice that exists; nil for a new one.
	from        *discoveryv1.EndpointSlice
	addressType discoveryv1.AddressType
	ports       []discoveryv1.EndpointPort
	// key stands for ports in the name of a new slice.
	key       desired.PortKey
	endpoints []discoveryv1.Endpoint

	reason                  Reason
	added, removed, changed int
	// moved says that endpoints or their pods were taken out to go elsewhere.
	moved bool
}

// touched reports whether the endpoints differ from those of the slice that exists.
func (d *draft) touched() bool { return d.added+d.removed+d.changed > 0 }

// unchanged reports whether the draft of a slice that exists has the very endpoints
// of that slice, in whatever order, although some were taken out and put in.
func (d *draft) unchanged() bool {
	if d.changed > 0 || d.added != d.removed {
		return false
	}
	there := make(map[desired.Endpoint]struct{}, len(d.from.Endpoints))
	for i := range d.from.Endpoints {
		if found, exact := desired.Observe(&d.from.Endpoints[i]); exact {
			there[found] = struct{}{}
		}
	}
	return !slices.ContainsFunc(d.endpoints, func(endpoint discoveryv1.Endpoint) bool {
		found, _ := desired.Observe(&endpoint)
		_, ok := there[found]
		return !ok
	})
}

// take adds endpoints up to the limit and returns the others.
func (d *draft) take(endpoints []desired.Endpoint, limit int) []desired.Endpoint {
	n := max(min(limit-len(d.endpoints), len(endpoints)), 0)
	for i := range n {
		d.endpoints = append(d.endpoints, endpoints[i].Object())
	}
	d.added += n
	if d.from != nil && d.touched() {
		d.reason = EndpointsChanged
	}
	return endpoints[n:]
}

// drafts are the writes for a part of a Service.
type drafts struct {
	create, update, delete []*draft
}

func (d *drafts) append(other drafts) {
	d.create = append(d.create, other.create...)
	d.update = append(d.update, other.update...)
	d.delete = append(d.delete, other.delete...)
}

func (d *drafts) drop(slice *discoveryv1.EndpointSlice, reason Reason) {
	d.delete = append(d.delete, &draft{
		from:        slice,
		addressType: slice.AddressType,
		ports:       slice.Ports,
		reason:      reason,
		removed:     len(slice.Endpoints),
	})
}

// placeholder keeps one empty slice without ports for a family that would have
// none. If one of the slices about to be deleted is just that, it stays.
func (d *drafts) placeholder(labels labeling, addressType discoveryv1.AddressType) {
	for i, dropped := range d.delete {
		if labels.isPlaceholder(dropped.from) {
			d.delete = slices.Delete(d.delete, i, i+1)
			return
		}
	}
	d.create = append(d.create, &draft{
		addressType: addressType,
		ports:       []discoveryv1.EndpointPort{},
		reason:      Placeholder,
	})
}

// recycle turns creations into updates of slices that would be deleted: one
// write instead of two, and no new object. Slices of an earlier Service are
// left to be deleted, for the garbage collector is after them too; so are those
// whose endpoints move, for these must have arrived before.
func (d *drafts) recycle(service *corev1.Service) {
	var still []*draft
	for _, dropped := range d.delete {
		if len(d.create) == 0 || !owned(dropped.from, service) || dropped.reason == Compacted {
			still = append(still, dropped)
			continue
		}
		reused := d.create[0]
		d.create = d.create[1:]
		reused.from, reused.reason = dropped.from, Recycled
		reused.removed = dropped.removed
		d.update = append(d.update, reused)
	}
	d.delete = still
}

// markMoved finds the emptied slices whose pods have endpoints elsewhere, at another
// address or under another hostname: they must be there before the slice goes.
func (d *drafts) markMoved(family desired.Family) {
	var wanted map[types.UID]struct{} // made when it is needed, which is rare
	for _, dropped := range d.delete {
		if dropped.reason != Emptied {
			continue
		}
		if wanted == nil {
			wanted = podsOf(family)
		}
		dropped.moved = slices.ContainsFunc(dropped.from.Endpoints, func(gone discoveryv1.Endpoint) bool {
			if gone.TargetRef == nil {
				return false
			}
			_, elsewhere := wanted[gone.TargetRef.UID]
			return elsewhere
		})
	}
}

// podsOf gives the pods that have endpoints in a family.
func podsOf(family desired.Family) map[types.UID]struct{} {
	pods := map[types.UID]struct{}{}
	for _, group := range family.Groups {
		for i := range group.Endpoints {
			pods[group.Endpoints[i].PodUID] = struct{}{}
		}
	}
	return pods
}

// plan renders the drafts in the order in which they are written.
func (d *drafts) plan(in Input, naming *naming) Plan {
	labels := newLabeling(in.Service, in.ManagedBy)
	changes := make([]Change, 0, len(d.create)+len(d.update)+len(d.delete))
	for _, draft := range d.create {
		changes = append(changes, draft.change(Create, draft.fresh(in, labels, naming)))
	}
	slices.SortStableFunc(d.update, byExisting)
	slices.SortStableFunc(d.update, movedLast)
	for _, draft := range d.update {
		changes = append(changes, draft.change(Update, draft.rewritten(in, labels)))
	}
	slices.SortStableFunc(d.delete, byExisting)
	for _, draft := range d.delete {
		changes = append(changes, draft.change(Delete, draft.from))
	}
	return Plan{Changes: changes}
}

func (d *draft) change(verb Verb, slice *discoveryv1.EndpointSlice) Change {
	return Change{
		Verb:    verb,
		Slice:   slice,
		Reason:  d.reason,
		Added:   d.added,
		Removed: d.removed,
		Changed: d.changed,
		Moved:   d.moved,
	}
}

// fresh renders a slice that does not exist yet.
func (d *draft) fresh(in Input, labels labeling, naming *naming) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:            naming.next(d.addressType, d.key),
			Namespace:       in.Service.Namespace,
			Labels:          labels.wanted(),
			Annotations:     annotated(nil, in.ChangeTime),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(in.Service, corev1.SchemeGroupVersion.WithKind("Service"))},
		},
		AddressType: d.addressType,
		Endpoints:   nonNil(d.endpoints),
		Ports:       d.ports,
	}
}

// rewritten renders the next version of a slice that exists. What others put
// there and we do not own stays: annotations, finalizers, further owners.
func (d *draft) rewritten(in Input, labels labeling) *discoveryv1.EndpointSlice {
	next := *d.from
	next.Labels = labels.wanted()
	next.Annotations = annotated(d.from.Annotations, in.ChangeTime)
	next.Endpoints = nonNil(d.endpoints)
	next.Ports = d.ports
	return &next
}

// annotated copies the annotations with the time of the change, or without any
// when it is not known: an old time would make a reader of the annotation
// believe that the change took that long.
func annotated(existing map[string]string, changeTime time.Time) map[string]string {
	annotations := maps.Clone(existing)
	if changeTime.IsZero() {
		delete(annotations, corev1.EndpointsLastChangeTriggerTime)
		return annotations
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[corev1.EndpointsLastChangeTriggerTime] = changeTime.UTC().Format(time.RFC3339Nano)
	return annotations
}

func nonNil(endpoints []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	if endpoints == nil {
		return []discoveryv1.Endpoint{}
	}
	return endpoints
}

// movedLast puts slices that endpoints leave behind those that they may have gone to.
func movedLast(a, b *draft) int {
	switch {
	case a.moved == b.moved:
		return 0
	case b.moved:
		return -1
	default:
		return 1
	}
}

func byExisting(a, b *draft) int {
	switch {
	case a.from.Name < b.from.Name:
		return -1
	case a.from.Name > b.from.Name:
		return 1
	default:
		return 0
	}
}
