package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

const (
	// requestTimeout bounds one request, so that a kube-apiserver that never answers does not block
	// a worker forever.
	requestTimeout = 30 * time.Second
	listPageSize   = 500
)

var (
	// ErrConflict is wrapped if a slice is not as the plan assumed: changed, deleted, or already
	// there. A retry needs a plan from a newer state.
	ErrConflict = errors.New("slice is not as planned from")
	// ErrNamespaceTerminating is wrapped if a slice cannot be created because its namespace is
	// being deleted. A retry does not help.
	ErrNamespaceTerminating = errors.New("namespace is terminating")
)

// RetryAfter returns the pause that a kube-apiserver asks for with a 429 or another Retry-After,
// and false if err asks for none. The pause may be 0.
func RetryAfter(err error) (pause time.Duration, requested bool) {
	seconds, requested := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second, requested || apierrors.IsTooManyRequests(err)
}

// Refused returns whether err proves that a write was not stored. After any other error the write
// may be stored, or may still be: a timeout proves nothing.
func Refused(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return errors.Is(err, ErrConflict)
	}
	code := answer.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

// Unreachable returns whether err is of a kube-apiserver that does not answer, is overloaded or
// asks for a pause. The same request may succeed later.
func Unreachable(err error) bool {
	if _, throttled := RetryAfter(err); throttled {
		return true
	}
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		code := answer.Status().Code
		return code >= http.StatusInternalServerError || code == http.StatusRequestTimeout
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded)
}

// Denied returns whether err proves that kube-apiserver does not accept a write, for example
// because of a webhook or a quota. The same write fails again until the cause is gone.
func Denied(err error) bool {
	return Refused(err) && !errors.Is(err, ErrConflict) && !Unreachable(err) || errors.Is(err, ErrNamespaceTerminating)
}

// SliceClient writes and reads EndpointSlices. It is safe for concurrent use. Every method blocks
// until kube-apiserver answers, ctx ends, or 30 s have passed; List, 30 s for each page.
type SliceClient struct {
	requests  SliceRequests
	managedBy string
}

// SliceRequests are the requests of a SliceClient. The slices that CreateSlice and UpdateSlice
// return may share memory with the slice that was sent.
type SliceRequests interface {
	CreateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error)
	UpdateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error)
	DeleteSlice(ctx context.Context, slice *discoveryv1.EndpointSlice, options *metav1.DeleteOptions) error
	GetSlice(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error)
	ListSlices(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
}

// NewSliceClient returns a SliceClient. Its List returns the slices with the managed-by label.
func NewSliceClient(requests SliceRequests, managedBy string) *SliceClient {
	return &SliceClient{requests: requests, managedBy: managedBy}
}

// Write stores one change and returns the stored slice; for a deletion, the deleted slice, or nil
// if that was gone already. The result may share memory with change and must not be changed.
func (c *SliceClient) Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stored, err := c.write(ctx, change)
	if err != nil {
		return nil, fmt.Errorf("%s endpointslice %s/%s: %w", change.Verb, change.Slice.Namespace, change.Slice.Name, classify(change.Verb, err))
	}
	return stored, nil
}

func (c *SliceClient) write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	switch change.Verb {
	case pack.Create:
		return c.requests.CreateSlice(ctx, change.Slice)
	case pack.Update:
		return c.requests.UpdateSlice(ctx, change.Slice)
	case pack.Delete:
		err := c.requests.DeleteSlice(ctx, change.Slice, &metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{
				UID:             &change.Slice.UID,
				ResourceVersion: &change.Slice.ResourceVersion,
			},
		})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return change.Slice, err
	default:
		return nil, errors.New("unknown verb")
	}
}

func classify(verb pack.Verb, err error) error {
	switch {
	case apierrors.IsConflict(err),
		verb == pack.Create && apierrors.IsAlreadyExists(err),
		verb == pack.Update && apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case verb == pack.Create && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return fmt.Errorf("%w: %w", ErrNamespaceTerminating, err)
	default:
		return err
	}
}

