package gateway

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// leaseService is the service that knows of Nodes and Leases.
const leaseService = "leasesvc"

// nodeServer answers NodeService.
type nodeServer struct {
	gatewayv1.UnimplementedNodeServiceServer

	*replicas
	router *leader.Router
	nodes  *fanin.Hub[*leasev1.NodeHealth]
	leases *fanin.Hub[*leasev1.Lease]
}

// newNodeServer takes a pool whose connections do not retry: where NOT_LEADER is an answer, asking again only takes time.
func newNodeServer(cluster string, directory Directory, pool *fanout.Pool, timeout time.Duration) *nodeServer {
	s := &nodeServer{replicas: &replicas{cluster: cluster, service: leaseService, directory: directory, pool: pool, timeout: timeout}}
	s.router = leader.New(leader.Config{Members: s.members, Connections: pool, Timeout: timeout})
	s.nodes = fanin.New(fanin.Config[*leasev1.NodeHealth]{
		Members: s.following, Open: s.openNodes, Outdated: isOutdated, Same: sameNode, Patience: timeout,
	})
	s.leases = fanin.New(fanin.Config[*leasev1.Lease]{
		Members: s.following, Open: s.openLeases, Outdated: isOutdated, Same: sameLease, Patience: timeout,
	})
	return s
}

// run feeds the watches until ctx ends.
func (s *nodeServer) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.nodes.Run(ctx) })
	group.Go(func() error { return s.leases.Run(ctx) })
	return group.Wait()
}

func (s *nodeServer) openNodes(ctx context.Context, member term.Member, _ string) (fanin.Stream[*leasev1.NodeHealth], error) {
	conn, err := s.pool.Connection(member)
	if err != nil {
		return nil, err
	}
	stream, err := leasev1.NewNodeHealthServiceClient(conn).WatchNodeHealth(ctx, &leasev1.WatchNodeHealthRequest{})
	if err != nil {
		return nil, err
	}
	return func() (fanin.Message[*leasev1.NodeHealth], error) {
		event, err := stream.Recv()
		if err != nil {
			return fanin.Message[*leasev1.NodeHealth]{}, err
		}
		return fanin.Message[*leasev1.NodeHealth]{Kind: nodeKindOf(event.Type), Item: event.Node}, nil
	}, nil
}

func (s *nodeServer) openLeases(ctx context.Context, member term.Member, version string) (fanin.Stream[*leasev1.Lease], error) {
	conn, err := s.pool.Connection(member)
	if err != nil {
		return nil, err
	}
	stream, err := leasev1.NewLeaseServiceClient(conn).WatchLeases(ctx, &leasev1.WatchLeasesRequest{StartVersion: version})
	if err != nil {
		return nil, err
	}
	return func() (fanin.Message[*leasev1.Lease], error) {
		event, err := stream.Recv()
		if err != nil {
			return fanin.Message[*leasev1.Lease]{}, err
		}
		return fanin.Message[*leasev1.Lease]{Kind: leaseKindOf(event.Type), Item: event.Lease, Version: event.Version}, nil
	}, nil
}

// sameNode ignores signs of life alone, as the watch of a replica does: a replica that tells all anew is no news.
func sameNode(a, b *leasev1.NodeHealth) bool {
	b = proto.CloneOf(b)
	b.SignTime, b.Deadline, b.ChangeTime = a.SignTime, a.Deadline, steady(a.ChangeTime, b.ChangeTime)
	return proto.Equal(a, b)
}

// sameLease ignores renewals alone.
func sameLease(a, b *leasev1.Lease) bool {
	b = proto.CloneOf(b)
	b.LastBeatTime, b.Deadline, b.Sequence, b.StartTime = a.LastBeatTime, a.Deadline, a.Sequence, steady(a.StartTime, b.StartTime)
	return proto.Equal(a, b)
}

// steady is a where b is the same moment. Replicas keep no time of the wall clock but reckon it back from now, and get it a
// little different each time.
func steady(a, b *timestamppb.Timestamp) *timestamppb.Timestamp {
	if a != nil && b != nil && a.AsTime().Sub(b.AsTime()).Abs() < time.Second {
		return a
	}
	return b
}
