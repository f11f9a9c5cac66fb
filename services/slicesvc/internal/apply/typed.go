package apply

import (
	"context"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
)

// typed makes the requests by a typed client.
type typed struct {
	getter discoveryclient.EndpointSlicesGetter
}

func (t typed) create(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return t.getter.EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{})
}

func (t typed) update(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return t.getter.EndpointSlices(slice.Namespace).Update(ctx, slice, metav1.UpdateOptions{})
}

func (t typed) delete(ctx context.Context, slice *discoveryv1.EndpointSlice, options *metav1.DeleteOptions) error {
	return t.getter.EndpointSlices(slice.Namespace).Delete(ctx, slice.Name, *options)
}

func (t typed) get(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error) {
	return t.getter.EndpointSlices(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (t typed) list(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	page, err := t.getter.EndpointSlices(metav1.NamespaceAll).List(ctx, options)
	if err != nil {
		return nil, err
	}
	metadata := metav1.PartialObjectMetadataList{ListMeta: page.ListMeta}
	for i := range page.Items {
		metadata.Items = append(metadata.Items, metav1.PartialObjectMetadata{ObjectMeta: page.Items[i].ObjectMeta})
	}
	return &metadata, nil
}
