package gateway

import (
	"context"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/leader"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// GetBaseline implements BootstrapService.
func (s *bootstrapServer) GetBaseline(ctx context.Context, _ *gatewayv1.GetBaselineRequest) (*gatewayv1.GetBaselineResponse, error) {
	answer, err := leader.Any(ctx, s.atWork, theTerm, func(ctx context.Context, conn grpc.ClientConnInterface) (*bootstrapv1.GetBaselineResponse, error) {
		return bootstrapv1.NewBootstrapServiceClient(conn).GetBaseline(ctx, &bootstrapv1.GetBaselineRequest{})
	})
	if err != nil {
		return nil, s.notAnswered(ctx, err)
	}
	return &gatewayv1.GetBaselineResponse{Baseline: answer.Baseline, Freshness: answer.Freshness}, nil
}

// ListAPIServers implements BootstrapService.
func (s *bootstrapServer) ListAPIServers(ctx context.Context, _ *gatewayv1.ListAPIServersRequest) (*gatewayv1.ListAPIServersResponse, error) {
	answer, err := leader.Any(ctx, s.holder, theTerm, func(ctx context.Context, conn grpc.ClientConnInterface) (*bootstrapv1.ListAPIServersResponse, error) {
		return bootstrapv1.NewBootstrapServiceClient(conn).ListAPIServers(ctx, &bootstrapv1.ListAPIServersRequest{})
	})
	if err != nil {
		return nil, s.notAnswered(ctx, err)
	}
	return &gatewayv1.ListAPIServersResponse{Apiservers: answer.Apiservers, Freshness: answer.Freshness}, nil
}

// ListFindings implements BootstrapService.
func (s *bootstrapServer) ListFindings(ctx context.Context, request *gatewayv1.ListFindingsRequest) (*gatewayv1.ListFindingsResponse, error) {
	answer, err := leader.Ask(ctx, s.holder, theTerm, func(ctx context.Context, conn grpc.ClientConnInterface) (*bootstrapv1.ListFindingsResponse, error) {
		return bootstrapv1.NewBootstrapServiceClient(conn).ListFindings(ctx, &bootstrapv1.ListFindingsRequest{
			Code: request.Code, ShowEnded: request.ShowEnded, PageSize: request.PageSize, PageToken: request.PageToken,
		})
	})
	if err != nil {
		return nil, s.notAnswered(ctx, err)
	}
	return &gatewayv1.ListFindingsResponse{Findings: answer.Findings, NextPageToken: answer.NextPageToken, Freshness: answer.Freshness}, nil
}

// Audit implements BootstrapService.
func (s *bootstrapServer) Audit(ctx context.Context, _ *gatewayv1.AuditRequest) (*gatewayv1.AuditResponse, error) {
	answer, err := leader.Ask(ctx, s.atWork, theTerm, func(ctx context.Context, conn grpc.ClientConnInterface) (*bootstrapv1.AuditResponse, error) {
		return bootstrapv1.NewBootstrapServiceClient(conn).Audit(ctx, &bootstrapv1.AuditRequest{})
	})
	if err != nil {
		return nil, s.notAnswered(ctx, err)
	}
	return &gatewayv1.AuditResponse{Stores: answer.Stores, Findings: answer.Findings, Freshness: answer.Freshness}, nil
}

// PlanRepair implements BootstrapService.
func (s *bootstrapServer) PlanRepair(ctx context.Context, request *gatewayv1.PlanRepairRequest) (*gatewayv1.PlanRepairResponse, error) {
	answer, err := leader.Ask(ctx, s.atWork, theTerm, func(ctx context.Context, conn grpc.ClientConnInterface) (*bootstrapv1.PlanRepairResponse, error) {
		return bootstrapv1.NewBootstrapServiceClient(conn).PlanRepair(ctx, &bootstrapv1.PlanRepairRequest{Names: request.Names})
	})
	if err != nil {
		return nil, s.notAnswered(ctx, err)
	}
	return &gatewayv1.PlanRepairResponse{
		Steps: answer.Steps, Left: answer.Left, LeftOmitted: answer.LeftOmitted, Token: answer.Token, ExpireTime: answer.ExpireTime,
		Freshness: answer.Freshness,
	}, nil
}

// ApplyRepair implements BootstrapService. That it may reach a second replica, when the first dies on the way, does no harm: a token
// is applied once.
func (s *bootstrapServer) ApplyRepair(ctx context.Context, request *gatewayv1.ApplyRepairRequest) (*gatewayv1.ApplyRepairResponse, error) {
	answer, err := leader.Ask(ctx, s.applying, theTerm, func(ctx context.Context, conn grpc.ClientConnInterface) (*bootstrapv1.ApplyRepairResponse, error) {
		return bootstrapv1.NewBootstrapServiceClient(conn).ApplyRepair(ctx, &bootstrapv1.ApplyRepairRequest{Token: request.Token})
	})
	if err != nil {
		return nil, s.notAnswered(ctx, err)
	}
	return &gatewayv1.ApplyRepairResponse{Repair: answer.Repair, Freshness: answer.Freshness}, nil
}

// ListRepairs implements BootstrapService.
func (s *bootstrapServer) ListRepairs(ctx context.Context, _ *gatewayv1.ListRepairsRequest) (*gatewayv1.ListRepairsResponse, error) {
	answer, err := leader.Any(ctx, s.holder, theTerm, func(ctx context.Context, conn grpc.ClientConnInterface) (*bootstrapv1.ListRepairsResponse, error) {
		return bootstrapv1.NewBootstrapServiceClient(conn).ListRepairs(ctx, &bootstrapv1.ListRepairsRequest{})
	})
	if err != nil {
		return nil, s.notAnswered(ctx, err)
	}
	return &gatewayv1.ListRepairsResponse{Repairs: answer.Repairs, Freshness: answer.Freshness}, nil
}
