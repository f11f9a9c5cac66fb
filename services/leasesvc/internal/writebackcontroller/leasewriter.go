package writebackcontroller

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

const (
	// maxAttempts bounds how often one call reads a Lease again after another writer changed it.
	// Callers repeat with a backoff, so it is small.
	maxAttempts = 3
	// listPageSize is the limit of one list request. The kube-apiserver serves pages from its watch
	// cache.
	listPageSize = 500
)

// Nodes finds the UIDs of Nodes.
type Nodes interface {
	// UID answers from a cache. LeaseWriter.Write returns its errors unchanged.
	UID(name string) (types.UID, error)
	// Confirm asks the kube-apiserver and blocks until it answers.
	Confirm(ctx context.Context, name string) (types.UID, error)
}

// LeaseWriter writes Leases. It keeps no state and is safe for concurrent use, with one call at a
// time for each Lease. The context of each write must carry the held term.
type LeaseWriter struct {
	leases coordinationclient.LeasesGetter
	nodes  Nodes
}

// NewLeaseWriter returns a LeaseWriter. The client must refuse writes without a held term.
func NewLeaseWriter(leases coordinationclient.LeasesGetter, nodes Nodes) *LeaseWriter {
	return &LeaseWriter{leases: leases, nodes: nodes}
}

// Write creates or updates the Lease. It returns the record of the Lease after the write, and the
// verb of the last write that it tried, also with an error. Errors wrap those of Nodes and of the
// kube-apiserver, writeback.ErrForeignHolder and writeback.ErrTerminating.
//
// An expired holder gets no new Lease. A Lease that shows the expiry already is not written, nor is
// one that another program renewed last: its renewals say whether the holder lives.
func (w *LeaseWriter) Write(ctx context.Context, u writeback.LeaseUpdate) (writeback.LeaseRecord, planned.Verb, error) {
	var node types.UID
	var err error
	if u.Class == "" {
		if node, err = w.nodes.UID(u.Name); err != nil {
			return writeback.LeaseRecord{}, planned.None, err
		}
	}
	last, _ := u.Last.Lease(u, node)
	verb := planned.None
	for range maxAttempts {
		if last == nil {
			if last, err = w.get(ctx, u.Namespace, u.Name); err != nil {
				return writeback.LeaseRecord{}, verb, err
			}
		}
		var written *coordinationv1.Lease
		switch {
		case last != nil && !u.ExpireTime.IsZero() && writeback.RenewedByOther(last):
			return writeback.LeaseRecord{}, planned.None, nil // the record would pass for our write
		case last != nil:
			written, verb, err = w.update(ctx, last, u, node)
		case !u.ExpireTime.IsZero():
			return writeback.LeaseRecord{}, planned.None, nil // readers take a holder without a Lease for expired
		default:
			written, verb, err = w.create(ctx, u, node)
		}
		if err == nil {
			return writeback.NewLeaseRecord(written), verb, nil
		}
		if !isStale(verb, err) {
			return writeback.LeaseRecord{}, verb, err
		}
		last = nil
	}
	return writeback.LeaseRecord{}, verb, fmt.Errorf("gave up after %d attempts: %w", maxAttempts, err)
}

// isStale reports whether a write failed because the Lease changed after it was last read. An
// update of a Lease that was deleted would create it again; the UID in its body makes that a
// conflict. A create gets NotFound for its namespace.
func isStale(verb planned.Verb, err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || verb == planned.Update && apierrors.IsNotFound(err)
}

// get returns nil without an error if there is no such Lease.
func (w *LeaseWriter) get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	lease, err := w.leases.Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get lease %s/%s: %w", namespace, name, err)
	}
	return lease, nil
}

