package api

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/gateway/internal/fanin"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// defaultInterval is the interval of a status watch whose request has none.
const defaultInterval = time.Second

// clusterServer handles ClusterService.
type clusterServer struct {
	gatewayv1.UnimplementedClusterServiceServer

	cfg     Config
	poller  *fanin.Poller[*gatewayv1.GetClusterStatusResponse]
	history statusHistory
}

func newClusterServer(cfg Config) *clusterServer {
	s := &clusterServer{cfg: cfg}
	s.poller = fanin.NewPoller(s.ask)
	return s
}

// ask asks all replicas for their status and merges the answers.
func (s *clusterServer) ask(ctx context.Context) *gatewayv1.GetClusterStatusResponse {
	return merge.Status(s.cfg.Cluster, s.cfg.Fan.Ask(ctx, s.cfg.Directory.Members()), time.Now())
}

func (s *clusterServer) GetClusterStatus(ctx context.Context, _ *gatewayv1.GetClusterStatusRequest) (*gatewayv1.GetClusterStatusResponse, error) {
	response := s.ask(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // the replicas did not fail: the caller left
	}
	if len(response.Sources) == 0 {
		return nil, s.unreachable(response)
	}
	return response, nil
}

// WatchClusterStatus fails only if the first status has no source. Later the missing parts tell the
// client that all replicas are gone, and that they are back.
func (s *clusterServer) WatchClusterStatus(request *gatewayv1.WatchClusterStatusRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchClusterStatusResponse]) error {
	interval := defaultInterval
	if request.Interval != nil {
		interval = request.Interval.AsDuration()
	}
	reader := s.poller.Join(interval)
	defer reader.Close()
	for event := metav1.EventType_EVENT_TYPE_ADDED; ; event = metav1.EventType_EVENT_TYPE_MODIFIED {
		response, err := reader.Next(stream.Context())
		if err != nil {
			return watchEnded(err)
		}
		if event == metav1.EventType_EVENT_TYPE_ADDED && len(response.Sources) == 0 {
			return s.unreachable(response)
		}
		err = stream.Send(&gatewayv1.WatchClusterStatusResponse{
			Type: event, Status: response.Status, Sources: response.Sources, Missing: response.Missing,
		})
		if err != nil {
			return err
		}
	}
}

// unreachable names each registered replica and its cause.
func (s *clusterServer) unreachable(response *gatewayv1.GetClusterStatusResponse) error {
	var causes []string
	for _, part := range response.Missing {
		if part.ReplicaId != "" {
			causes = append(causes, fmt.Sprintf("%s %s: %s: %s", part.Service, part.ReplicaId, part.Code, part.Message))
		}
	}
	summary := noAnswer
	if len(causes) == 0 {
		summary = "no replica is registered in etcd"
	}
	return unreachable(s.cfg.Cluster, summary, causes, s.cfg.Directory.Check())
}
