package renewal

import (
	"context"
	"errors"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/keeper"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/leaseobject"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

const (
	// listTimeout bounds one reading of all Leases; of a million it takes some seconds.
	listTimeout = time.Minute
	// listPause is the time between two readings of which the first failed.
	listPause = 2 * time.Second
)

// Lister reads Leases. *leaseobject.Writer is one.
type Lister interface {
	List(ctx context.Context, namespace, selector string, visit func([]coordinationv1.Lease) error) error
}

// Surveyed is whoever wants to know of the Leases that there were before its terms. *keeper.Keeper is one.
type Surveyed interface {
	Done() <-chan struct{}
	Unread() bool
	BeginSurvey(ctx context.Context) (*keeper.Survey, error)
	Found(ctx context.Context, found []keeper.Found) error
	EndSurvey(ctx context.Context, s *keeper.Survey) error
}

// Adoption reads the Leases of shards that were taken over, all at once: a page of 500 costs the kube-apiserver no more than a
// few reads one by one, and a Lease that was read can be written without another read, when it is time for it and not before.
type Adoption struct {
	leases Lister
	logger *slog.Logger
}

// NewAdoption returns an Adoption that reads through leases.
func NewAdoption(leases Lister, logger *slog.Logger) *Adoption {
	return &Adoption{leases: leases, logger: logger}
}

// Run reads whenever there is need, until ctx ends or the keeper does. A reading that fails is made again; meanwhile Leases are
// written unseen once they have waited long enough.
func (a *Adoption) Run(ctx context.Context, k Surveyed) error {
	for {
		pause := poll
		if k.Unread() {
			err := a.survey(ctx, k)
			if ctx.Err() != nil || errors.Is(err, keeper.ErrEnded) {
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

func (a *Adoption) survey(ctx context.Context, k Surveyed) error {
	s, err := k.BeginSurvey(ctx)
	if err != nil || s == nil {
		return err
	}
	begin, count := time.Now(), 0
	list, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	for class, namespace := range s.Namespaces {
		err := a.leases.List(list, namespace, "", func(leases []coordinationv1.Lease) error {
			count += len(leases)
			return k.Found(ctx, found(session.ClassID(class), leases))
		})
		if err != nil {
			return err
		}
	}
	if err := k.EndSurvey(ctx, s); err != nil {
		return err
	}
	a.logger.InfoContext(ctx, "read the leases of new shards", "leases", count, "took", time.Since(begin))
	return nil
}

func found(class session.ClassID, leases []coordinationv1.Lease) []keeper.Found {
	objects := make([]keeper.Found, 0, len(leases))
	for i := range leases {
		objects = append(objects, keeper.Found{
			Key: session.Key{Class: class, Name: leases[i].Name}, Object: leaseobject.Know(&leases[i]),
		})
	}
	return objects
}
