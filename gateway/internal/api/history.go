package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/gateway/internal/history"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// statusHistory is the history of the status since the start of the process. One goroutine adds to
// it.
type statusHistory struct {
	mu   sync.Mutex // guards ring
	ring history.Ring
}

func (h *statusHistory) add(status *gatewayv1.ClusterStatus) {
	sample := history.SampleOf(status)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ring.Add(status.GetMergeTime().AsTime(), sample)
}

func (h *statusHistory) read(now time.Time) (time.Time, []history.Series) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ring.Read(now)
}

// record adds a status to the history in each interval until ctx ends. It shares the questions of
// the watches.
func (s *clusterServer) record(ctx context.Context) error {
	reader := s.poller.Join(history.Interval)
	defer reader.Close()
	for {
		response, err := reader.Next(ctx)
		if err != nil {
			return nil // the process stops
		}
		s.history.add(response.GetStatus())
	}
}

func (s *clusterServer) GetStatusHistory(context.Context, *gatewayv1.GetStatusHistoryRequest) (*gatewayv1.GetStatusHistoryResponse, error) {
	end, all := s.history.read(time.Now())
	response := &gatewayv1.GetStatusHistoryResponse{
		ReplicaId: s.cfg.ReplicaID, EndTime: timestamppb.New(end), Interval: durationpb.New(history.Interval),
	}
	for _, series := range all {
		response.Series = append(response.Series, &gatewayv1.GetStatusHistoryResponse_Series{
			Service: series.Service, Name: series.Name, Values: series.Values,
		})
	}
	return response, nil
}
