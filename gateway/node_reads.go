package gateway

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/leader"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// GetNodeHealth implements NodeService.
func (s *nodeServer) GetNodeHealth(ctx context.Context, request *gatewayv1.GetNodeHealthRequest) (*gatewayv1.GetNodeHealthResponse, error) {
	answer, err := leader.Ask(ctx, s.router, request.Name, func(ctx context.Context, conn grpc.ClientConnInterface) (*leasev1.GetNodeHealthResponse, error) {
		return leasev1.NewNodeHealthServiceClient(conn).GetNodeHealth(ctx, &leasev1.GetNodeHealthRequest{Name: request.Name})
	})
	if err != nil {
		return nil, s.notAnswered(ctx, err)
	}
	return &gatewayv1.GetNodeHealthResponse{Node: answer.Node, Freshness: answer.Freshness}, nil
}

// ExplainNodeHealth implements NodeService.
func (s *nodeServer) ExplainNodeHealth(ctx context.Context, request *gatewayv1.ExplainNodeHealthRequest) (*gatewayv1.ExplainNodeHealthResponse, error) {
	answer, err := leader.Ask(ctx, s.router, request.Name, func(ctx context.Context, conn grpc.ClientConnInterface) (*leasev1.ExplainNodeHealthResponse, error) {
		return leasev1.NewNodeHealthServiceClient(conn).ExplainNodeHealth(ctx, &leasev1.ExplainNodeHealthRequest{Name: request.Name})
	})
	if err != nil {
		return nil, s.notAnswered(ctx, err)
	}
	return &gatewayv1.ExplainNodeHealthResponse{
		Node: answer.Node, Evidence: answer.Evidence, FirstBroken: answer.FirstBroken, Silence: answer.Silence, Freshness: answer.Freshness,
	}, nil
}

// ListZones implements NodeService.
func (s *nodeServer) ListZones(ctx context.Context, _ *gatewayv1.ListZonesRequest) (*gatewayv1.ListZonesResponse, error) {
	answer, err := leader.Ask(ctx, s.router, "zones", func(ctx context.Context, conn grpc.ClientConnInterface) (*leasev1.ListZonesResponse, error) {
		return leasev1.NewNodeHealthServiceClient(conn).ListZones(ctx, &leasev1.ListZonesRequest{})
	})
	if err != nil {
		return nil, s.notAnswered(ctx, err)
	}
	return &gatewayv1.ListZonesResponse{Zones: answer.Zones, BlindBy: answer.BlindBy, Freshness: answer.Freshness}, nil
}

// GetLease implements NodeService.
func (s *nodeServer) GetLease(ctx context.Context, request *gatewayv1.GetLeaseRequest) (*gatewayv1.GetLeaseResponse, error) {
	answer, err := leader.Ask(ctx, s.router, request.Name, func(ctx context.Context, conn grpc.ClientConnInterface) (*leasev1.GetLeaseResponse, error) {
		return leasev1.NewLeaseServiceClient(conn).GetLease(ctx, &leasev1.GetLeaseRequest{Name: request.Name})
	})
	if err != nil {
		return nil, s.notAnswered(ctx, err)
	}
	return &gatewayv1.GetLeaseResponse{Lease: answer.Lease, Freshness: answer.Freshness}, nil
}

// notAnswered hands on what a replica said, and says who could not be asked where none did.
func (s *replicas) notAnswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx) // else a caller that left would be told that nobody answered
	}
	var unreachable leader.UnreachableError
	if errors.As(err, &unreachable) {
		return noSource(s.cluster, unreachable.Error(), unreachable.Failures, s.directory.Check())
	}
	return err
}
