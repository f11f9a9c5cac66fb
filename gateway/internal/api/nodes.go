package api

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// zonesKey is the key under which the holder of the zones is remembered.
const zonesKey = "zones"

// nodeServer handles NodeService. Each replica of leasesvc has the Nodes and Leases of its shards.
type nodeServer struct {
	gatewayv1.UnimplementedNodeServiceServer

	*service
	nodes  *fanin.Hub[*leasev1.NodeHealth]
	leases *fanin.Hub[*leasev1.Lease]
}

func newNodeServer(cfg Config) *nodeServer {
	s := &nodeServer{service: newService(cfg, "leasesvc")}
	s.nodes = fanin.NewHub(fanin.Config[*leasev1.NodeHealth]{
		Sources: s.sources, Open: s.openNodes, SilenceTimeout: cfg.Timeout,
		View: merge.ViewConfig[*leasev1.NodeHealth]{Key: merge.KeyOf[*leasev1.NodeHealth], Same: sameNode},
	})
	s.leases = fanin.NewHub(fanin.Config[*leasev1.Lease]{
		Sources: s.sources, Open: s.openLeases, SilenceTimeout: cfg.Timeout,
		VersionTooOld: func(err error) bool { return rpcerror.ReasonOf(err) == versionTooOldReason },
		View:          merge.ViewConfig[*leasev1.Lease]{Key: merge.KeyOf[*leasev1.Lease], Same: sameLease},
	})
	return s
}

