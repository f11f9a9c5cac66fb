package kube

import (
	"bytes"
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

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/planned"
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
	// ErrStoredOtherwise is wrapped if kube-apiserver stored other endpoints or ports than were
	// sent.
	ErrStoredOtherwise = errors.New("the slice was stored otherwise than it was written; look for an admission policy or webhook that changes EndpointSlices")
)

// RetryAfter returns the pause that a kube-apiserver asks for with a 429 or another Retry-After,
// and false if err asks for none. The pause may be 0. What an admission webhook asks for is a
// refusal of one slice: others may be accepted.
func RetryAfter(err error) (pause time.Duration, requested bool) {
	if kubeconn.OfWebhook(err) {
		return 0, false
	}
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

// Denied returns whether err proves that kube-apiserver does not accept a write as it is, for
// example because of a webhook or a quota. The same write fails again until the cause is gone.
func Denied(err error) bool {
	return Refused(err) && !errors.Is(err, ErrConflict) && !Unreachable(err) ||
		errors.Is(err, ErrNamespaceTerminating) || errors.Is(err, ErrStoredOtherwise)
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
	case planned.Create:
		return c.requests.CreateSlice(ctx, change.Slice)
	case planned.Update:
		return c.requests.UpdateSlice(ctx, change.Slice)
	case planned.Delete:
		conditions := &metav1.Preconditions{UID: &change.Slice.UID}
		if change.Slice.ResourceVersion != "" {
			conditions.ResourceVersion = &change.Slice.ResourceVersion
		}
		err := c.requests.DeleteSlice(ctx, change.Slice, &metav1.DeleteOptions{Preconditions: conditions})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return change.Slice, err
	default:
		return nil, errors.New("unknown verb")
	}
}

func classify(verb planned.Verb, err error) error {
	switch {
	case apierrors.IsConflict(err),
		verb == planned.Create && apierrors.IsAlreadyExists(err),
		verb == planned.Update && apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case verb == planned.Create && apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
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

type sliceRequests struct {
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// NewSliceRequests returns SliceRequests that ask for metadata where the rest of the answer is
// unused. It contacts nothing.
func NewSliceRequests(cfg *rest.Config) (SliceRequests, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	client, err := newRESTClient(cfg, discoveryv1.SchemeGroupVersion, newSerializer(scheme))
	if err != nil {
		return nil, err
	}
	return sliceRequests{rest: client, parameters: runtime.NewParameterCodec(scheme)}, nil
}

func (r sliceRequests) CreateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return sendSlice(ctx, slice, requestSlice(r.rest.Post(), slice.Namespace))
}

func (r sliceRequests) UpdateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return sendSlice(ctx, slice, requestSlice(r.rest.Put(), slice.Namespace).Name(slice.Name))
}

func (r sliceRequests) DeleteSlice(ctx context.Context, slice *discoveryv1.EndpointSlice, options *metav1.DeleteOptions) error {
	return requestSlice(r.rest.Delete(), slice.Namespace).SetHeader("Accept", acceptMetadata).Name(slice.Name).Body(options).Do(ctx).Error()
}

func requestSlice(request *rest.Request, namespace string) *rest.Request {
	return request.UseProtobufAsDefault().Namespace(namespace).Resource(sliceResource)
}

// sendSlice returns the slice that kube-apiserver stored. Admission may have changed it. It shares
// memory with the sent slice where both are equal.
func sendSlice(ctx context.Context, sent *discoveryv1.EndpointSlice, request *rest.Request) (*discoveryv1.EndpointSlice, error) {
	answer := request.Body(sent).Do(ctx)
	stored := *sent
	if !decodeUnchanged(answer, sent, &stored.ObjectMeta) {
		stored = discoveryv1.EndpointSlice{}
		if err := answer.Into(&stored); err != nil {
			return nil, err
		}
	}
	stored.ManagedFields = keptManagers(&stored.ObjectMeta)
	if maps.Equal(stored.Labels, sent.Labels) {
		stored.Labels = sent.Labels // slices of a Service may share them
	}
	if maps.Equal(stored.Annotations, sent.Annotations) {
		stored.Annotations = sent.Annotations // each mirrored slice has those of its Endpoints object
	}
	return &stored, nil
}

// decodeUnchanged decodes only the metadata of an answer that has the endpoints and ports of the
// sent slice. It returns false for any other answer. Encoding the sent slice costs less than
// decoding the answer, and the cache needs no copy of what is equal.
func decodeUnchanged(answer rest.Result, sent *discoveryv1.EndpointSlice, into *metav1.ObjectMeta) bool {
	body, err := answer.Raw()
	if err != nil {
		return false
	}
	_, kind, object, ok := unwrap(body)
	if !ok || kind != "EndpointSlice" {
		return false
	}
	encoded, err := (&discoveryv1.EndpointSlice{AddressType: sent.AddressType, Endpoints: sent.Endpoints, Ports: sent.Ports}).Marshal()
	if err != nil {
		return false
	}
	meta, content, ok := splitMeta(object)
	_, sentContent, sentOK := splitMeta(encoded)
	if !ok || !sentOK || !bytes.Equal(content, sentContent) {
		return false
	}
	into.Reset()
	return into.Unmarshal(meta) == nil
}

func (r sliceRequests) GetSlice(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error) {
	var found discoveryv1.EndpointSlice
	err := requestSlice(r.rest.Get(), namespace).Name(name).Do(ctx).Into(&found)
	return &found, err
}

func (r sliceRequests) ListSlices(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
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
