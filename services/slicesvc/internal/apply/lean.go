package apply

import (
	"context"
	"maps"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kubeapi"
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
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// Lean returns Requests to the kube-apiserver of cfg that ask for no more of an
// answer than is not known. It contacts nobody.
func Lean(cfg *rest.Config) (Requests, error) {
	scheme, err := kubeapi.NewScheme()
	if err != nil {
		return nil, err
	}
	client, err := kubeapi.NewClient(cfg, discoveryv1.SchemeGroupVersion, kubeapi.Serializer(scheme))
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
		Resource(resource).
		Body(slice))
}

func (l lean) UpdateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
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

func (l lean) DeleteSlice(ctx context.Context, slice *discoveryv1.EndpointSlice, options *metav1.DeleteOptions) error {
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

func (l lean) GetSlice(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error) {
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

func (l lean) ListSlices(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	var page metav1.PartialObjectMetadataList
	err := l.rest.Get().
		UseProtobufAsDefault().
		SetHeader("Accept", acceptMetadataList).
		Resource(resource).
		VersionedParams(&options, l.parameters).
		Do(ctx).
		Into(&page)
	return &page, err
}
