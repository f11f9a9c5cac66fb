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

// Slices is a SliceService that says what it is told to. Its fields are not changed while it serves.
type Slices struct {
	gatewayv1.UnimplementedSliceServiceServer

	// Services are all there are, ordered by name.
	Services []*slicev1.ServiceSlices
	// PerPage cuts pages shorter than they are asked for; 0 does not.
	PerPage int
	// Missing is said with every page.
	Missing []*gatewayv1.SourceStatus
	// Plan, Reconciled and Explanation answer all questions of their kind.
	Plan        *gatewayv1.PlanServiceResponse
	Reconciled  *gatewayv1.ReconcileServiceResponse
	Explanation *gatewayv1.ExplainEndpointResponse
	// Err, if there is one, answers everything.
	Err error
	// Watches are played one after the other, one for each watch that is opened.
	Watches [][]*gatewayv1.WatchServiceSlicesResponse
	// Within is the parent that watches must have; any other is refused.
	Within string

	opened atomic.Int64
}

// GetServiceSlices implements gatewayv1.SliceServiceServer, as all below do.
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

// ListServiceSlices filters and cuts.
func (s *Slices) ListServiceSlices(_ context.Context, request *gatewayv1.ListServiceSlicesRequest) (*gatewayv1.ListServiceSlicesResponse, error) {
	var wanted []*slicev1.ServiceSlices
	for _, service := range s.Services {
		if strings.HasPrefix(service.GetName(), request.GetParent()) {
			wanted = append(wanted, service)
		}
	}
	size := int(request.GetPageSize())
	if s.PerPage > 0 {
		size = s.PerPage
	}
	page, next := cut(wanted, request.GetPageToken(), size)
	return &gatewayv1.ListServiceSlicesResponse{ServiceSlices: page, NextPageToken: next, Missing: s.Missing}, s.Err
}

// WatchServiceSlices plays the next of Watches.
func (s *Slices) WatchServiceSlices(request *gatewayv1.WatchServiceSlicesRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchServiceSlicesResponse]) error {
	if request.GetParent() != s.Within {
		return status.Errorf(codes.InvalidArgument, "watch of %q, want of %q", request.GetParent(), s.Within)
	}
	number := int(s.opened.Add(1)) - 1
	if s.Err != nil || number >= len(s.Watches) {
		return s.Err
	}
	return play(s.Watches[number], nil, stream)
}

// PlanService says Plan.
func (s *Slices) PlanService(context.Context, *gatewayv1.PlanServiceRequest) (*gatewayv1.PlanServiceResponse, error) {
	return s.Plan, s.Err
}

// ReconcileService says Reconciled.
func (s *Slices) ReconcileService(context.Context, *gatewayv1.ReconcileServiceRequest) (*gatewayv1.ReconcileServiceResponse, error) {
	return s.Reconciled, s.Err
}

// ExplainEndpoint says Explanation.
func (s *Slices) ExplainEndpoint(context.Context, *gatewayv1.ExplainEndpointRequest) (*gatewayv1.ExplainEndpointResponse, error) {
	return s.Explanation, s.Err
}
