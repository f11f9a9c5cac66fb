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

// Adopter lists the Leases of acquired shards. A page of 500 costs the kube-apiserver no more than
// a few single reads. An adopted Lease is written when it is due, and without a read.
type Adopter struct {
	leases *LeaseWriter
	logger *slog.Logger
}

// NewAdopter returns an Adopter.
func NewAdopter(leases *LeaseWriter, logger *slog.Logger) *Adopter {
	return &Adopter{leases: leases, logger: logger}
}

// Run lists whenever an adoption is pending, until ctx ends or the session controller stops. It
// repeats a failed list; the sessions wait for adoption for a limited time only.
func (a *Adopter) Run(ctx context.Context, sessions *sessioncontroller.Controller) error {
	for {
		pause := pollPeriod
		if sessions.AdoptionPending() {
			err := a.adopt(ctx, sessions)
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
		case <-sessions.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (a *Adopter) adopt(ctx context.Context, sessions *sessioncontroller.Controller) error {
	adoption, err := sessions.BeginAdoption(ctx)
	if err != nil || adoption == nil {
		return err
	}
	begin, count := time.Now(), 0
	listCtx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	for class, namespace := range adoption.Namespaces {
		err := a.leases.List(listCtx, namespace, "", func(leases []coordinationv1.Lease) error {
			count += len(leases)
			return sessions.Adopt(ctx, existingLeases(session.ClassID(class), leases))
		})
		if err != nil {
			return err
		}
	}
	if err := sessions.FinishAdoption(ctx, adoption); err != nil {
		return err
	}
	a.logger.InfoContext(ctx, "adopted the leases of acquired shards", "leases", count, "took", time.Since(begin))
	return nil
}

func existingLeases(class session.ClassID, leases []coordinationv1.Lease) []sessioncontroller.ListedLease {
	existing := make([]sessioncontroller.ListedLease, 0, len(leases))
	for i := range leases {
		existing = append(existing, sessioncontroller.ListedLease{
			Key: session.Key{Class: class, Name: leases[i].Name}, Lease: writeback.NewLeaseRecord(&leases[i]),
		})
	}
	return existing
}
