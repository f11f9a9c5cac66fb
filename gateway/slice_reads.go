package gateway

import (
	"context"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/leader"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
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
	} else if answer, err = leader.Ask(ctx, s.holders, request.Name, reconcile); err != nil {
		err = s.notAnswered(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ReconcileServiceResponse{Changes: answer.Changes, Applied: answer.Applied, Freshness: answer.Freshness}, nil
}
