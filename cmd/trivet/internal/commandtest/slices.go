package commandtest

import (
	"context"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/rpcerror"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// Slices is a fake of the gateway's SliceService. Its fields must not change while it serves.
type Slices struct {
	gatewayv1.UnimplementedSliceServiceServer

	// Services are all items, sorted by name.
	Services []*slicev1.ServiceSlices
	// PageSize replaces the page size of requests, unless it is 0.
	PageSize int
	// Missing is returned with every page.
	Missing []*gatewayv1.SourceStatus
	// Plan, Reconciled and Explanation are the answers of their RPCs.
	Plan        *gatewayv1.PlanServiceResponse
	Reconciled  *gatewayv1.ReconcileServiceResponse
	Explanation *gatewayv1.ExplainEndpointResponse
	// Err, unless nil, is the answer of all RPCs.
	Err error
	// Watches has the events of each opened watch in order.
	Watches [][]*gatewayv1.WatchServiceSlicesResponse
	// WatchParent is the required parent of watches.
	WatchParent string

	opened atomic.Int64
}

// GetServiceSlices returns one of Services.
func (s *Slices) GetServiceSlices(_ context.Context, request *gatewayv1.GetServiceSlicesRequest) (*gatewayv1.GetServiceSlicesResponse, error) {
	if s.Err != nil {
		return nil, s.Err
	}
	for _, service := range s.Services {
		if service.GetName() == request.GetName() {
			return &gatewayv1.GetServiceSlicesResponse{ServiceSlices: service}, nil
		}
	}
	return nil, rpcerror.New(codes.NotFound, "SERVICE_NOT_FOUND", "no service "+request.GetName())
}

// ListServiceSlices returns a page of the selected Services.
func (s *Slices) ListServiceSlices(_ context.Context, request *gatewayv1.ListServiceSlicesRequest) (*gatewayv1.ListServiceSlicesResponse, error) {
	var selected []*slicev1.ServiceSlices
	for _, service := range s.Services {
		if strings.HasPrefix(service.GetName(), request.GetParent()) {
			selected = append(selected, service)
		}
	}
	size := int(request.GetPageSize())
	if s.PageSize > 0 {
		size = s.PageSize
	}
	page, next := pageOf(selected, request.GetPageToken(), size)
	return &gatewayv1.ListServiceSlicesResponse{ServiceSlices: page, NextPageToken: next, Missing: s.Missing}, s.Err
}

// WatchServiceSlices sends the events of the next of Watches.
func (s *Slices) WatchServiceSlices(request *gatewayv1.WatchServiceSlicesRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchServiceSlicesResponse]) error {
	if request.GetParent() != s.WatchParent {
		return status.Errorf(codes.InvalidArgument, "watch of %q, want of %q", request.GetParent(), s.WatchParent)
	}
	number := int(s.opened.Add(1)) - 1
	if s.Err != nil || number >= len(s.Watches) {
		return s.Err
	}
	return sendAll(s.Watches[number], nil, stream)
}

// PlanService returns Plan.
func (s *Slices) PlanService(context.Context, *gatewayv1.PlanServiceRequest) (*gatewayv1.PlanServiceResponse, error) {
	return s.Plan, s.Err
}

// ReconcileService returns Reconciled.
func (s *Slices) ReconcileService(context.Context, *gatewayv1.ReconcileServiceRequest) (*gatewayv1.ReconcileServiceResponse, error) {
	return s.Reconciled, s.Err
}

// ExplainEndpoint returns Explanation.
func (s *Slices) ExplainEndpoint(context.Context, *gatewayv1.ExplainEndpointRequest) (*gatewayv1.ExplainEndpointResponse, error) {
	return s.Explanation, s.Err
}
