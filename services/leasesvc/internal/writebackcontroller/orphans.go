package writebackcontroller

import (
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/heldshards"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// Deleter finds and deletes Leases. *Writer is one.
type LeaseDeleter interface {
	LeaseLister
	DeleteUnchanged(ctx context.Context, seen *coordinationv1.Lease) error
}

// Attendance says who has no session. *sessioncontroller.Keeper is one.
type AbsenceChecker interface {
	CheckAbsent(ctx context.Context, key session.Key, shard int, kept time.Duration) (*heldshards.Shard, error)
}

// Litter is a class whose Leases belong to no Node.
type OrphanClass struct {
	ID              session.ClassID
	Name, Namespace string
	// Patience is how long a Lease has lapsed, and its shard been kept here without hearing of its holder, before it is deleted.
	Retention time.Duration
}

// Sweep deletes the Leases of holders that are gone for good and that no garbage collector will ever remove, because they
// belong to no Node. It touches none but those that this service made and was the last to renew.
type OrphanCollector struct {
	// Classes are those to look at.
	Classes []OrphanClass
	// Shard of a holder.
	Shard   func(session.Key) int
	Leases  LeaseDeleter
	Metrics *Metrics
	// Timeout bounds a delete.
	Timeout time.Duration
}

// Once looks at all Leases of the classes and returns the first error; what was not deleted is found again.
func (s *OrphanCollector) Collect(ctx context.Context, present AbsenceChecker) error {
	var failed error
	for i := range s.Classes {
		class := &s.Classes[i]
		list, cancel := context.WithTimeout(ctx, listTimeout)
		err := s.Leases.List(list, class.Namespace, writeback.ClassLabel+"="+class.Name, func(leases []coordinationv1.Lease) error {
			for i := range leases {
				err := s.consider(ctx, present, class, &leases[i])
				if errors.Is(err, sessioncontroller.ErrStopped) || ctx.Err() != nil {
					return err
				}
				failed = errors.Join(failed, err)
			}
			return nil
		})
		cancel()
		if err != nil {
			return err
		}
	}
	return failed
}

func (s *OrphanCollector) consider(ctx context.Context, present AbsenceChecker, class *OrphanClass, lease *coordinationv1.Lease) error {
	if !writeback.Orphaned(lease, class.Name, time.Now(), class.Retention) {
		return nil
	}
	key := session.Key{Class: class.ID, Name: lease.Name}
	held, err := present.CheckAbsent(ctx, key, s.Shard(key), class.Retention)
	var elsewhere sessioncontroller.NotHeldError
	if errors.As(err, &elsewhere) {
		return nil
	}
	if err != nil || held == nil {
		return err
	}
	return s.delete(ctx, held, lease)
}

func (s *OrphanCollector) delete(ctx context.Context, held *heldshards.Shard, lease *coordinationv1.Lease) error {
	under, end, ok := held.BeginWrite()
	if !ok {
		return nil
	}
	defer end()
	write, cancel := context.WithTimeout(under, s.Timeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	err := s.Leases.DeleteUnchanged(write, lease)
	s.Metrics.Deleted(Orphaned, err)
	if apierrors.IsConflict(err) || under.Err() != nil {
		return nil // its holder is back, or the shard has gone
	}
	return err
}
