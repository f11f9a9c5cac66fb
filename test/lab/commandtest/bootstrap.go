package commandtest

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// GetAPIServer returns one of APIServers.
func (g *Gateway) GetAPIServer(_ context.Context, request *bootstrapv1.GetAPIServerRequest) (*bootstrapv1.GetAPIServerResponse, error) {
	server, err := get(g, request, g.APIServers, "APISERVER_NOT_FOUND")
	return &bootstrapv1.GetAPIServerResponse{Apiserver: server}, err
}

// ListAPIServers returns a page of APIServers.
func (g *Gateway) ListAPIServers(_ context.Context, request *bootstrapv1.ListAPIServersRequest) (*bootstrapv1.ListAPIServersResponse, error) {
	page, next, err := pageOf(g, request, g.APIServers, func(*bootstrapv1.APIServer) bool { return true })
	return &bootstrapv1.ListAPIServersResponse{Apiservers: page, NextPageToken: next, Missing: g.Missing}, err
}

// WatchAPIServers sends the events of the next of APIServerWatches.
func (g *Gateway) WatchAPIServers(request *bootstrapv1.WatchAPIServersRequest, stream grpc.ServerStreamingServer[bootstrapv1.WatchAPIServersResponse]) error {
	return serveWatch(g, request, g.APIServerWatches, stream)
}

// GetFinding returns one of Findings.
func (g *Gateway) GetFinding(_ context.Context, request *bootstrapv1.GetFindingRequest) (*bootstrapv1.GetFindingResponse, error) {
	finding, err := get(g, request, g.Findings, "FINDING_NOT_FOUND")
	return &bootstrapv1.GetFindingResponse{Finding: finding}, err
}

// ListFindings returns a page of the selected Findings.
func (g *Gateway) ListFindings(_ context.Context, request *bootstrapv1.ListFindingsRequest) (*bootstrapv1.ListFindingsResponse, error) {
	page, next, err := pageOf(g, request, g.Findings, func(finding *bootstrapv1.Finding) bool {
		states := request.GetStates()
		if len(states) == 0 {
			states = []bootstrapv1.Finding_State{bootstrapv1.Finding_STATE_PENDING, bootstrapv1.Finding_STATE_OPEN, bootstrapv1.Finding_STATE_IGNORED}
		}
		return isSelected(request.GetCodes(), finding.GetCode()) && slices.Contains(states, finding.GetState())
	})
	return &bootstrapv1.ListFindingsResponse{Findings: page, NextPageToken: next, Missing: g.Missing}, err
}

// WatchFindings sends the events of the next of FindingWatches.
func (g *Gateway) WatchFindings(request *bootstrapv1.WatchFindingsRequest, stream grpc.ServerStreamingServer[bootstrapv1.WatchFindingsResponse]) error {
	return serveWatch(g, request, g.FindingWatches, stream)
}

// ExplainFinding returns FindingExplanation, and an error without one.
func (g *Gateway) ExplainFinding(_ context.Context, request *bootstrapv1.ExplainFindingRequest) (*bootstrapv1.ExplainFindingResponse, error) {
	if err := g.take(request); err != nil {
		return nil, err
	}
	if g.FindingExplanation == nil {
		return nil, rpcerror.New(codes.NotFound, "FINDING_NOT_FOUND", "there is no "+request.GetName())
	}
	return g.FindingExplanation, nil
}

// IgnoreFinding returns one of Findings as it is after the call.
func (g *Gateway) IgnoreFinding(_ context.Context, request *bootstrapv1.IgnoreFindingRequest) (*bootstrapv1.IgnoreFindingResponse, error) {
	finding, err := get(g, request, g.Findings, "FINDING_NOT_FOUND")
	if err != nil {
		return nil, err
	}
	finding = proto.CloneOf(finding)
	finding.State, finding.Ignore = bootstrapv1.Finding_STATE_IGNORED, &bootstrapv1.Finding_Ignore{Comment: request.GetComment()}
	return &bootstrapv1.IgnoreFindingResponse{Finding: finding}, nil
}

// UnignoreFinding returns one of Findings as it is after the call.
func (g *Gateway) UnignoreFinding(_ context.Context, request *bootstrapv1.UnignoreFindingRequest) (*bootstrapv1.UnignoreFindingResponse, error) {
	finding, err := get(g, request, g.Findings, "FINDING_NOT_FOUND")
	if err != nil {
		return nil, err
	}
	finding = proto.CloneOf(finding)
	finding.State, finding.Ignore = bootstrapv1.Finding_STATE_OPEN, nil
	return &bootstrapv1.UnignoreFindingResponse{Finding: finding}, nil
}

