package kube

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
)

// lazySlice is a slice of which only the metadata may be decoded.
type lazySlice struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// decoded is the slice if the client decoded it. Otherwise encoded is its message, and masks
	// has the field mask to decode it with.
	decoded *discoveryv1.EndpointSlice
	encoded []byte
	masks   *kindMasks
}

// lazySliceOf returns false for an object that is no slice.
func lazySliceOf(object any) (*lazySlice, bool) {
	switch typed := object.(type) {
	case *lazySlice:
		return typed, true
	case *discoveryv1.EndpointSlice:
		return &lazySlice{ObjectMeta: typed.ObjectMeta, decoded: typed}, true
	default:
		return nil, false
	}
}

// decode returns the stripped slice.
func (l *lazySlice) decode() (*discoveryv1.EndpointSlice, error) {
	if l.decoded != nil {
		return stripSlice(l.decoded), nil
	}
	slice := &discoveryv1.EndpointSlice{}
	mask := l.masks.slice
	if l.Labels[discoveryv1.LabelManagedBy] == mirror.ManagedBy {
		mask = l.masks.mirroredSlice
	}
	if !l.masks.decode(l.encoded, mask, slice) {
		return nil, fmt.Errorf("endpointslice %s/%s of version %s cannot be decoded", l.Namespace, l.Name, l.ResourceVersion)
	}
	return stripSlice(slice), nil
}

func (l *lazySlice) DeepCopyObject() runtime.Object {
	clone := *l
	l.DeepCopyInto(&clone.ObjectMeta)
	clone.decoded, clone.encoded = l.decoded.DeepCopy(), slices.Clone(l.encoded)
	return &clone
}

// lazyPod is a Pod of which only the key and the version are decoded. A list of lazyPods takes a
// fifth of the memory of a list of Pods.
type lazyPod struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// encoded is the message with the used fields of the Pod.
	encoded []byte
}

// podOf decodes a Pod if the client did not, and returns false for an object that is no Pod. The
// caller owns the returned struct, but not what it points to.
func podOf(object any) (*corev1.Pod, bool) {
	switch typed := object.(type) {
	case *corev1.Pod:
		pod := *typed
		return &pod, true
	case *lazyPod:
		pod := &corev1.Pod{}
		return pod, pod.Unmarshal(typed.encoded) == nil
	default:
		return nil, false
	}
}

func (l *lazyPod) DeepCopyObject() runtime.Object {
	clone := *l
	l.DeepCopyInto(&clone.ObjectMeta)
	clone.encoded = slices.Clone(l.encoded)
	return &clone
}

// lazyEndpoints is an Endpoints object of which only the metadata may be decoded: the Endpoints of
// a Service with a selector are as large as its slices, and are not mirrored.
type lazyEndpoints struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// decoded is the object if the client decoded it. Otherwise encoded is its message.
	decoded *corev1.Endpoints
	encoded []byte
	masks   *kindMasks
}

// lazyEndpointsOf returns false for an object that is no Endpoints object.
func lazyEndpointsOf(object any) (*lazyEndpoints, bool) {
	switch typed := object.(type) {
	case *lazyEndpoints:
		return typed, true
	case *corev1.Endpoints:
		return &lazyEndpoints{ObjectMeta: typed.ObjectMeta, decoded: typed}, true
	default:
		return nil, false
	}
}

// decode returns the stripped object.
func (l *lazyEndpoints) decode() (*corev1.Endpoints, error) {
	if l.decoded != nil {
		return stripEndpoints(l.decoded), nil
	}
	decoded := &corev1.Endpoints{}
	if !l.masks.decode(l.encoded, l.masks.endpoints, decoded) {
		return nil, fmt.Errorf("endpoints %s/%s of version %s cannot be decoded", l.Namespace, l.Name, l.ResourceVersion)
	}
	return stripEndpoints(decoded), nil
}

func (l *lazyEndpoints) DeepCopyObject() runtime.Object {
	clone := *l
	l.DeepCopyInto(&clone.ObjectMeta)
	clone.decoded, clone.encoded = l.decoded.DeepCopy(), slices.Clone(l.encoded)
	return &clone
}
