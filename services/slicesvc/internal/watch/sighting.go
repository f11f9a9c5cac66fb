package watch

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// sighting is a slice of which the metadata is known and the rest may not be
// decoded yet.
type sighting struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// whole is the slice if it came decoded. Else undecoded is the message it came
	// as, and wanted what is to be decoded of it.
	whole     *discoveryv1.EndpointSlice
	undecoded []byte
	wanted    fields
}

// sightingOf makes one of an object that a client returned; false when it is no slice.
func sightingOf(object any) (*sighting, bool) {
	switch typed := object.(type) {
	case *sighting:
		return typed, true
	case *discoveryv1.EndpointSlice:
		return &sighting{ObjectMeta: typed.ObjectMeta, whole: typed}, true
	default:
		return nil, false
	}
}

// slice returns the whole of it, decoded if it was not.
func (s *sighting) slice() (*discoveryv1.EndpointSlice, error) {
	if s.whole != nil {
		return stripSlice(s.whole), nil
	}
	slice := &discoveryv1.EndpointSlice{}
	if !decode(s.undecoded, s.wanted, slice) {
		return nil, fmt.Errorf("endpointslice %s/%s of version %s cannot be decoded", s.Namespace, s.Name, s.ResourceVersion)
	}
	return stripSlice(slice), nil
}

// DeepCopyObject makes a runtime.Object of a sighting.
func (s *sighting) DeepCopyObject() runtime.Object {
	again := *s
	s.DeepCopyInto(&again.ObjectMeta)
	again.whole, again.undecoded = s.whole.DeepCopy(), slices.Clone(s.undecoded)
	return &again
}