// CreateRepairPlan returns Plan, without a name if it is only validated.
func (g *Gateway) CreateRepairPlan(_ context.Context, request *bootstrapv1.CreateRepairPlanRequest) (*bootstrapv1.CreateRepairPlanResponse, error) {
	plan := g.Plan
	if request.GetValidateOnly() {
		plan = proto.CloneOf(plan)
		plan.Name = ""
	}
	return &bootstrapv1.CreateRepairPlanResponse{RepairPlan: plan}, g.take(request)
}

// GetRepairPlan returns one of Plans.
func (g *Gateway) GetRepairPlan(_ context.Context, request *bootstrapv1.GetRepairPlanRequest) (*bootstrapv1.GetRepairPlanResponse, error) {
	plan, err := get(g, request, g.Plans, "PLAN_NOT_FOUND")
	return &bootstrapv1.GetRepairPlanResponse{RepairPlan: plan}, err
}

// ListRepairPlans returns a page of Plans.
func (g *Gateway) ListRepairPlans(_ context.Context, request *bootstrapv1.ListRepairPlansRequest) (*bootstrapv1.ListRepairPlansResponse, error) {
	page, next, err := pageOf(g, request, g.Plans, func(*bootstrapv1.RepairPlan) bool { return true })
	return &bootstrapv1.ListRepairPlansResponse{RepairPlans: page, NextPageToken: next, Missing: g.Missing}, err
}

// ApplyRepairPlan returns the next of ApplyErrs, and then Applied.
func (g *Gateway) ApplyRepairPlan(_ context.Context, request *bootstrapv1.ApplyRepairPlanRequest) (*bootstrapv1.ApplyRepairPlanResponse, error) {
	if err := g.take(request); err != nil {
		return nil, err
	}
	if calls := len(RequestsOf[*bootstrapv1.ApplyRepairPlanRequest](g)); calls <= len(g.ApplyErrs) {
		return nil, g.ApplyErrs[calls-1]
	}
	return &bootstrapv1.ApplyRepairPlanResponse{Repair: g.Applied}, nil
}

// GetRepair returns one of Repairs.
func (g *Gateway) GetRepair(_ context.Context, request *bootstrapv1.GetRepairRequest) (*bootstrapv1.GetRepairResponse, error) {
	repair, err := get(g, request, g.Repairs, "REPAIR_NOT_FOUND")
	return &bootstrapv1.GetRepairResponse{Repair: repair}, err
}

// ListRepairs returns a page of the selected Repairs.
func (g *Gateway) ListRepairs(_ context.Context, request *bootstrapv1.ListRepairsRequest) (*bootstrapv1.ListRepairsResponse, error) {
	page, next, err := pageOf(g, request, g.Repairs, func(repair *bootstrapv1.Repair) bool {
		return isSelected(request.GetStates(), repair.GetState())
	})
	return &bootstrapv1.ListRepairsResponse{Repairs: page, NextPageToken: next, Missing: g.Missing}, err
}

// WatchRepairs sends the events of the next of RepairWatches.
func (g *Gateway) WatchRepairs(request *bootstrapv1.WatchRepairsRequest, stream grpc.ServerStreamingServer[bootstrapv1.WatchRepairsResponse]) error {
	return serveWatch(g, request, g.RepairWatches, stream)
}

// CancelRepair returns one of Repairs as it is after the call.
func (g *Gateway) CancelRepair(_ context.Context, request *bootstrapv1.CancelRepairRequest) (*bootstrapv1.CancelRepairResponse, error) {
	repair, err := get(g, request, g.Repairs, "REPAIR_NOT_FOUND")
	if err != nil {
		return nil, err
	}
	if repair.GetState() != bootstrapv1.Repair_STATE_RUNNING {
		return nil, rpcerror.New(codes.FailedPrecondition, "REPAIR_NOT_CANCELLABLE", request.GetName()+" has ended")
	}
	repair = proto.CloneOf(repair)
	repair.State = bootstrapv1.Repair_STATE_CANCELLED
	return &bootstrapv1.CancelRepairResponse{Repair: repair}, nil
}
