package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

const (
	// callTimeout bounds one request, so that a kube-apiserver that takes it and
	// never answers does not keep a worker for good.
	callTimeout = 30 * time.Second
	// pageSize is how many slices are listed at once.
	pageSize = 500
)

var (
	// ErrConflict is wrapped when a slice is not as the plan saw it: changed,
	// deleted, or there already. A plan from a newer view is needed.
	ErrConflict = errors.New("slice is not as planned from")
	// ErrNamespaceTerminating is wrapped when a slice cannot be created because
	// its namespace is being deleted. No retry can help, and nothing is lost.
	ErrNamespaceTerminating = errors.New("namespace is terminating")
)

// SliceClient writes and reads EndpointSlices. It is safe for concurrent use. Every
// method blocks until the kube-apiserver answers, ctx ends or half a minute has
// passed, List that long for each of its pages.
type SliceClient struct {
	slices    SliceRequests
	managedBy string
}

// SliceRequests are those a SliceClient makes. The slices that CreateSlice and UpdateSlice
// return may share memory with the one that was sent.
type SliceRequests interface {
	CreateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error)
	UpdateSlice(ctx context.Context, slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error)
	DeleteSlice(ctx context.Context, slice *discoveryv1.EndpointSlice, options *metav1.DeleteOptions) error
	GetSlice(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error)
	ListSlices(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
}

// NewSliceClient returns a Client that makes its requests by requests. managedBy is the
// label of the slices that List returns.
func NewSliceClient(requests SliceRequests, managedBy string) *SliceClient {
	return &SliceClient{slices: requests, managedBy: managedBy}
}

// Write carries out one change and returns the slice as stored; for a deletion,
// the slice that was deleted. What it returns may share memory with change and
// must not be changed. To delete what is gone already is a success.
func (c *SliceClient) Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
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
		return c.slices.CreateSlice(ctx, change.Slice)
	case pack.Update:
		return c.slices.UpdateSlice(ctx, change.Slice)
	case pack.Delete:
		err := c.slices.DeleteSlice(ctx, change.Slice, &metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{
				UID:             &change.Slice.UID,
				ResourceVersion: &change.Slice.ResourceVersion,
			},
		})
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return change.Slice, err
	default:
		return nil, fmt.Errorf("no such verb")
	}
}

// classify names the refusals that a caller treats differently.
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

// RetryAfter returns how long the kube-apiserver that refused a request asks to be
// left alone; false if it does not ask. It asks with 429, of which it may have too
// many, and when it is out of order.
func RetryAfter(err error) (pause time.Duration, asked bool) {
	seconds, asked := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second, asked || apierrors.IsTooManyRequests(err)
}

// Refused reports whether a write failed with an answer that says it was not
// stored. Any other may have been, or still be: one that was not answered in
// time, or by a kube-apiserver that could not tell.
func Refused(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return errors.Is(err, ErrConflict)
	}
	code := answer.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

// Get returns a slice as it is now, whoever's it is; nil when there is none of
// that name.
func (c *SliceClient) Get(ctx context.Context, slice types.NamespacedName) (*discoveryv1.EndpointSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found, err := c.slices.GetSlice(ctx, slice.Namespace, slice.Name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get endpointslice %s: %w", slice, err)
	}
	found.ManagedFields = Newest(found.ManagedFields)
	return found, nil
}

// List returns the metadata of all slices with the SliceClient's managed-by label, as
// they are now, and the resourceVersion they are of.
func (c *SliceClient) List(ctx context.Context) (slices []metav1.ObjectMeta, resourceVersion string, err error) {
	options := metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelManagedBy: c.managedBy}.String(),
		Limit:         pageSize,
	}
	for {
		page, err := c.page(ctx, options)
		if err != nil {
			return nil, "", fmt.Errorf("list endpointslices of %s: %w", c.managedBy, err)
		}
		for i := range page.Items {
			meta := &page.Items[i].ObjectMeta
			meta.ManagedFields = Newest(meta.ManagedFields)
			slices = append(slices, *meta)
		}
		if page.Continue == "" {
			return slices, page.ResourceVersion, nil
		}
		options.Continue = page.Continue
	}
}

func (c *SliceClient) page(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.slices.ListSlices(ctx, options)
}

// Newest keeps of the record of field managers who wrote last and when: enough
// to name another writer. The record itself need not be sent back, for the
// kube-apiserver keeps its own.
func Newest(fields []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var newest *metav1.ManagedFieldsEntry
	for i := range fields {
		entry := &fields[i]
		if newest == nil || (entry.Time != nil && (newest.Time == nil || !entry.Time.Before(newest.Time))) {
			newest = entry
		}
	}
	if newest == nil {
		return nil
	}
	return []metav1.ManagedFieldsEntry{{Manager: newest.Manager, Operation: newest.Operation, Time: newest.Time}}
}
