package writebackcontroller

import (
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// LeaseDeleter lists and deletes Leases. *LeaseWriter is one.
type LeaseDeleter interface {
	List(ctx context.Context, namespace, selector string, visit func([]coordinationv1.Lease) error) error
	DeleteUnchanged(ctx context.Context, lease *coordinationv1.Lease) error
}

// AbsenceChecker checks that a holder has no session. *sessioncontroller.Controller is one.
type AbsenceChecker interface {
	CheckAbsent(ctx context.Context, key session.Key, shard int, heldFor time.Duration) (*sessioncontroller.HeldShard, error)
}

// OrphanClass is a class whose Leases no Node owns.
type OrphanClass struct {
	ID              session.ClassID
	Name, Namespace string
	// Retention is how long a Lease must have lapsed, and its shard must have been held here
	// without its holder, before it is deleted.
	Retention time.Duration
}

// OrphanCollector deletes the orphaned Leases: no Node owns them, so the garbage collector never
// deletes them. It deletes only Leases that this service created and was the last to renew. All
// fields are required.
type OrphanCollector struct {
	Classes []OrphanClass
	// Shard returns the shard of a holder.
	Shard   func(session.Key) int
	Leases  LeaseDeleter
	Metrics *Metrics
	// Timeout bounds one deletion.
	Timeout time.Duration
}

// Collect looks at all Leases of the classes once. It returns the errors of deletions; the next
// Collect repeats them.
func (o *OrphanCollector) Collect(ctx context.Context, absences AbsenceChecker) error {
	var failures error
	for i := range o.Classes {
		class := &o.Classes[i]
		listCtx, cancel := context.WithTimeout(ctx, listTimeout)
		err := o.Leases.List(listCtx, class.Namespace, writeback.ClassLabel+"="+class.Name, func(leases []coordinationv1.Lease) error {
			for i := range leases {
				err := o.collectLease(ctx, absences, class, &leases[i])
				if errors.Is(err, sessioncontroller.ErrStopped) || ctx.Err() != nil {
					return err
				}
				failures = errors.Join(failures, err)
			}
			return nil
		})
		cancel()
		if err != nil {
			return err
		}
	}
	return failures
}

func (o *OrphanCollector) collectLease(ctx context.Context, absences AbsenceChecker, class *OrphanClass, lease *coordinationv1.Lease) error {
	if !writeback.Orphaned(lease, class.Name, time.Now(), class.Retention) {
		return nil
	}
	key := session.Key{Class: class.ID, Name: lease.Name}
	shard, err := absences.CheckAbsent(ctx, key, o.Shard(key), class.Retention)
	var notHeld sessioncontroller.NotHeldError
	if errors.As(err, &notHeld) {
		return nil
	}
	if err != nil || shard == nil {
		return err
	}
	return o.deleteLease(ctx, shard, lease)
}

func (o *OrphanCollector) deleteLease(ctx context.Context, shard *sessioncontroller.HeldShard, lease *coordinationv1.Lease) error {
	termCtx, end, ok := shard.BeginWrite()
	if !ok {
		return nil
	}
	defer end()
	deleteCtx, cancel := context.WithTimeout(termCtx, o.Timeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	err := o.Leases.DeleteUnchanged(deleteCtx, lease)
	o.Metrics.Deleted(Orphaned, err)
	if apierrors.IsConflict(err) || termCtx.Err() != nil {
		return nil // the holder is back, or the term has ended
	}
	return err
}
