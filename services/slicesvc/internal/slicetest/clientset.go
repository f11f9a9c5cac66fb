package slicetest

import (
	"context"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubewatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Clientset implements the clients of package kube with a clientset, for example a fake one.
type Clientset struct{ kubernetes.Interface }

// Events returns the sink of Events.
func (c Clientset) Events() record.EventSink {
	return &corev1client.EventSinkImpl{Interface: c.CoreV1().Events("")}
}

// IsWatchListSemanticsUnSupported is true for fake clientsets.
func (c Clientset) IsWatchListSemanticsUnSupported() bool {
	fake, ok := c.Interface.(interface{ IsWatchListSemanticsUnSupported() bool })
	return ok && fake.IsWatchListSemanticsUnSupported()
}

// List lists all objects of a kind.
func (c Clientset) List(ctx context.Context, kind string, options metav1.ListOptions) (runtime.Object, error) {
	switch kind {
	case "services":
		return c.CoreV1().Services(metav1.NamespaceAll).List(ctx, options)
	case "pods":
		return c.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
	case "nodes":
		return c.CoreV1().Nodes().List(ctx, options)
	case "endpointslices":
		return c.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).List(ctx, options)
	case "endpoints":
		return c.CoreV1().Endpoints(metav1.NamespaceAll).List(ctx, options)
	default:
		return nil, fmt.Errorf("unexpected list of %s", kind)
	}
}

// ListMetadata lists the metadata of all objects of a kind.
func (c Clientset) ListMetadata(ctx context.Context, kind string, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	page, err := c.List(ctx, kind, options)
	if err != nil {
		return nil, err
	}
	metadata := &metav1.PartialObjectMetadataList{}
	list, err := meta.ListAccessor(page)
	if err != nil {
		return nil, err
	}
	metadata.ResourceVersion = list.GetResourceVersion()
	err = meta.EachListItem(page, func(item runtime.Object) error {
		object, err := meta.Accessor(item)
		if err == nil {
			metadata.Items = append(metadata.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
			}})
		}
		return err
	})
	return metadata, err
}

// Watch watches all objects of a kind.
func (c Clientset) Watch(ctx context.Context, kind string, options metav1.ListOptions) (kubewatch.Interface, error) {
	switch kind {
	case "services":
		return c.CoreV1().Services(metav1.NamespaceAll).Watch(ctx, options)
	case "pods":
		return c.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, options)
	case "nodes":
		return c.CoreV1().Nodes().Watch(ctx, options)
	case "endpointslices":
		return c.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).Watch(ctx, options)
	case "endpoints":
		return c.CoreV1().Endpoints(metav1.NamespaceAll).Watch(ctx, options)
	default:
		return nil, fmt.Errorf("unexpected watch of %s", kind)
	}
}

// CreateSlice creates a slice.
func (c Clientset) CreateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return c.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{})
}

// UpdateSlice updates a slice.
func (c Clientset) UpdateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return c.DiscoveryV1().EndpointSlices(slice.Namespace).Update(ctx, slice, metav1.UpdateOptions{})
}

// DeleteSlice deletes a slice.
func (c Clientset) DeleteSlice(ctx context.Context, slice *discoveryv1.EndpointSlice, options *metav1.DeleteOptions) error {
	return c.DiscoveryV1().EndpointSlices(slice.Namespace).Delete(ctx, slice.Name, *options)
}

// GetSlice reads a slice.
func (c Clientset) GetSlice(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error) {
	return c.DiscoveryV1().EndpointSlices(namespace).Get(ctx, name, metav1.GetOptions{})
}

// ListSlices lists the metadata of slices.
func (c Clientset) ListSlices(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	page, err := c.DiscoveryV1().EndpointSlices(metav1.NamespaceAll).List(ctx, options)
	if err != nil {
		return nil, err
	}
	metadata := metav1.PartialObjectMetadataList{ListMeta: page.ListMeta}
	for i := range page.Items {
		metadata.Items = append(metadata.Items, metav1.PartialObjectMetadata{ObjectMeta: page.Items[i].ObjectMeta})
	}
	return &metadata, nil
}
