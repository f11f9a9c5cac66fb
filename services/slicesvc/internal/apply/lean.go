package apply

import (
	"context"
	"maps"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

const (
	resource = "endpointslices"
	// The kube-apiserver answers in the first of these forms that it has.
	acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptMetadataList = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// lean asks for no more of an answer than is not known.
type lean struct {
	rest rest.Interface
}

func (l lean) create(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return answered(ctx, slice, l.rest.Post().
		UseProtobufAsDefault().
		SetHeader("Accept", acceptMetadata).
		Namespace(slice.Namespace).
		Resource(resource).
		Body(slice))
}

func (l lean) update(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return answered(ctx, slice, l.rest.Put().
		UseProtobufAsDefault().
		SetHeader("Accept", acceptMetadata).
		Namespace(slice.Namespace).
		Resource(resource).
		Name(slice.Name).
		Body(slice))
}

// answered sends a slice and returns it with the metadata it was stored with.
func answered(ctx context.Context, sent *discoveryv1.EndpointSlice, request *rest.Request) (*discoveryv1.EndpointSlice, error) {
	var answer metav1.PartialObjectMetadata
	if err := request.Do(ctx).Into(&answer); err != nil {
		return nil, err
	}
	stored := *sent
	stored.ObjectMeta = answer.ObjectMeta
	stored.ManagedFields = Newest(stored.ManagedFields)
	if maps.Equal(stored.Labels, sent.Labels) {
		stored.Labels = sent.Labels // which other slices of the Service may share
	}
	return &stored, nil
}

func (l lean) delete(ctx context.Context, slice *discoveryv1.EndpointSlice, options *metav1.DeleteOptions) error {
	return l.rest.Delete().
		UseProtobufAsDefault().
		SetHeader("Accept", acceptMetadata).
		Namespace(slice.Namespace).
		Resource(resource).
		Name(slice.Name).
		Body(options).
		Do(ctx).
		Error()
}

func (l lean) get(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error) {
	var found discoveryv1.EndpointSlice
	err := l.rest.Get().
		UseProtobufAsDefault().
		Namespace(namespace).
		Resource(resource).
		Name(name).
		Do(ctx).
		Into(&found)
	return &found, err
}

func (l lean) list(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	var page metav1.PartialObjectMetadataList
	err := l.rest.Get().
		UseProtobufAsDefault().
		SetHeader("Accept", acceptMetadataList).
		Resource(resource).
		VersionedParams(&options, scheme.ParameterCodec).
		Do(ctx).
		Into(&page)
	return &page, err
}
