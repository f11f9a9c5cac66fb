package gateway

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/gateway/internal/watch"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// defaultInterval is how often a watch asks when its request does not say.
const defaultInterval = time.Second

// server answers GatewayService.
type server struct {
	gatewayv1.UnimplementedGatewayServiceServer

	cluster   string
	directory Directory
	fan       *fanout.Fan
	watches   *watch.Hub[*gatewayv1.ClusterStatus]
}

func newServer(cluster string, directory Directory, fan *fanout.Fan) *server {
	s := &server{cluster: cluster, directory: directory, fan: fan}
	s.watches = watch.New(s.status)
	return s
}

// status asks everybody once and merges what comes back.
func (s *server) status(ctx context.Context) *gatewayv1.ClusterStatus {
	return merge.Status(s.cluster, s.fan.Ask(ctx, s.directory.Members()), time.Now())
}

// GetClusterStatus implements GatewayService.
func (s *server) GetClusterStatus(ctx context.Context, _ *gatewayv1.GetClusterStatusRequest) (*gatewayv1.GetClusterStatusResponse, error) {
	status := s.status(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // else a caller that left would be told that nobody answered
	}
	if !merge.Answered(status) {
		return nil, noSource(s.cluster, nobodyAnswered, status.Sources, s.directory.Check())
	}
	return &gatewayv1.GetClusterStatusResponse{Status: status, Partial: merge.Partial(status)}, nil
}

// WatchClusterStatus implements GatewayService.
func (s *server) WatchClusterStatus(request *gatewayv1.WatchClusterStatusRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchClusterStatusResponse]) error {
	interval := defaultInterval
	if request.Interval != nil {
		interval = request.Interval.AsDuration()
	}
	subscription, err := s.watches.Subscribe(stream.Context(), interval)
	if err != nil {
		return watchError(stream.Context(), err)
	}
	defer subscription.Close()
	return s.follow(subscription, stream)
}

// follow sends what comes until the caller leaves or the gateway stops. Only a first status without any source is an error:
// who watches already learns from the sources that all went away, and sees them come back.
func (s *server) follow(subscription *watch.Subscription[*gatewayv1.ClusterStatus], stream grpc.ServerStreamingServer[gatewayv1.WatchClusterStatusResponse]) error {
	for first := true; ; first = false {
		status, err := next(stream.Context(), subscription)
		if err != nil {
			return watchError(stream.Context(), err)
		}
		if first && !merge.Answered(status) {
			return noSource(s.cluster, nobodyAnswered, status.Sources, s.directory.Check())
		}
		if err := stream.Send(&gatewayv1.WatchClusterStatusResponse{Status: status, Partial: merge.Partial(status)}); err != nil {
			return err
		}
	}
}

func next(ctx context.Context, subscription *watch.Subscription[*gatewayv1.ClusterStatus]) (*gatewayv1.ClusterStatus, error) {
	select {
	case status, open := <-subscription.Newest():
		if !open {
			return nil, watch.ErrStopped
		}
		return status, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
