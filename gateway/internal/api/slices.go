package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// Pages of Services are smaller than those of Nodes, because each Service has its slices.
const (
	defaultSlicesPageSize = 100
	maxSlicesPageSize     = 1000
)

// workFactor is how many timeouts a replica has for a call that does more than read its memory.
const workFactor = 5

// sliceServer handles SliceService. Each replica of slicesvc has all Services; the holder of the
// shard of a Service also has the outcome of the last writes, and reports a higher epoch.
type sliceServer struct {
	gatewayv1.UnimplementedSliceServiceServer

	*service
	slowRouter *leader.Router // for calls that write
	slices     *fanin.Hub[*slicev1.ServiceSlices]
}

func newSliceServer(cfg Config) *sliceServer {
	s := &sliceServer{service: newService(cfg, "slicesvc")}
	s.slowRouter = s.router.WithTimeout(workFactor * cfg.Timeout)
	s.slices = fanin.NewHub(fanin.Config[*slicev1.ServiceSlices]{
		Sources: s.sources, Open: s.open, SilenceTimeout: cfg.Timeout,
		View: merge.ViewConfig[*slicev1.ServiceSlices]{
			Ownership: merge.Replicated, Key: merge.KeyOf[*slicev1.ServiceSlices], Same: sameSlices,
		},
	})
	return s
}

func (s *sliceServer) GetServiceSlices(ctx context.Context, request *gatewayv1.GetServiceSlicesRequest) (*gatewayv1.GetServiceSlicesResponse, error) {
	answer, err := askNewest(ctx, s.service, rpc(
		slicev1.NewSliceServiceClient, slicev1.SliceServiceClient.GetServiceSlices, &slicev1.GetServiceSlicesRequest{Name: request.Name}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.GetServiceSlicesResponse{ServiceSlices: answer.ServiceSlices, Freshness: answer.Freshness}, nil
}

func (s *sliceServer) PlanService(ctx context.Context, request *gatewayv1.PlanServiceRequest) (*gatewayv1.PlanServiceResponse, error) {
	answer, err := askNewest(ctx, s.service, rpc(
		slicev1.NewSliceServiceClient, slicev1.SliceServiceClient.PlanService, &slicev1.PlanServiceRequest{Name: request.Name}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.PlanServiceResponse{Changes: answer.Changes, WaitingFor: answer.WaitingFor, Freshness: answer.Freshness}, nil
}

func (s *sliceServer) ExplainEndpoint(ctx context.Context, request *gatewayv1.ExplainEndpointRequest) (*gatewayv1.ExplainEndpointResponse, error) {
	answer, err := askNewest(ctx, s.service, rpc(
		slicev1.NewSliceServiceClient, slicev1.SliceServiceClient.ExplainEndpoint,
		&slicev1.ExplainEndpointRequest{Name: request.Name, Pod: request.Pod}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ExplainEndpointResponse{
		Included: answer.Included, Settled: answer.Settled, Evidence: answer.Evidence, FirstBroken: answer.FirstBroken, Freshness: answer.Freshness,
	}, nil
}

// ReconcileService asks the holder to write. With validate_only any replica can answer.
func (s *sliceServer) ReconcileService(ctx context.Context, request *gatewayv1.ReconcileServiceRequest) (*gatewayv1.ReconcileServiceResponse, error) {
	reconcile := rpc(slicev1.NewSliceServiceClient, slicev1.SliceServiceClient.ReconcileService,
		&slicev1.ReconcileServiceRequest{Name: request.Name, ValidateOnly: request.ValidateOnly})
	var answer *slicev1.ReconcileServiceResponse
	var err error
	if request.ValidateOnly {
		answer, err = askNewest(ctx, s.service, reconcile)
	} else {
		answer, err = askHolder(ctx, s.service, s.slowRouter, request.Name, reconcile)
	}
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ReconcileServiceResponse{Changes: answer.Changes, Applied: answer.Applied, Freshness: answer.Freshness}, nil
}

func (s *sliceServer) ListServiceSlices(ctx context.Context, request *gatewayv1.ListServiceSlicesRequest) (*gatewayv1.ListServiceSlicesResponse, error) {
	page, err := listAll(ctx, s.service, list[*slicev1.ServiceSlices]{
		arguments: "slices\x00" + request.Parent, replicated: true,
		size: pageSize(request.PageSize, defaultSlicesPageSize, maxSlicesPageSize), token: request.PageToken,
		ask: func(ctx context.Context, conn grpc.ClientConnInterface, size int32, token string) ([]*slicev1.ServiceSlices, string, error) {
			answer, err := slicev1.NewSliceServiceClient(conn).ListServiceSlices(ctx, &slicev1.ListServiceSlicesRequest{
				Parent: request.Parent, PageSize: size, PageToken: token,
			})
			return answer.GetServiceSlices(), answer.GetNextPageToken(), err
		},
	})
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ListServiceSlicesResponse{ServiceSlices: page.items, NextPageToken: page.token, Missing: page.missing}, nil
}

func (s *sliceServer) WatchServiceSlices(request *gatewayv1.WatchServiceSlicesRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchServiceSlicesResponse]) error {
	reader := s.slices.Join(inNamespace[*slicev1.ServiceSlices](request.Parent))
	defer reader.Close()
	return forward(wire.Context(), reader, s.allFailed, func(kind int32, slices *slicev1.ServiceSlices, missing []fanout.Failure) error {
		return wire.Send(&gatewayv1.WatchServiceSlicesResponse{
			Type: slicev1.WatchServiceSlicesResponse_Type(kind), ServiceSlices: slices, Missing: sourceStatuses(missing),
		})
	})
}

func (s *sliceServer) open(ctx context.Context, member term.Member, _ string) (fanin.Stream[*slicev1.ServiceSlices], error) {
	watch := rpc(slicev1.NewSliceServiceClient, slicev1.SliceServiceClient.WatchServiceSlices, &slicev1.WatchServiceSlicesRequest{})
	return fanout.CallMember(ctx, s.connections, member, stream(watch, func(event *slicev1.WatchServiceSlicesResponse) fanin.Message[*slicev1.ServiceSlices] {
		return fanin.Message[*slicev1.ServiceSlices]{Kind: kindOf(event.Type), Item: event.ServiceSlices}
	}))
}

// sameSlices ignores a sync that wrote nothing.
func sameSlices(a, b *slicev1.ServiceSlices) bool {
	b = proto.CloneOf(b)
	b.LastSyncTime = a.LastSyncTime
	if a.LastPlan != nil && b.LastPlan != nil && b.LastPlan.Creates+b.LastPlan.Updates+b.LastPlan.Deletes == 0 {
		b.LastPlan = a.LastPlan
	}
	return proto.Equal(a, b)
}
