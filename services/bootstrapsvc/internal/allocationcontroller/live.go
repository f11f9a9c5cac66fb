package allocationcontroller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
)

// catchUpTimeout bounds how long a step waits for the watch of ranges, which is usually
// milliseconds behind.
const catchUpTimeout = 5 * time.Second

// liveBatch is what was read for one batch of steps.
type liveBatch struct {
	bitmap    allocation.Bitmap
	value     rangestore.Value
	addresses map[string]*allocation.IPAddress
	usage     *allocation.Usage
}

func (l *liveBatch) of(step allocation.Step) allocation.LiveState {
	return allocation.LiveState{Usage: l.usage, IPAddress: l.addresses[step.Object.Name], Bitmap: l.bitmap}
}

// readLive reads what the steps of one batch depend on: first what they write, then the Services. A
// Service that begins to use the subject after the list has allocated it before, and the guard of
// the write detects that.
//
// For steps that set bits, which takes nothing away, the bitmap is read last: kube-apiserver writes
// it with every Service that has ports, and a read in between would lose the race.
func (r *reconciler) readLive(ctx context.Context, steps []allocation.Step) (*liveBatch, error) {
	first, last := r.readTargets, r.readUsers
	if setsBits(steps) {
		first, last = last, first
	}
	live := &liveBatch{}
	if err := first(ctx, steps, live); err != nil {
		return nil, err
	}
	return live, last(ctx, steps, live)
}

func setsBits(steps []allocation.Step) bool { return steps[0].Store.IsBitmap() && !anyFrees(steps) }

func anyFrees(steps []allocation.Step) bool { return slices.ContainsFunc(steps, allocation.Step.Frees) }

func (r *reconciler) readTargets(ctx context.Context, steps []allocation.Step, live *liveBatch) (err error) {
	store := steps[0].Store
	if !store.IsBitmap() {
		live.addresses = map[string]*allocation.IPAddress{}
		for _, step := range steps {
			if live.addresses[step.Object.Name], err = r.Cluster.IPAddress(ctx, step.Object.Name); err != nil {
				return err
			}
		}
		return nil
	}
	if live.value, err = r.Ranges.Read(ctx, RangeName(store)); err != nil {
		return err
	}
	live.bitmap = r.bitmapOf(store, live.value)
	if anyFrees(steps) {
		return r.catchUp(ctx, store, live.value.ModRevision)
	}
	return nil
}

// catchUp applies watch events until the index has a bitmap at the revision that was read, and
// compares. A bit does not show its history: if it was cleared and set again in between, it belongs
// to a Service that no list may show yet.
func (r *reconciler) catchUp(ctx context.Context, store allocation.Store, revision int64) error {
	timeout := time.NewTimer(catchUpTimeout)
	defer timeout.Stop()
	for r.index.BitmapRevision(store) < revision {
		select {
		case change := <-r.watches.changes:
			change()
		case <-timeout.C:
			return fmt.Errorf("watch range %s: %w: revision %d has not come yet", RangeName(store), rangestore.ErrUnavailable, revision)
		case <-ctx.Done():
			return fmt.Errorf("watch range %s: %w: %w", RangeName(store), rangestore.ErrUnavailable, context.Cause(ctx))
		}
	}
	return r.compare(ctx, time.Now())
}

// readUsers reads all Services if a step frees, otherwise only the Services for which the steps
// allocate.
func (r *reconciler) readUsers(ctx context.Context, steps []allocation.Step, live *liveBatch) error {
	owners := map[allocation.Key]struct{}{}
	for _, step := range steps {
		if step.Frees() || step.Owner.Name == "" {
			services, err := r.Cluster.Services(ctx)
			live.usage = allocation.CountUsage(services)
			return err
		}
		owners[step.Owner.Key] = struct{}{}
	}
	var services []allocation.Service
	for owner := range owners {
		service, err := r.Cluster.Service(ctx, owner)
		if err != nil {
			return err
		}
		if service != nil {
			services = append(services, *service)
		}
	}
	live.usage = allocation.CountUsage(services)
	return nil
}
