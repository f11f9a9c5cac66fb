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
	// listTimeout bounds one list of all Leases. A list of a million takes some seconds.
	listTimeout = time.Minute
	// listRetryPause is the pause after a failed list.
	listRetryPause = 2 * time.Second
)

// LeaseLister lists Leases. *LeaseWriter is one.
type LeaseLister interface {
	List(ctx context.Context, namespace, selector string, visit func([]coordinationv1.Lease) error) error
}

// AdoptionSource takes existing Leases. *sessioncontroller.Controller is one.
type AdoptionSource interface {
	Done() <-chan struct{}
	AdoptionPending() bool
	BeginAdoption(ctx context.Context) (*sessioncontroller.Adoption, error)
	Adopt(ctx context.Context, leases []sessioncontroller.ExistingLease) error
	FinishAdoption(ctx context.Context, a *sessioncontroller.Adoption) error
}

// Adopter lists the Leases of acquired shards. A page of 500 costs the kube-apiserver no more than
// a few single reads. An adopted Lease is written when it is due, and without a read.
type Adopter struct {
	leases LeaseLister
	logger *slog.Logger
}

// NewAdopter returns an Adopter.
func NewAdopter(leases LeaseLister, logger *slog.Logger) *Adopter {
	return &Adopter{leases: leases, logger: logger}
}

// Run lists whenever an adoption is pending, until ctx ends or the source stops. It repeats a
// failed list; the sessions wait for adoption for a limited time only.
func (a *Adopter) Run(ctx context.Context, source AdoptionSource) error {
	for {
		pause := pollPeriod
		if source.AdoptionPending() {
			err := a.adopt(ctx, source)
			if ctx.Err() != nil || errors.Is(err, sessioncontroller.ErrStopped) {
				return nil
			}
			if err != nil {
				a.logger.WarnContext(ctx, "cannot list the leases of acquired shards; writing them without adoption", "error", err)
				pause = listRetryPause
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-source.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (a *Adopter) adopt(ctx context.Context, source AdoptionSource) error {
	adoption, err := source.BeginAdoption(ctx)
	if err != nil || adoption == nil {
		return err
	}
	begin, count := time.Now(), 0
	listCtx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	for class, namespace := range adoption.Namespaces {
		err := a.leases.List(listCtx, namespace, "", func(leases []coordinationv1.Lease) error {
			count += len(leases)
			return source.Adopt(ctx, existingLeases(session.ClassID(class), leases))
		})
		if err != nil {
			return err
		}
	}
	if err := source.FinishAdoption(ctx, adoption); err != nil {
		return err
	}
	a.logger.InfoContext(ctx, "adopted the leases of acquired shards", "leases", count, "took", time.Since(begin))
	return nil
}

func existingLeases(class session.ClassID, leases []coordinationv1.Lease) []sessioncontroller.ExistingLease {
	existing := make([]sessioncontroller.ExistingLease, 0, len(leases))
	for i := range leases {
		existing = append(existing, sessioncontroller.ExistingLease{
			Key: session.Key{Class: class, Name: leases[i].Name}, Lease: writeback.NewLeaseRecord(&leases[i]),
		})
	}
	return existing
}
