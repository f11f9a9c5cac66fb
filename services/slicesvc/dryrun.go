package slicesvc

import (
	"context"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/shadowcontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// modeWriter refuses the writes of a loop in dry run. Such a loop calls no Writer, and its context
// carries no term, so that the transport refuses its writes, too. A loop that is switched off
// writes nothing from then on, also before its run has returned.
type modeWriter struct {
	slicecontroller.Writer
	loop   string
	dryRun func(loop string) bool
}

func (w modeWriter) Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	if w.dryRun(w.loop) {
		return nil, fmt.Errorf("%s endpointslice %s/%s: loop %s is in dry run", change.Verb, change.Slice.Namespace, change.Slice.Name, w.loop)
	}
	return w.Writer.Write(ctx, change)
}

// withShadow adds the dry run to a loop: one run compares all shards that this replica holds,
// outside of their terms.
func (s *Service) withShadow(l loop.Loop, compare func(context.Context, loop.Report) error) loop.Loop {
	l.ShadowScope = loop.Always
	l.Shadow = func(ctx context.Context, report loop.Report) error {
		defer s.shadow.Tracker(l.Name).Idle()
		return compare(ctx, report)
	}
	return l
}

func (s *Service) compareSlices(ctx context.Context, report loop.Report) error {
	if !awaitCaches(ctx, s.watches.Synced(), s.watches.CheckSlices, report) {
		return nil
	}
	return shadowcontroller.New(shadowcontroller.Config{
		Kind: "services", Source: s.controller, Watches: s.watches.ComparedInputs(s.watches.Inputs()),
		Tracker: s.shadow.Tracker(LoopName), Held: s.heldShards, Logger: s.logger,
	}).Run(ctx, report)
}

func (s *Service) compareMirrors(ctx context.Context, report loop.Report) error {
	if !awaitCaches(ctx, s.watches.EndpointsSynced(), s.watches.Check, report) {
		return nil
	}
	return shadowcontroller.New(shadowcontroller.Config{
		Kind: "endpoints", Source: s.mirrors.controller, Watches: s.watches.ComparedInputs(s.watches.MirrorInputs()),
		Tracker: s.shadow.Tracker(MirrorLoopName), Held: s.heldShards, Logger: s.logger,
	}).Run(ctx, report)
}

// heldShards returns the shards that this replica holds.
func (s *Service) heldShards() []int {
	var held []int
	for _, shard := range s.leadership.Status().Shards {
		if shard.Here {
			held = append(held, shard.Shard)
		}
	}
	return held
}
