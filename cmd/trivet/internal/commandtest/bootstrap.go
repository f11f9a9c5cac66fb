package commandtest

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// Bootstrap is a BootstrapService that says what it is told to. Its fields are not changed while it serves.
type Bootstrap struct {
	gatewayv1.UnimplementedBootstrapServiceServer

	// APIServers are all there are, ordered by address.
	APIServers []*bootstrapv1.APIServer
	// Findings are all there are, those that have ended included.
	Findings []*bootstrapv1.Finding
	// PerPage cuts pages shorter than they are asked for; 0 does not.
	PerPage int
	// Plan and Repair answer all questions of their kind.
	Plan   *gatewayv1.PlanRepairResponse
	Repair *bootstrapv1.Repair
	// Err, if there is one, answers everything.
	Err error
	// ServerWatches and FindingWatches are played one after the other, one for each watch that is opened.
	ServerWatches  [][]*gatewayv1.WatchAPIServersResponse
	FindingWatches [][]*gatewayv1.WatchFindingsResponse

	mu      sync.Mutex // guards what follows
	planned [][]string
	applied []string
	opened  int
}

// Planned returns the findings for which each plan was asked.
func (b *Bootstrap) Planned() [][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.planned)
}

// Applied returns the tokens that were to be applied.
func (b *Bootstrap) Applied() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.applied)
}

// ListAPIServers implements gatewayv1.BootstrapServiceServer, as all below do.
func (b *Bootstrap) ListAPIServers(context.Context, *gatewayv1.ListAPIServersRequest) (*gatewayv1.ListAPIServersResponse, error) {
	return &gatewayv1.ListAPIServersResponse{Apiservers: b.APIServers}, b.Err
}

// WatchAPIServers plays the next of ServerWatches.
func (b *Bootstrap) WatchAPIServers(_ *gatewayv1.WatchAPIServersRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchAPIServersResponse]) error {
	number := b.open()
	if b.Err != nil || number >= len(b.ServerWatches) {
		return b.Err
	}
	return play(b.ServerWatches[number], nil, stream)
}

func (b *Bootstrap) open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened++
	return b.opened - 1
}

// ListFindings filters and cuts.
func (b *Bootstrap) ListFindings(_ context.Context, request *gatewayv1.ListFindingsRequest) (*gatewayv1.ListFindingsResponse, error) {
	wanted := slices.DeleteFunc(slices.Clone(b.Findings), func(finding *bootstrapv1.Finding) bool {
		ended := finding.GetState() == bootstrapv1.Finding_STATE_REPAIRED || finding.GetState() == bootstrapv1.Finding_STATE_GONE
		return ended && !request.GetShowEnded() || request.GetCode() != 0 && finding.GetCode() != request.GetCode()
	})
	size := int(request.GetPageSize())
	if b.PerPage > 0 {
		size = b.PerPage
	}
	page, next := cut(wanted, request.GetPageToken(), size)
	return &gatewayv1.ListFindingsResponse{Findings: page, NextPageToken: next}, b.Err
}

// WatchFindings plays the next of FindingWatches.
func (b *Bootstrap) WatchFindings(_ *gatewayv1.WatchFindingsRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchFindingsResponse]) error {
	number := b.open()
	if b.Err != nil || number >= len(b.FindingWatches) {
		return b.Err
	}
	return play(b.FindingWatches[number], nil, stream)
}

// PlanRepair says Plan.
func (b *Bootstrap) PlanRepair(_ context.Context, request *gatewayv1.PlanRepairRequest) (*gatewayv1.PlanRepairResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.planned = append(b.planned, request.GetNames())
	return b.Plan, b.Err
}

// ApplyRepair says Repair.
func (b *Bootstrap) ApplyRepair(_ context.Context, request *gatewayv1.ApplyRepairRequest) (*gatewayv1.ApplyRepairResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.applied = append(b.applied, request.GetToken())
	return &gatewayv1.ApplyRepairResponse{Repair: b.Repair}, b.Err
}
