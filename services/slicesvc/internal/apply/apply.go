// Package apply carries out planned changes of EndpointSlices on a
// kube-apiserver.
//
// Promise: an update names the resourceVersion, and a deletion resourceVersion
// and UID, of the slice the plan was made from, so that a plan from an old view
// is refused with ErrConflict instead of carried out. A creation names its
// slice, so that a second one is refused likewise.
//
// It decides nothing, retries nothing and keeps no state. Whether this process
// may write at all is decided by the client it is given, whose transport refuses
// writes outside a held term.
package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// writeTimeout bounds one write, so that a kube-apiserver that takes a request
// and never answers does not keep a worker for good.
const writeTimeout = 30 * time.Second

var (
	// ErrConflict is wrapped when a slice is not as the plan saw it: changed,
	// deleted, or there already. A plan from a newer view is needed.
	ErrConflict = errors.New("slice is not as planned from")
	// ErrNamespaceTerminating is wrapped when a slice cannot be created because
	// its namespace is being deleted. No retry can help, and nothing is lost.
	ErrNamespaceTerminating = errors.New("namespace is terminating")
)

// Writer writes EndpointSlices. It is safe for concurrent use.
type Writer struct {
	client discoveryclient.EndpointSlicesGetter
}

// NewWriter returns a Writer that uses client.
func NewWriter(client discoveryclient.EndpointSlicesGetter) *Writer {
	return &Writer{client: client}
}

// Write carries out one change and returns the slice as stored; for a deletion,
// the slice that was deleted. To delete what is gone already is a success. It
// blocks until the kube-apiserver answers, ctx ends or half a minute has passed.
func (w *Writer) Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	stored, err := w.write(ctx, change)
	if err != nil {
		return nil, fmt.Errorf("%s endpointslice %s/%s: %w", change.Verb, change.Slice.Namespace, change.Slice.Name, classify(change.Verb, err))
	}
	return stored, nil
}

func (w *Writer) write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	client := w.client.EndpointSlices(change.Slice.Namespace)
	switch change.Verb {
	case pack.Create:
		return client.Create(ctx, change.Slice, metav1.CreateOptions{})
	case pack.Update:
		return client.Update(ctx, change.Slice, metav1.UpdateOptions{})
	case pack.Delete:
		err := client.Delete(ctx, change.Slice.Name, metav1.DeleteOptions{
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
