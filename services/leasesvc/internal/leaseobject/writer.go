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
type LeaseWriter struct {
	leases coordinationclient.LeasesGetter
	nodes  Nodes
}

// NewWriter returns a Writer that writes through leases, a fenced client.
func NewLeaseWriter(leases coordinationclient.LeasesGetter, nodes Nodes) *LeaseWriter {
	return &LeaseWriter{leases: leases, nodes: nodes}
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

// ClassLabel is the label of Leases that stand on their own. Its value is the class of the holder.
const ClassLabel = "trivet.dev/holder-class"

// FieldManager is who the managed fields of a Lease say it was written by.
const FieldManager = "trivet-leasesvc"

// Renewal says what a Lease shall show.
type LeaseUpdate struct {
	Namespace string
	// Name of the Lease, its holder and its Node.
	Name string
	// Class is empty where the Lease belongs to the Node of its name. Otherwise there need be no such Node: the Lease is made
	// without an owner and with ClassLabel.
	Class string
	// Duration is rounded up to whole seconds, of which the object holds one at least.
	Duration time.Duration
	// RenewTime is when the holder was last heard.
	RenewTime time.Time
	// Lapsed is set when the holder has expired, and to then: the Lease is written so that it has lapsed at that time, if it
	// exists, and not at all if it says so already. Duration is the longest that it may say.
	ExpireTime time.Time
	// Last is what the last call returned, or the zero Known when there was none.
	Last LeaseRecord
}

// belongsTo is what the Lease is known to belong to.
func (r *LeaseUpdate) owner(node types.UID) string {
	if r.Class != "" {
		return r.Class
	}
	return string(node)
}

// Write brings the renewal into the object. It returns the object as it stands then and the verb of the last write that it
// tried, which is valid with an error too. Errors wrap those of Nodes, ErrForeignHolder, ErrTerminating or what the
// kube-apiserver said.
func (w *LeaseWriter) Write(ctx context.Context, r LeaseUpdate) (LeaseRecord, Verb, error) {
	var node types.UID
	var err error
	if r.Class == "" {
		if node, err = w.nodes.UID(r.Name); err != nil {
			return LeaseRecord{}, None, err
		}
	}
	last, _ := r.Last.Lease(r, node)
	verb := None
	for range attempts {
		if last == nil {
			if last, err = w.get(ctx, r.Namespace, r.Name); err != nil {
				return LeaseRecord{}, verb, err
			}
		}
		var written *coordinationv1.Lease
		switch {
		case last != nil:
			written, verb, err = w.update(ctx, last, r, node)
		case !r.ExpireTime.IsZero():
			return LeaseRecord{}, None, nil // nobody takes a holder without a Lease for alive
		default:
			written, verb, err = w.create(ctx, r, node)
		}
		if err == nil {
			return NewLeaseRecord(written), verb, nil
		}
		if !changedSince(verb, err) {
			return LeaseRecord{}, verb, err
		}
		last = nil
	}
	return LeaseRecord{}, verb, fmt.Errorf("gave up after %d tries: %w", attempts, err)
}

// overtaken tells whether a write failed because the object is not as it was last seen. A PUT could even create a Lease that
// has vanished, as the kube-apiserver allows that for Leases; the UID in its body is what turns it into a conflict. What a
// create does not find is the namespace.
func changedSince(verb Verb, err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || verb == Update && apierrors.IsNotFound(err)
}

// get returns nil without an error when there is no such Lease.
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

func (w *LeaseWriter) create(ctx context.Context, r LeaseUpdate, node types.UID) (*coordinationv1.Lease, Verb, error) {
	if r.Last.Exists() && r.Class == "" {
		// It vanished between two renewals, perhaps with its Node, of which the cache may not have heard.
		confirmed, err := w.nodes.Confirm(ctx, r.Name)
		if err != nil {
			return nil, None, err
		}
		node = confirmed
	}
	created, err := w.leases.Leases(r.Namespace).Create(ctx, NewLease(r, node), metav1.CreateOptions{FieldManager: FieldManager})
	if err != nil {
		return nil, Create, fmt.Errorf("create lease %s/%s: %w", r.Namespace, r.Name, err)
	}
	return created, Create, nil
}

func (w *LeaseWriter) update(ctx context.Context, last *coordinationv1.Lease, r LeaseUpdate, node types.UID) (*coordinationv1.Lease, Verb, error) {
	if r.Class == "" && OwnedByOtherNode(last, node) {
		// Cache and object disagree about which Node of this name lives; only the kube-apiserver knows.
		confirmed, err := w.nodes.Confirm(ctx, r.Name)
		if err != nil {
			return nil, None, err
		}
		node = confirmed
	}
	next, err := UpdatedLease(last, r, node)
	if err != nil {
		return nil, None, fmt.Errorf("lease %s/%s: %w", r.Namespace, r.Name, err)
	}
	if EqualLeases(last, next) {
		return last, None, nil
	}
	updated, err := w.leases.Leases(r.Namespace).Update(ctx, next, metav1.UpdateOptions{FieldManager: FieldManager})
	if err != nil {
		return nil, Update, fmt.Errorf("update lease %s/%s: %w", r.Namespace, r.Name, err)
	}
	return updated, Update, nil
}
