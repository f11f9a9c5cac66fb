package kube

import (
	"context"
	"maps"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

const (
	sliceResource = "endpointslices"
	// The kube-apiserver answers in the first of these forms that it has.
	acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptMetadataList = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// lean asks for no more of an answer than is not known.
type lean struct {
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// NewMetadataOnlyRequests returns SliceRequests to the kube-apiserver of cfg that ask for no more of an
// answer than is not known. It contacts nobody.
func NewMetadataOnlyRequests(cfg *rest.Config) (SliceRequests, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	client, err := newRESTClient(cfg, discoveryv1.SchemeGroupVersion, newSerializer(scheme))
	if err != nil {
		return nil, err
	}
	return lean{rest: client, parameters: runtime.NewParameterCodec(scheme)}, nil
}

func (l lean) CreateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return answered(ctx, slice, l.rest.Post().
		UseProtobufAsDefault().
		SetHeader("Accept", acceptMetadata).
		Namespace(slice.Namespace).
		Resource(sliceResource).
		Body(slice))
}

func (l lean) UpdateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return answered(ctx, slice, l.rest.Put().
		UseProtobufAsDefault().
		SetHeader("Accept", acceptMetadata).
		Namespace(slice.Namespace).
		Resource(sliceResource).
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

func (l lean) DeleteSlice(ctx context.Context, slice *discoveryv1.EndpointSlice, options *metav1.DeleteOptions) error {
	return l.rest.Delete().
		UseProtobufAsDefault().
		SetHeader("Accept", acceptMetadata).
		Namespace(slice.Namespace).
		Resource(sliceResource).
		Name(slice.Name).
		Body(options).
		Do(ctx).
		Error()
}

func (l lean) GetSlice(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error) {
	var found discoveryv1.EndpointSlice
	err := l.rest.Get().
		UseProtobufAsDefault().
		Namespace(namespace).
		Resource(sliceResource).
		Name(name).
		Do(ctx).
		Into(&found)
	return &found, err
}

func (l lean) ListSlices(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	var page metav1.PartialObjectMetadataList
	err := l.rest.Get().
		UseProtobufAsDefault().
		SetHeader("Accept", acceptMetadataList).
		Resource(sliceResource).
		VersionedParams(&options, l.parameters).
		Do(ctx).
		Into(&page)
	return &page, err
}