func (w *LeaseWriter) create(ctx context.Context, u writeback.LeaseUpdate, node types.UID) (*coordinationv1.Lease, planned.Verb, error) {
	if u.Last.Exists() && u.Class == "" {
		// The Lease was deleted between two writes, perhaps with its Node, whose deletion the cache
		// may not show yet.
		confirmed, err := w.nodes.Confirm(ctx, u.Name)
		if err != nil {
			return nil, planned.None, err
		}
		node = confirmed
	}
	created, err := w.leases.Leases(u.Namespace).Create(ctx, writeback.NewLease(u, node), metav1.CreateOptions{FieldManager: writeback.FieldManager})
	if err != nil {
		return nil, planned.Create, fmt.Errorf("create lease %s/%s: %w", u.Namespace, u.Name, err)
	}
	return created, planned.Create, nil
}

func (w *LeaseWriter) update(ctx context.Context, last *coordinationv1.Lease, u writeback.LeaseUpdate, node types.UID) (*coordinationv1.Lease, planned.Verb, error) {
	if u.Class == "" && writeback.OwnedByOtherNode(last, node) {
		// The cache and the Lease disagree about the current Node of this name; the kube-apiserver
		// decides.
		confirmed, err := w.nodes.Confirm(ctx, u.Name)
		if err != nil {
			return nil, planned.None, err
		}
		node = confirmed
	}
	next, err := writeback.UpdatedLease(last, u, node)
	if err != nil {
		return nil, planned.None, fmt.Errorf("lease %s/%s: %w", u.Namespace, u.Name, err)
	}
	if writeback.EqualLeases(last, next) {
		return last, planned.None, nil
	}
	updated, err := w.leases.Leases(u.Namespace).Update(ctx, next, metav1.UpdateOptions{FieldManager: writeback.FieldManager})
	if err != nil {
		return nil, planned.Update, fmt.Errorf("update lease %s/%s: %w", u.Namespace, u.Name, err)
	}
	return updated, planned.Update, nil
}

// Delete removes the Lease of a holder if this service was the last to renew it. It leaves any
// other Lease and then returns nil, as it does if there is no Lease.
func (w *LeaseWriter) Delete(ctx context.Context, namespace, name string) error {
	var err error
	for range maxAttempts {
		lease, getErr := w.Own(ctx, namespace, name)
		if getErr != nil || lease == nil {
			return getErr
		}
		if err = w.DeleteUnchanged(ctx, lease); !apierrors.IsConflict(err) {
			return err
		}
	}
	return fmt.Errorf("gave up after %d attempts: %w", maxAttempts, err)
}

// Own returns the Lease if it names the holder and this service was the last to renew it. Otherwise
// it returns nil. A Lease that a kubelet renews for itself is thus never deleted here.
func (w *LeaseWriter) Own(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error) {
	lease, err := w.get(ctx, namespace, name)
	if err != nil || lease == nil || !writeback.HeldBy(lease, name) || !writeback.RenewedByUs(lease) {
		return nil, err
	}
	return lease, nil
}

// DeleteUnchanged deletes a Lease with its UID and resourceVersion as preconditions. It returns nil
// if the Lease is already gone, and a conflict if it has changed.
func (w *LeaseWriter) DeleteUnchanged(ctx context.Context, lease *coordinationv1.Lease) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}}
	err := w.leases.Leases(lease.Namespace).Delete(ctx, lease.Name, options)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("delete lease %s/%s: %w", lease.Namespace, lease.Name, err)
}

// List calls visit with each page of the Leases of a namespace, in the order of their names. The
// label selector may be empty. It stops at the first error of visit and returns it. visit may keep
// the page.
func (w *LeaseWriter) List(ctx context.Context, namespace, selector string, visit func([]coordinationv1.Lease) error) error {
	options := metav1.ListOptions{LabelSelector: selector, Limit: listPageSize}
	for {
		list, err := w.leases.Leases(namespace).List(ctx, options)
		if err != nil {
			return fmt.Errorf("list leases of namespace %s: %w", namespace, err)
		}
		if err := visit(list.Items); err != nil {
			return err
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}
