package gateway

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/feed"
	"github.com/trivet-dev/trivet/gateway/internal/owner"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// GetServiceSlices implements SliceService.
func (s *sliceServer) GetServiceSlices(ctx context.Context, request *gatewayv1.GetServiceSlicesRequest) (*gatewayv1.GetServiceSlicesResponse, error) {
	answer, err := best(ctx, s.replicas, func(ctx context.Context, conn grpc.ClientConnInterface) (*slicev1.GetServiceSlicesResponse, error) {
		return slicev1.NewSliceServiceClient(conn).GetServiceSlices(ctx, &slicev1.GetServiceSlicesRequest{Name: request.Name})
	})
	if err != nil {
		return nil, err
	}
	return &gatewayv1.GetServiceSlicesResponse{ServiceSlices: answer.ServiceSlices, Freshness: answer.Freshness}, nil
}

// PlanService implements SliceService.
func (s *sliceServer) PlanService(ctx context.Context, request *gatewayv1.PlanServiceRequest) (*gatewayv1.PlanServiceResponse, error) {
	answer, err := best(ctx, s.replicas, func(ctx context.Context, conn grpc.ClientConnInterface) (*slicev1.PlanServiceResponse, error) {
		return slicev1.NewSliceServiceClient(conn).PlanService(ctx, &slicev1.PlanServiceRequest{Name: request.Name})
	})
	if err != nil {
		return nil, err
	}
	return &gatewayv1.PlanServiceResponse{Changes: answer.Changes, WaitingFor: answer.WaitingFor, Freshness: answer.Freshness}, nil
}

// ExplainEndpoint implements SliceService.
func (s *sliceServer) ExplainEndpoint(ctx context.Context, request *gatewayv1.ExplainEndpointRequest) (*gatewayv1.ExplainEndpointResponse, error) {
	answer, err := best(ctx, s.replicas, func(ctx context.Context, conn grpc.ClientConnInterface) (*slicev1.ExplainEndpointResponse, error) {
		return slicev1.NewSliceServiceClient(conn).ExplainEndpoint(ctx, &slicev1.ExplainEndpointRequest{Name: request.Name, Pod: request.Pod})
	})
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ExplainEndpointResponse{
		Included: answer.Included, Settled: answer.Settled, Evidence: answer.Evidence, FirstBroken: answer.FirstBroken, Freshness: answer.Freshness,
	}, nil
}

// ReconcileService implements SliceService. Only to say what would be done, any replica will do.
func (s *sliceServer) ReconcileService(ctx context.Context, request *gatewayv1.ReconcileServiceRequest) (*gatewayv1.ReconcileServiceResponse, error) {
	reconcile := func(ctx context.Context, conn grpc.ClientConnInterface) (*slicev1.ReconcileServiceResponse, error) {
		return slicev1.NewSliceServiceClient(conn).ReconcileService(ctx, &slicev1.ReconcileServiceRequest{Name: request.Name, ValidateOnly: request.ValidateOnly})
	}
	var answer *slicev1.ReconcileServiceResponse
	var err error
	if request.ValidateOnly {
		answer, err = best(ctx, s.replicas, reconcile)
	} else if answer, err = owner.Ask(ctx, s.holders, request.Name, reconcile); err != nil {
		err = s.notAnswered(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ReconcileServiceResponse{Changes: answer.Changes, Applied: answer.Applied, Freshness: answer.Freshness}, nil
}

// fresh is an answer that says what it was made from.
type fresh interface {
	comparable
	GetFreshness() *statusv1.Freshness
}

// reply is how one replica answered.
type reply[Answer fresh] struct {
	answer Answer
	err    error
	member term.Member
	took   time.Duration
}

// best asks all replicas at once and takes the answer of the one that made it under a term, as soon as it is there; without one,
// the answer from the newest cache. The error is what replicas said that could be asked, or NO_SOURCE.
func best[Answer fresh](ctx context.Context, s *replicas, call func(context.Context, grpc.ClientConnInterface) (Answer, error)) (Answer, error) {
	asking, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	members := s.members()
	replies := make(chan reply[Answer], len(members)) // nobody waits for who is not needed any more
	for _, member := range members {
		go func() {
			started := time.Now()
			answer, err := askOne(asking, s, member, call)
			replies <- reply[Answer]{answer: answer, err: err, member: member, took: time.Since(started)}
		}()
	}
	var found, none Answer
	var failures []feed.Failure
	for range members {
		next := <-replies
		switch {
		case next.err != nil:
			failures = append(failures, feed.Failure{Err: next.err, Status: fanout.Failure(next.member, next.err, next.took)})
		case next.answer.GetFreshness().GetEpoch() != 0:
			return next.answer, nil
		case found == none || newer(next.answer.GetFreshness(), found.GetFreshness()):
			found = next.answer
		}
	}
	switch {
	case found != none:
		return found, nil
	case ctx.Err() != nil:
		return none, context.Cause(ctx) // else a caller that left would be told that nobody answered
	}
	return none, s.noAnswer(failures)
}

func askOne[Answer any](ctx context.Context, s *replicas, member term.Member, call func(context.Context, grpc.ClientConnInterface) (Answer, error)) (Answer, error) {
	conn, err := s.pool.Connection(member)
	if err != nil {
		var none Answer
		return none, err
	}
	return call(ctx, conn)
}

// newer says whether a cache has seen more than another one. Resource versions are numbers without leading zeros.
func newer(a, b *statusv1.Freshness) bool {
	of, than := a.GetResourceVersion(), b.GetResourceVersion()
	return cmp.Or(cmp.Compare(len(of), len(than)), cmp.Compare(of, than)) > 0
}

// noAnswer is what replicas said about the question, if any could be asked that knows; else that nobody could.
func (s *replicas) noAnswer(failures []feed.Failure) error {
	for _, failure := range failures {
		switch code := status.Code(failure.Err); {
		case rpcerror.ReasonOf(failure.Err) == "" || code == codes.Unavailable || code == codes.DeadlineExceeded:
		case rpcerror.ReasonOf(failure.Err) == rpcerror.UnknownMethodReason:
		default:
			return failure.Err
		}
	}
	return s.noneTells(failures)
}
