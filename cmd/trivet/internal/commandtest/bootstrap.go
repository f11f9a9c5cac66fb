package commandtest

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// Bootstrap is a fake of the gateway's BootstrapService. Its fields must not change while it
// serves.
type Bootstrap struct {
	gatewayv1.UnimplementedBootstrapServiceServer

	// APIServers are all items, sorted by address.
	APIServers []*bootstrapv1.APIServer
	// Findings are all items, with the ended ones.
	Findings []*bootstrapv1.Finding
	// PageSize replaces the page size of requests, unless it is 0.
	PageSize int
	// Plan and Repair are the answers of their RPCs.
	Plan   *gatewayv1.PlanRepairResponse
	Repair *bootstrapv1.Repair
	// Err, unless nil, is the answer of all RPCs.
	Err error
	// ServerWatches and FindingWatches have the events of each opened watch in order.
	ServerWatches  [][]*gatewayv1.WatchAPIServersResponse
	FindingWatches [][]*gatewayv1.WatchFindingsResponse

	mu      sync.Mutex // guards the fields below
	planned [][]string
	applied []string
	opened  int
}

// Planned returns the names in each request for a plan.
func (b *Bootstrap) Planned() [][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.planned)
}

// Applied returns the token of each request to apply.
func (b *Bootstrap) Applied() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.applied)
}

// ListAPIServers returns APIServers.
func (b *Bootstrap) ListAPIServers(context.Context, *gatewayv1.ListAPIServersRequest) (*gatewayv1.ListAPIServersResponse, error) {
	return &gatewayv1.ListAPIServersResponse{Apiservers: b.APIServers}, b.Err
}

// WatchAPIServers sends the events of the next of ServerWatches.
func (b *Bootstrap) WatchAPIServers(_ *gatewayv1.WatchAPIServersRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchAPIServersResponse]) error {
	number := b.nextWatch()
	if b.Err != nil || number >= len(b.ServerWatches) {
		return b.Err
	}
	return sendAll(b.ServerWatches[number], nil, stream)
}

func (b *Bootstrap) nextWatch() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened++
	return b.opened - 1
}

// ListFindings returns a page of the selected Findings.
func (b *Bootstrap) ListFindings(_ context.Context, request *gatewayv1.ListFindingsRequest) (*gatewayv1.ListFindingsResponse, error) {
	selected := slices.DeleteFunc(slices.Clone(b.Findings), func(finding *bootstrapv1.Finding) bool {
		ended := finding.GetState() == bootstrapv1.Finding_STATE_REPAIRED || finding.GetState() == bootstrapv1.Finding_STATE_GONE
		return ended && !request.GetShowEnded() || request.GetCode() != 0 && finding.GetCode() != request.GetCode()
	})
	size := int(request.GetPageSize())
	if b.PageSize > 0 {
		size = b.PageSize
	}
	page, next := pageOf(selected, request.GetPageToken(), size)
	return &gatewayv1.ListFindingsResponse{Findings: page, NextPageToken: next}, b.Err
}

// WatchFindings sends the events of the next of FindingWatches.
func (b *Bootstrap) WatchFindings(_ *gatewayv1.WatchFindingsRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchFindingsResponse]) error {
	number := b.nextWatch()
	if b.Err != nil || number >= len(b.FindingWatches) {
		return b.Err
	}
	return sendAll(b.FindingWatches[number], nil, stream)
}

// PlanRepair returns Plan.
func (b *Bootstrap) PlanRepair(_ context.Context, request *gatewayv1.PlanRepairRequest) (*gatewayv1.PlanRepairResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.planned = append(b.planned, request.GetNames())
	return b.Plan, b.Err
}

// ApplyRepair returns Repair.
func (b *Bootstrap) ApplyRepair(_ context.Context, request *gatewayv1.ApplyRepairRequest) (*gatewayv1.ApplyRepairResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.applied = append(b.applied, request.GetToken())
	return &gatewayv1.ApplyRepairResponse{Repair: b.Repair}, b.Err
}
