package writebackcontroller

import (
	"context"
	"errors"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

const (
	// listTimeout bounds one reading of all Leases; of a million it takes some seconds.
	listTimeout = time.Minute
	// listPause is the time between two readings of which the first failed.
	listPause = 2 * time.Second
)

// Lister reads Leases. *Writer is one.
type LeaseLister interface {
	List(ctx context.Context, namespace, selector string, visit func([]coordinationv1.Lease) error) error
}

// Surveyed is whoever wants to know of the Leases that there were before its terms. *sessioncontroller.Keeper is one.
type AdoptionSource interface {
	Done() <-chan struct{}
	AdoptionPending() bool
	BeginAdoption(ctx context.Context) (*sessioncontroller.Adoption, error)
	Adopt(ctx context.Context, found []sessioncontroller.ExistingLease) error
	FinishAdoption(ctx context.Context, s *sessioncontroller.Adoption) error
}

// Adoption reads the Leases of shards that were taken over, all at once: a page of 500 costs the kube-apiserver no more than a
// few reads one by one, and a Lease that was read can be written without another read, when it is time for it and not before.
type Adopter struct {
	leases LeaseLister
	logger *slog.Logger
}

// NewAdoption returns an Adoption that reads through leases.
func NewAdopter(leases LeaseLister, logger *slog.Logger) *Adopter {
	return &Adopter{leases: leases, logger: logger}
}

// Run reads whenever there is need, until ctx ends or the keeper does. A reading that fails is made again; meanwhile Leases are
// written unseen once they have waited long enough.
func (a *Adopter) Run(ctx context.Context, k AdoptionSource) error {
	for {
		pause := pollPeriod
		if k.AdoptionPending() {
			err := a.adopt(ctx, k)
			if ctx.Err() != nil || errors.Is(err, sessioncontroller.ErrStopped) {
				return nil
			}
			if err != nil {
				a.logger.WarnContext(ctx, "the leases of new shards could not be read; they are written unseen until they can", "error", err)
				pause = listPause
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (a *Adopter) adopt(ctx context.Context, k AdoptionSource) error {
	s, err := k.BeginAdoption(ctx)
	if err != nil || s == nil {
		return err
	}
	begin, count := time.Now(), 0
	list, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	for class, namespace := range s.Namespaces {
		err := a.leases.List(list, namespace, "", func(leases []coordinationv1.Lease) error {
			count += len(leases)
			return k.Adopt(ctx, existing(session.ClassID(class), leases))
		})
		if err != nil {
			return err
		}
	}
	if err := k.FinishAdoption(ctx, s); err != nil {
		return err
	}
	a.logger.InfoContext(ctx, "read the leases of new shards", "leases", count, "took", time.Since(begin))
	return nil
}

func existing(class session.ClassID, leases []coordinationv1.Lease) []sessioncontroller.ExistingLease {
	objects := make([]sessioncontroller.ExistingLease, 0, len(leases))
	for i := range leases {
		objects = append(objects, sessioncontroller.ExistingLease{
			Key: session.Key{Class: class, Name: leases[i].Name}, Lease: writeback.NewLeaseRecord(&leases[i]),
		})
	}
	return objects
}
