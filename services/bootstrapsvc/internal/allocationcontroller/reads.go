package allocationcontroller

import (
	"context"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
)

// sight is what was read for steps that are made together.
type sight struct {
	bitmap    allocation.Bitmap
	value     rangestore.Value
	addresses map[string]*allocation.IPAddress
	usage     *allocation.Usage
}

func newSight() *sight { return &sight{addresses: map[string]*allocation.IPAddress{}} }

// live is what was read for one of the steps.
func (v *sight) live(step allocation.Step) allocation.LiveState {
	return allocation.LiveState{Usage: v.usage, IPAddress: v.addresses[step.Object.Name], Bitmap: v.bitmap}
}

// look reads what steps of one batch depend on: first what is to be written, and only then the Services. A Service that takes
// something into use after the list was read has allocated it before, and that is seen by the guard of the write.
//
// Only where bits are set, which takes nothing from anybody, the bitmap is read last: kube-apiserver writes it with every
// Service that has ports, and whatever is read in between loses the race against it.
func (s *session) look(ctx context.Context, steps []allocation.Step) (*sight, error) {
	first, last := s.readTargets, s.readUsers
	if setBits(steps) {
		first, last = last, first
	}
	seen := newSight()
	if err := first(ctx, steps, seen); err != nil {
		return nil, err
	}
	return seen, last(ctx, steps, seen)
}

// setBits tells whether the steps of a batch set bits.
func setBits(steps []allocation.Step) bool { return steps[0].Store.IsBitmap() && !anyFrees(steps) }

// readTargets reads what steps of one batch would write.
func (s *session) readTargets(ctx context.Context, steps []allocation.Step, seen *sight) (err error) {
	store := steps[0].Store
	if !store.IsBitmap() {
		for _, step := range steps {
			if seen.addresses[step.Object.Name], err = s.Cluster.IPAddress(ctx, step.Object.Name); err != nil {
				return err
			}
		}
		return nil
	}
	if seen.value, err = s.Ranges.Read(ctx, RangeName(store)); err != nil {
		return err
	}
	seen.bitmap = s.bitmapOf(store, seen.value)
	if anyFrees(steps) {
		return s.catchUp(ctx, store, seen.value.ModRevision)
	}
	return nil
}

// readUsers reads all Services, or only those that steps allocate for when none of the steps frees anything.
func (s *session) readUsers(ctx context.Context, steps []allocation.Step, seen *sight) error {
	services, err := s.users(ctx, steps)
	if err == nil {
		seen.usage = allocation.CountUsage(services)
	}
	return err
}

func (s *session) users(ctx context.Context, steps []allocation.Step) ([]allocation.Service, error) {
	owners := map[allocation.Key]struct{}{}
	for _, step := range steps {
		if step.Frees() || step.Owner.Name == "" {
			return s.Cluster.Services(ctx)
		}
		owners[step.Owner.Key] = struct{}{}
	}
	var found []allocation.Service
	for owner := range owners {
		service, err := s.Cluster.Service(ctx, owner)
		if err != nil {
			return nil, err
		}
		if service != nil {
			found = append(found, *service)
		}
	}
	return found, nil
}
