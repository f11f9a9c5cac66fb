package leaseobject

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// attempts bounds how often one call looks again after somebody else wrote the object. It is small because the caller
// comes back anyway, with a pause.
const attempts = 3

var (
	// ErrForeignHolder says that the Lease names another holder, so it is not touched.
	ErrForeignHolder = errors.New("the lease names another holder")
	// ErrTerminating says that the Lease is being deleted, so it is left to vanish.
	ErrTerminating = errors.New("the lease is being deleted")
)

// Nodes says under which UID a Node exists.
type Nodes interface {
	// UID answers from a cache. Its error is returned to the caller of Write as it is.
	UID(name string) (types.UID, error)
	// Confirm asks the kube-apiserver, and blocks as long as that takes.
	Confirm(ctx context.Context, name string) (types.UID, error)
}

// Writer writes Leases. It is safe for concurrent use, one call at a time for each object.
type Writer struct {
	leases coordinationclient.LeasesGetter
	nodes  Nodes
}

// NewWriter returns a Writer that writes through leases, a fenced client.
func NewWriter(leases coordinationclient.LeasesGetter, nodes Nodes) *Writer {
	return &Writer{leases: leases, nodes: nodes}
}

// Verb is what was done to the object, or tried.
type Verb string

const (
	// None: no write was tried.
	None Verb = "none"
	// Create: the object did not exist.
	Create Verb = "create"
	// Update: it did.
	Update Verb = "update"
	// Delete: it shall not any more.
	Delete Verb = "delete"
)

// Renewal says what a Lease shall show.
type Renewal struct {
	Namespace string
	// Name of the Lease, its holder and its Node.
	Name string
	// Duration is rounded up to whole seconds, of which the object holds one at least.
	Duration time.Duration
	// RenewTime is when the holder was last heard.
	RenewTime time.Time
	// Last is the object as the last call returned it, or nil when there was none.
	Last *coordinationv1.Lease
}

// Write brings the renewal into the object. It returns the object as it stands then and the verb of the last write that it
// tried, which is valid with an error too. Errors wrap those of Nodes, ErrForeignHolder, ErrTerminating or what the
// kube-apiserver said.
func (w *Writer) Write(ctx context.Context, r Renewal) (*coordinationv1.Lease, Verb, error) {
	uid, err := w.nodes.UID(r.Name)
	if err != nil {
		return nil, None, err
	}
	last, verb := r.Last, None
	for range attempts {
		if last == nil {
			if last, err = w.get(ctx, r.Namespace, r.Name); err != nil {
				return nil, verb, err
			}
		}
		var written *coordinationv1.Lease
		if last == nil {
			written, verb, err = w.create(ctx, r, uid)
		} else {
			written, verb, err = w.update(ctx, last, r, uid)
		}
		if !overtaken(verb, err) {
			return written, verb, err
		}
		last = nil
	}
	return nil, verb, fmt.Errorf("gave up after %d tries: %w", attempts, err)
}

// overtaken tells whether a write failed because the object is not as it was last seen. A PUT could even create a Lease that
// has vanished, as the kube-apiserver allows that for Leases; the UID in its body is what turns it into a conflict. What a
// create does not find is the namespace.
func overtaken(verb Verb, err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || verb == Update && apierrors.IsNotFound(err)
}

// get returns nil without an error when there is no such Lease.
func (w *Writer) get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	lease, err := w.leases.Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get lease %s/%s: %w", namespace, name, err)
	}
	return lease, nil
}

func (w *Writer) create(ctx context.Context, r Renewal, uid types.UID) (*coordinationv1.Lease, Verb, error) {
	if r.Last != nil {
		// It vanished between two renewals, perhaps with its Node, of which the cache may not have heard.
		confirmed, err := w.nodes.Confirm(ctx, r.Name)
		if err != nil {
			return nil, None, err
		}
		uid = confirmed
	}
	created, err := w.leases.Leases(r.Namespace).Create(ctx, fresh(r, uid), metav1.CreateOptions{})
	if err != nil {
		return nil, Create, fmt.Errorf("create lease %s/%s: %w", r.Namespace, r.Name, err)
	}
	return slim(created), Create, nil
}

func (w *Writer) update(ctx context.Context, last *coordinationv1.Lease, r Renewal, uid types.UID) (*coordinationv1.Lease, Verb, error) {
	if misowned(last, uid) {
		// Cache and object disagree about which Node of this name lives; only the kube-apiserver knows.
		confirmed, err := w.nodes.Confirm(ctx, r.Name)
		if err != nil {
			return nil, None, err
		}
		uid = confirmed
	}
	next, err := renewed(last, r, uid)
	if err != nil {
		return nil, None, fmt.Errorf("lease %s/%s: %w", r.Namespace, r.Name, err)
	}
	updated, err := w.leases.Leases(r.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, Update, fmt.Errorf("update lease %s/%s: %w", r.Namespace, r.Name, err)
	}
	return slim(updated), Update, nil
}

// Delete removes the Lease if it is the holder's: last as the last Write returned it, or, with nil, whichever Lease names
// the holder. One that is gone, or that became somebody else's, is no error.
func (w *Writer) Delete(ctx context.Context, namespace, name string, last *coordinationv1.Lease) error {
	var err error
	for range attempts {
		lease := last
		if lease == nil {
			if lease, err = w.get(ctx, namespace, name); err != nil {
				return err
			}
		}
		if lease == nil || !heldBy(lease, name) {
			return nil
		}
		options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}}
		err = w.leases.Leases(namespace).Delete(ctx, name, options)
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("delete lease %s/%s: %w", namespace, name, err)
		}
		last = nil
	}
	return fmt.Errorf("delete lease %s/%s: gave up after %d tries: %w", namespace, name, attempts, err)
}
