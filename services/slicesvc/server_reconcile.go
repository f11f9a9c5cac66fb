package slicesvc

import (
	"context"
	"errors"

	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// ReconcileService brings a Service's slices in line now, or says what that would take.
func (s *server) ReconcileService(ctx context.Context, request *slicev1.ReconcileServiceRequest) (*slicev1.ReconcileServiceResponse, error) {
	if err := s.available(); err != nil {
		return nil, toStatus(err)
	}
	key, ok := parseName(request.GetName())
	if !ok {
		return nil, toStatus(&notFoundError{name: request.GetName()})
	}
	freshness := s.freshness(s.service.epochOf(key))
	outcome, err := s.reconcile(ctx, key, request.GetValidateOnly())
	if err != nil {
		return nil, toStatus(s.reconcileError(request.GetName(), key, freshness, err))
	}
	return &slicev1.ReconcileServiceResponse{Changes: convertPlan(outcome.Plan), Applied: outcome.Applied, Freshness: freshness}, nil
}

func (s *server) reconcile(ctx context.Context, key slicecontroller.Key, only bool) (slicecontroller.Outcome, error) {
	if !only {
		return s.service.engine.Reconcile(ctx, key)
	}
	state, ok := s.service.engine.State(key)
	if !ok {
		return slicecontroller.Outcome{}, slicecontroller.ErrNoService
	}
	preview, ok := s.service.engine.Preview(key)
	switch {
	case !ok:
		return slicecontroller.Outcome{}, slicecontroller.ErrNoService
	case state.Unmanaged != index.Managed && preview.Plan.Empty():
		return slicecontroller.Outcome{}, slicecontroller.ErrUnmanaged
	}
	return slicecontroller.Outcome{Plan: preview.Plan}, nil
}

// reconcileError says for the API what kept a Service from being brought in line.
func (s *server) reconcileError(name string, key slicecontroller.Key, seen *statusv1.Freshness, err error) error {
	switch {
	case errors.Is(err, slicecontroller.ErrNoService):
		return &notFoundError{name: name, seen: seen}
	case errors.Is(err, slicecontroller.ErrUnmanaged):
		state, ok := s.service.engine.State(key)
		if !ok {
			return &notFoundError{name: name, seen: seen}
		}
		return &unmanagedError{name: name, reason: string(state.Unmanaged)}
	case errors.Is(err, slicecontroller.ErrNotHeld):
		holding := s.service.leadership.Status().Shards[s.service.shardOf(key)]
		return &elsewhereError{shard: holding.Shard, address: holding.GRPCAddress}
	}
	return err
}
