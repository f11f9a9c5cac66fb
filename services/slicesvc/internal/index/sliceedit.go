package index

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// SliceEdit says what differs between two versions of a slice, as far as a plan depends on it. A
// greater value includes the smaller ones.
type SliceEdit uint8

const (
	// EditedMetadata means that no plan depends on the difference: annotations, finalizers, further
	// owners.
	EditedMetadata SliceEdit = iota + 1
	// EditedForeignLabels means that only labels differ which slicesvc does not set.
	EditedForeignLabels
	// EditedContent means that endpoints, ports, the owner or the labels that slicesvc sets differ,
	// or that the slice is new.
	EditedContent
)

// editOf returns how a slice differs from its known version, which may be nil.
func (x *Index) editOf(ns *namespace, known *slice, object *discoveryv1.EndpointSlice) SliceEdit {
	if known == nil || known.object == nil || known.uid != object.UID || known.owner != x.ownerOf(object) {
		return EditedContent
	}
	before := known.object
	var service *corev1.Service
	if entry := ns.services[known.owner]; entry != nil {
		service = entry.object
	}
	switch {
	case before.AddressType != object.AddressType,
		(before.DeletionTimestamp == nil) != (object.DeletionTimestamp == nil),
		!equality.Semantic.DeepEqual(before.Endpoints, object.Endpoints),
		!equality.Semantic.DeepEqual(before.Ports, object.Ports),
		service != nil && ownedBy(before, service) != ownedBy(object, service),
		ownLabelsDiffer(service, before.Labels, object.Labels):
		return EditedContent
	case !equality.Semantic.DeepEqual(before.Labels, object.Labels):
		return EditedForeignLabels
	default:
		return EditedMetadata
	}
}

func ownedBy(slice *discoveryv1.EndpointSlice, service *corev1.Service) bool {
	for i := range slice.OwnerReferences {
		if slice.OwnerReferences[i].UID == service.UID {
			return true
		}
	}
	return false
}

// ownLabelsDiffer returns whether a label differs that slicesvc sets: one of the Service, or a
// reserved one. service may be nil.
func ownLabelsDiffer(service *corev1.Service, before, after map[string]string) bool {
	differs := func(key string) bool {
		was, had := before[key]
		is, has := after[key]
		return was != is || had != has
	}
	if differs(discoveryv1.LabelServiceName) || differs(discoveryv1.LabelManagedBy) || differs(corev1.IsHeadlessService) {
		return true
	}
	if service == nil {
		return false
	}
	for key := range service.Labels {
		if differs(key) {
			return true
		}
	}
	return false
}
