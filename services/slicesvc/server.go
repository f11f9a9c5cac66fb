package slicesvc

import (
	"context"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/status"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

const (
	defaultPageSize = 100
	maxPageSize     = 1000
)

// server answers trivet.slice.v1.SliceService from the caches.
type server struct {
	slicev1.UnimplementedSliceServiceServer
	service *Service
}

func registerServer(registrar grpc.ServiceRegistrar, service *Service) {
	slicev1.RegisterSliceServiceServer(registrar, &server{service: service})
}

// GetServiceSlices returns one Service's slices.
func (s *server) GetServiceSlices(_ context.Context, request *slicev1.GetServiceSlicesRequest) (*slicev1.GetServiceSlicesResponse, error) {
	if err := s.available(); err != nil {
		return nil, toStatus(err)
	}
	key, ok := parseName(request.GetName())
	if !ok {
		return nil, toStatus(&notFoundError{name: request.GetName()})
	}
	freshness := s.freshness(s.service.epochOf(key))
	state, ok := s.service.engine.State(key)
	if !ok {
		return nil, toStatus(&notFoundError{name: request.GetName(), seen: freshness})
	}
	return &slicev1.GetServiceSlicesResponse{
		ServiceSlices: s.convert(key, state),
		Freshness:     freshness,
	}, nil
}

// ListServiceSlices returns a page of Services with their slices.
func (s *server) ListServiceSlices(_ context.Context, request *slicev1.ListServiceSlicesRequest) (*slicev1.ListServiceSlicesResponse, error) {
	if err := s.available(); err != nil {
		return nil, toStatus(err)
	}
	namespace := parseParent(request.GetParent())
	after, err := parsePageToken(request.GetPageToken(), namespace)
	if err != nil {
		return nil, toStatus(err)
	}
	response := &slicev1.ListServiceSlicesResponse{Freshness: s.freshness(s.service.newestEpoch())}
	size := pageSize(request.GetPageSize())
	keys := s.service.engine.KeysAfter(namespace, after, size+1) // one more, to know whether there is more
	if len(keys) > size {
		keys = keys[:size]
		response.NextPageToken = pageToken(namespace, keys[size-1])
	}
	for _, key := range keys {
		// A Service that went between the two looks is left out.
		if state, ok := s.service.engine.State(key); ok {
			response.ServiceSlices = append(response.ServiceSlices, s.convert(key, state))
		}
	}
	return response, nil
}

// PlanService says what the next pass over a Service would write.
func (s *server) PlanService(_ context.Context, request *slicev1.PlanServiceRequest) (*slicev1.PlanServiceResponse, error) {
	if err := s.available(); err != nil {
		return nil, toStatus(err)
	}
	key, ok := parseName(request.GetName())
	if !ok {
		return nil, toStatus(&notFoundError{name: request.GetName()})
	}
	freshness := s.freshness(s.service.epochOf(key))
	preview, ok := s.service.engine.Preview(key)
	if !ok {
		return nil, toStatus(&notFoundError{name: request.GetName(), seen: freshness})
	}
	return &slicev1.PlanServiceResponse{
		Changes:    convertPlan(preview.Plan),
		WaitingFor: waitingFor(preview),
		Freshness:  freshness,
	}, nil
}

// available returns why nothing can be answered now, nil if it can.
func (s *server) available() error {
	if s.service.stopping.Load() {
		return errStopping
	}
	if err := s.service.watch.Check(); err != nil {
		return &cacheError{cause: err}
	}
	return nil
}

// freshness is taken before the cache is read, so that it never claims more
// than the answer holds.
func (s *server) freshness(epoch int64) *statusv1.Freshness {
	return status.Freshness(s.service.member.ID, epoch, s.service.engine.ResourceVersion())
}

func (s *server) convert(key slicecontroller.Key, state slicecontroller.State) *slicev1.ServiceSlices {
	return convertState(state, placeOf{
		shard: s.service.shardOf(key), epoch: s.service.epochOf(key), capacity: s.service.cfg.MaxEndpointsPerSlice,
	})
}

func pageSize(asked int32) int {
	if asked <= 0 {
		return defaultPageSize
	}
	return min(int(asked), maxPageSize)
}