// Get returns the current state of a slice with any managed-by label, nil if there is none.
func (c *SliceClient) Get(ctx context.Context, slice types.NamespacedName) (*discoveryv1.EndpointSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := c.requests.GetSlice(ctx, slice.Namespace, slice.Name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get endpointslice %s: %w", slice, err)
	}
	found.ManagedFields = keptManagers(&found.ObjectMeta)
	return found, nil
}

// List returns the metadata of all slices with the managed-by label, and the resourceVersion of the
// list. It is not older than the call.
func (c *SliceClient) List(ctx context.Context) (slices []metav1.ObjectMeta, resourceVersion string, err error) {
	options := metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelManagedBy: c.managedBy}.String(),
		Limit:         listPageSize,
	}
	for {
		page, err := c.listPage(ctx, options)
		if err != nil {
			return nil, "", fmt.Errorf("list endpointslices of %s: %w", c.managedBy, err)
		}
		for i := range page.Items {
			meta := &page.Items[i].ObjectMeta
			meta.ManagedFields = NewestManager(meta.ManagedFields)
			slices = append(slices, *meta)
		}
		if page.Continue == "" {
			return slices, page.ResourceVersion, nil
		}
		options.Continue = page.Continue
	}
}

func (c *SliceClient) listPage(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.requests.ListSlices(ctx, options)
}

const (
	sliceResource = "endpointslices"
	// kube-apiserver answers in the first of these forms that it supports.
	acceptMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptMetadataList = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," +
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

type metadataOnlyRequests struct {
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// NewMetadataOnlyRequests returns SliceRequests that ask for metadata where the rest of the answer
// is known or unused. It contacts nothing.
func NewMetadataOnlyRequests(cfg *rest.Config) (SliceRequests, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	client, err := newRESTClient(cfg, discoveryv1.SchemeGroupVersion, newSerializer(scheme))
	if err != nil {
		return nil, err
	}
	return metadataOnlyRequests{rest: client, parameters: runtime.NewParameterCodec(scheme)}, nil
}

func (r metadataOnlyRequests) CreateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return sendSlice(ctx, slice, requestMetadata(r.rest.Post(), slice).Body(slice))
}

func (r metadataOnlyRequests) UpdateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return sendSlice(ctx, slice, requestMetadata(r.rest.Put(), slice).Name(slice.Name).Body(slice))
}

func (r metadataOnlyRequests) DeleteSlice(ctx context.Context, slice *discoveryv1.EndpointSlice, options *metav1.DeleteOptions) error {
	return requestMetadata(r.rest.Delete(), slice).Name(slice.Name).Body(options).Do(ctx).Error()
}

func requestMetadata(request *rest.Request, slice *discoveryv1.EndpointSlice) *rest.Request {
	return request.
		UseProtobufAsDefault().
		SetHeader("Accept", acceptMetadata).
		Namespace(slice.Namespace).
		Resource(sliceResource)
}

// sendSlice returns the sent slice with the metadata of the answer.
func sendSlice(ctx context.Context, sent *discoveryv1.EndpointSlice, request *rest.Request) (*discoveryv1.EndpointSlice, error) {
	var answer metav1.PartialObjectMetadata
	if err := request.Do(ctx).Into(&answer); err != nil {
		return nil, err
	}
	stored := *sent
	stored.ObjectMeta = answer.ObjectMeta
	stored.ManagedFields = keptManagers(&stored.ObjectMeta)
	if maps.Equal(stored.Labels, sent.Labels) {
		stored.Labels = sent.Labels // slices of a Service may share them
	}
	if maps.Equal(stored.Annotations, sent.Annotations) {
		stored.Annotations = sent.Annotations // each mirrored slice has those of its Endpoints object
	}
	return &stored, nil
}

func (r metadataOnlyRequests) GetSlice(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error) {
	var found discoveryv1.EndpointSlice
	err := r.rest.Get().
		UseProtobufAsDefault().
		Namespace(namespace).
		Resource(sliceResource).
		Name(name).
		Do(ctx).
		Into(&found)
	return &found, err
}

func (r metadataOnlyRequests) ListSlices(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	var page metav1.PartialObjectMetadataList
	err := r.rest.Get().
		UseProtobufAsDefault().
		SetHeader("Accept", acceptMetadataList).
		Resource(sliceResource).
		VersionedParams(&options, r.parameters).
		Do(ctx).
		Into(&page)
	return &page, err
}
