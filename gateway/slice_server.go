package gateway

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/leader"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

const (
	// sliceService is the service that keeps EndpointSlices.
	sliceService = "slicesvc"
	// workFactor is how many times as long as an answer from memory one may take for which slices are written.
	workFactor = 5
)

// sliceServer answers SliceService. Every replica knows of every Service; the one that holds a Service's shard knows how writing
// went, and says so by its epoch.
type sliceServer struct {
	gatewayv1.UnimplementedSliceServiceServer

	*replicas
	// holders finds who holds a Service's shard, for what only that one can do.
	holders *leader.Router
	slices  *fanin.Hub[*slicev1.ServiceSlices]
}

// newSliceServer takes a pool whose connections do not retry.
func newSliceServer(cluster string, directory Directory, pool *fanout.Pool, timeout time.Duration) *sliceServer {
	s := &sliceServer{replicas: &replicas{cluster: cluster, service: sliceService, directory: directory, pool: pool, timeout: timeout}}
	s.holders = leader.New(leader.Config{Members: s.members, Connections: pool, Timeout: workFactor * timeout})
	s.slices = fanin.New(fanin.Config[*slicev1.ServiceSlices]{
		Members: s.following, Open: s.open, Outdated: func(error) bool { return false }, Same: sameSlices, Shared: true, Patience: timeout,
	})
	return s
}

// run feeds the watches until ctx ends.
func (s *sliceServer) run(ctx context.Context) error { return s.slices.Run(ctx) }

func (s *sliceServer) open(ctx context.Context, member term.Member, _ string) (fanin.Stream[*slicev1.ServiceSlices], error) {
	conn, err := s.pool.Connection(member)
	if err != nil {
		return nil, err
	}
	stream, err := slicev1.NewSliceServiceClient(conn).WatchServiceSlices(ctx, &slicev1.WatchServiceSlicesRequest{})
	if err != nil {
		return nil, err
	}
	return func() (fanin.Message[*slicev1.ServiceSlices], error) {
		event, err := stream.Recv()
		if err != nil {
			return fanin.Message[*slicev1.ServiceSlices]{}, err
		}
		return fanin.Message[*slicev1.ServiceSlices]{Kind: sliceKindOf(event.Type), Item: event.ServiceSlices}, nil
	}, nil
}

// sameSlices ignores a pass that found nothing to write: that all is as it was is no news.
func sameSlices(a, b *slicev1.ServiceSlices) bool {
	b = proto.CloneOf(b)
	b.LastSyncTime = a.LastSyncTime
	if a.LastPlan != nil && b.LastPlan != nil && b.LastPlan.Creates+b.LastPlan.Updates+b.LastPlan.Deletes == 0 {
		b.LastPlan = a.LastPlan
	}
	return proto.Equal(a, b)
}
