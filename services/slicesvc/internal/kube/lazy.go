package kube

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
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
	// as, and wanted has what is to be decoded of it.
	whole     *discoveryv1.EndpointSlice
	undecoded []byte
	wanted    *trees
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
	if !s.wanted.decode(s.undecoded, s.wanted.slice, slice) {
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

// podSighting is a pod of which only the names, the UID and the version are
// decoded: a list of these takes a fifth of the memory of a list of pods.
type podSighting struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// undecoded is the message of what is used of the pod.
	undecoded []byte
}

// podOf reads a pod that a client returned, decoded or not; false when it is none.
// What it returns is nobody else's, but for what it points to.
func podOf(object any) (*corev1.Pod, bool) {
	switch typed := object.(type) {
	case *corev1.Pod:
		pod := *typed
		return &pod, true
	case *podSighting:
		pod := &corev1.Pod{}
		return pod, pod.Unmarshal(typed.undecoded) == nil
	default:
		return nil, false
	}
}

// DeepCopyObject makes a runtime.Object of a podSighting.
func (s *podSighting) DeepCopyObject() runtime.Object {
	again := *s
	s.DeepCopyInto(&again.ObjectMeta)
	again.undecoded = slices.Clone(s.undecoded)
	return &again
}