func (s *nodeServer) GetNodeHealth(ctx context.Context, request *gatewayv1.GetNodeHealthRequest) (*gatewayv1.GetNodeHealthResponse, error) {
	answer, err := askHolder(ctx, s.service, s.router, request.Name, rpc(
		leasev1.NewNodeHealthServiceClient, leasev1.NodeHealthServiceClient.GetNodeHealth, &leasev1.GetNodeHealthRequest{Name: request.Name}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.GetNodeHealthResponse{Node: answer.Node, Freshness: answer.Freshness}, nil
}

func (s *nodeServer) ExplainNodeHealth(ctx context.Context, request *gatewayv1.ExplainNodeHealthRequest) (*gatewayv1.ExplainNodeHealthResponse, error) {
	answer, err := askHolder(ctx, s.service, s.router, request.Name, rpc(
		leasev1.NewNodeHealthServiceClient, leasev1.NodeHealthServiceClient.ExplainNodeHealth, &leasev1.ExplainNodeHealthRequest{Name: request.Name}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ExplainNodeHealthResponse{
		Node: answer.Node, Evidence: answer.Evidence, FirstBroken: answer.FirstBroken, Silence: answer.Silence, Freshness: answer.Freshness,
	}, nil
}

func (s *nodeServer) ListZones(ctx context.Context, _ *gatewayv1.ListZonesRequest) (*gatewayv1.ListZonesResponse, error) {
	answer, err := askHolder(ctx, s.service, s.router, zonesKey, rpc(
		leasev1.NewNodeHealthServiceClient, leasev1.NodeHealthServiceClient.ListZones, &leasev1.ListZonesRequest{}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ListZonesResponse{Zones: answer.Zones, BlindBy: answer.BlindBy, Freshness: answer.Freshness}, nil
}

func (s *nodeServer) GetLease(ctx context.Context, request *gatewayv1.GetLeaseRequest) (*gatewayv1.GetLeaseResponse, error) {
	answer, err := askHolder(ctx, s.service, s.router, request.Name, rpc(
		leasev1.NewLeaseServiceClient, leasev1.LeaseServiceClient.GetLease, &leasev1.GetLeaseRequest{Name: request.Name}))
	if err != nil {
		return nil, err
	}
	return &gatewayv1.GetLeaseResponse{Lease: answer.Lease, Freshness: answer.Freshness}, nil
}

func (s *nodeServer) ListNodeHealth(ctx context.Context, request *gatewayv1.ListNodeHealthRequest) (*gatewayv1.ListNodeHealthResponse, error) {
	page, err := listAll(ctx, s.service, list[*leasev1.NodeHealth]{
		arguments: fmt.Sprintf("nodes\x00%d\x00%s", request.Health, request.Zone),
		size:      pageSize(request.PageSize, defaultPageSize, maxPageSize), token: request.PageToken,
		ask: func(ctx context.Context, conn grpc.ClientConnInterface, size int32, token string) ([]*leasev1.NodeHealth, string, error) {
			answer, err := leasev1.NewNodeHealthServiceClient(conn).ListNodeHealth(ctx, &leasev1.ListNodeHealthRequest{
				Health: request.Health, Zone: request.Zone, PageSize: size, PageToken: token,
			})
			return answer.GetNodes(), answer.GetNextPageToken(), err
		},
	})
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ListNodeHealthResponse{Nodes: page.items, NextPageToken: page.token, Missing: page.missing}, nil
}

func (s *nodeServer) ListLeases(ctx context.Context, request *gatewayv1.ListLeasesRequest) (*gatewayv1.ListLeasesResponse, error) {
	page, err := listAll(ctx, s.service, list[*leasev1.Lease]{
		arguments: fmt.Sprintf("leases\x00%d\x00%s", request.State, request.Parent),
		size:      pageSize(request.PageSize, defaultPageSize, maxPageSize), token: request.PageToken,
		ask: func(ctx context.Context, conn grpc.ClientConnInterface, size int32, token string) ([]*leasev1.Lease, string, error) {
			answer, err := leasev1.NewLeaseServiceClient(conn).ListLeases(ctx, &leasev1.ListLeasesRequest{
				Parent: request.Parent, State: request.State, PageSize: size, PageToken: token,
			})
			return answer.GetLeases(), answer.GetNextPageToken(), err
		},
	})
	if err != nil {
		return nil, err
	}
	return &gatewayv1.ListLeasesResponse{Leases: page.items, NextPageToken: page.token, Missing: page.missing}, nil
}

func (s *nodeServer) WatchNodeHealth(request *gatewayv1.WatchNodeHealthRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchNodeHealthResponse]) error {
	reader := s.nodes.Join(func(node *leasev1.NodeHealth) bool { return request.Zone == "" || node.Zone == request.Zone })
	defer reader.Close()
	return forward(wire.Context(), reader, s.allFailed, func(kind int32, node *leasev1.NodeHealth, missing []fanout.Failure) error {
		return wire.Send(&gatewayv1.WatchNodeHealthResponse{
			Type: leasev1.WatchNodeHealthResponse_Type(kind), Node: node, Missing: sourceStatuses(missing),
		})
	})
}

func (s *nodeServer) WatchLeases(request *gatewayv1.WatchLeasesRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchLeasesResponse]) error {
	reader := s.leases.Join(inNamespace[*leasev1.Lease](request.Parent))
	defer reader.Close()
	return forward(wire.Context(), reader, s.allFailed, func(kind int32, lease *leasev1.Lease, missing []fanout.Failure) error {
		return wire.Send(&gatewayv1.WatchLeasesResponse{
			Type: leasev1.WatchLeasesResponse_Type(kind), Lease: lease, Missing: sourceStatuses(missing),
		})
	})
}

func (s *nodeServer) openNodes(ctx context.Context, member term.Member, _ string) (fanin.Stream[*leasev1.NodeHealth], error) {
	watch := rpc(leasev1.NewNodeHealthServiceClient, leasev1.NodeHealthServiceClient.WatchNodeHealth, &leasev1.WatchNodeHealthRequest{})
	return fanout.CallMember(ctx, s.connections, member, stream(watch, func(event *leasev1.WatchNodeHealthResponse) fanin.Message[*leasev1.NodeHealth] {
		return fanin.Message[*leasev1.NodeHealth]{Kind: kindOf(event.Type), Item: event.Node}
	}))
}

func (s *nodeServer) openLeases(ctx context.Context, member term.Member, version string) (fanin.Stream[*leasev1.Lease], error) {
	watch := rpc(leasev1.NewLeaseServiceClient, leasev1.LeaseServiceClient.WatchLeases, &leasev1.WatchLeasesRequest{StartVersion: version})
	return fanout.CallMember(ctx, s.connections, member, stream(watch, func(event *leasev1.WatchLeasesResponse) fanin.Message[*leasev1.Lease] {
		return fanin.Message[*leasev1.Lease]{Kind: kindOf(event.Type), Item: event.Lease, Version: event.Version}
	}))
}

// sameNode ignores heartbeats, as the watch of a replica does: a replica that reports everything
// again changes nothing.
func sameNode(a, b *leasev1.NodeHealth) bool {
	b = proto.CloneOf(b)
	b.SignTime, b.Deadline, b.ChangeTime = a.SignTime, a.Deadline, steady(a.ChangeTime, b.ChangeTime)
	return proto.Equal(a, b)
}

// sameLease ignores renewals.
func sameLease(a, b *leasev1.Lease) bool {
	b = proto.CloneOf(b)
	b.LastBeatTime, b.Deadline, b.Sequence, b.StartTime = a.LastBeatTime, a.Deadline, a.Sequence, steady(a.StartTime, b.StartTime)
	return proto.Equal(a, b)
}

// steady returns a if b is the same moment. Replicas compute wall-clock times from monotonic ones,
// so that each report of one moment differs a little.
func steady(a, b *timestamppb.Timestamp) *timestamppb.Timestamp {
	if a != nil && b != nil && a.AsTime().Sub(b.AsTime()).Abs() < time.Second {
		return a
	}
	return b
}
