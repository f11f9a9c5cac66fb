package api

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// defaultInterval is the interval of a status watch whose request has none.
const defaultInterval = time.Second

// statusServer handles GatewayService.
type statusServer struct {
	gatewayv1.UnimplementedGatewayServiceServer

	cfg    Config
	poller *fanin.Poller[*gatewayv1.ClusterStatus]
}

func newStatusServer(cfg Config) *statusServer {
	s := &statusServer{cfg: cfg}
	s.poller = fanin.NewPoller(s.ask)
	return s
}

// ask asks all replicas for their status and merges the answers.
func (s *statusServer) ask(ctx context.Context) *gatewayv1.ClusterStatus {
	return merge.Status(s.cfg.Cluster, s.cfg.Fan.Ask(ctx, s.cfg.Directory.Members()), time.Now())
}

func (s *statusServer) GetClusterStatus(ctx context.Context, _ *gatewayv1.GetClusterStatusRequest) (*gatewayv1.GetClusterStatusResponse, error) {
	status := s.ask(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // the replicas did not fail: the caller left
	}
	if !merge.Answered(status) {
		return nil, s.noSource(status)
	}
	return &gatewayv1.GetClusterStatusResponse{Status: status, Partial: merge.Partial(status)}, nil
}

// WatchClusterStatus fails only if the first status has no source. Later the sources tell the
// client that all replicas are gone, and that they are back.
func (s *statusServer) WatchClusterStatus(request *gatewayv1.WatchClusterStatusRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchClusterStatusResponse]) error {
	interval := defaultInterval
	if request.Interval != nil {
		interval = request.Interval.AsDuration()
	}
	reader := s.poller.Join(interval)
	defer reader.Close()
	for first := true; ; first = false {
		status, err := reader.Next(stream.Context())
		if err != nil {
			return watchEnded(err)
		}
		if first && !merge.Answered(status) {
			return s.noSource(status)
		}
		if err := stream.Send(&gatewayv1.WatchClusterStatusResponse{Status: status, Partial: merge.Partial(status)}); err != nil {
			return err
		}
	}
}

func (s *statusServer) noSource(status *gatewayv1.ClusterStatus) error {
	return noSource(s.cfg.Cluster, noAnswer, status.Sources, s.cfg.Directory.Check())
}
