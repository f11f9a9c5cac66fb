package api

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

const (
	defaultPageSize = 100
	maxPageSize     = 1000
)

// Controller is the part of the slice controller that the handlers use. Only Reconcile blocks.
type Controller interface {
	State(service slicecontroller.Key) (slicecontroller.ServiceState, bool)
	KeysAfter(namespace string, after slicecontroller.Key, limit int) []slicecontroller.Key
	Preview(service slicecontroller.Key) (slicecontroller.Preview, bool)
	Endpoint(service slicecontroller.Key, pod string) (explain.Facts, error)
	Reconcile(ctx context.Context, service slicecontroller.Key) (slicecontroller.ReconcileResult, error)
	Revision() uint64
	Changes(since uint64) slicecontroller.Changes
	ResourceVersion() string
}

// Leadership tells which replica holds which shard. Its Status has an entry for every shard.
type Leadership interface {
	Status() term.Status
}

// Config configures a Server. All fields are required.
type Config struct {
	ReplicaID  string
	Controller Controller
	Leadership Leadership
	// CheckCaches returns nil once the caches are filled, before that what delays them.
	CheckCaches func() error
	// MaxEndpointsPerSlice is the capacity of a slice.
	MaxEndpointsPerSlice int
}

// Server implements SliceService.
type Server struct {
	slicev1.UnimplementedSliceServiceServer
	cfg     Config
	stopped atomic.Bool
}

// New returns a Server. It starts nothing.
func New(cfg Config) *Server { return &Server{cfg: cfg} }

// Register adds the Server to a gRPC server.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	slicev1.RegisterSliceServiceServer(registrar, s)
}

// Stop makes every later RPC fail with SHUTTING_DOWN.
func (s *Server) Stop() { s.stopped.Store(true) }

func (s *Server) GetServiceSlices(_ context.Context, request *slicev1.GetServiceSlicesRequest) (*slicev1.GetServiceSlicesResponse, error) {
	key, err := s.serviceKey(request.GetName())
	if err != nil {
		return nil, toStatus(err)
	}
	freshness := s.freshness(s.epochOf(key))
	state, ok := s.cfg.Controller.State(key)
	if !ok {
		return nil, toStatus(&serviceNotFoundError{name: request.GetName(), freshness: freshness})
	}
	return &slicev1.GetServiceSlicesResponse{ServiceSlices: s.convertState(key, state), Freshness: freshness}, nil
}

func (s *Server) ListServiceSlices(_ context.Context, request *slicev1.ListServiceSlicesRequest) (*slicev1.ListServiceSlicesResponse, error) {
	if err := s.checkAvailable(); err != nil {
		return nil, toStatus(err)
	}
	namespace := parseParent(request.GetParent())
	after, err := parsePageToken(request.GetPageToken(), namespace)
	if err != nil {
		return nil, toStatus(err)
	}
	response := &slicev1.ListServiceSlicesResponse{Freshness: s.freshness(s.newestEpoch())}
	size := pageSize(request.GetPageSize())
	keys := s.cfg.Controller.KeysAfter(namespace, after, size+1) // one more shows whether there is a next page
	if len(keys) > size {
		keys = keys[:size]
		response.NextPageToken = pageToken(namespace, keys[size-1])
	}
	for _, key := range keys {
		// A Service that was deleted since KeysAfter is left out.
		if state, ok := s.cfg.Controller.State(key); ok {
			response.ServiceSlices = append(response.ServiceSlices, s.convertState(key, state))
		}
	}
	return response, nil
}

func (s *Server) PlanService(_ context.Context, request *slicev1.PlanServiceRequest) (*slicev1.PlanServiceResponse, error) {
	key, err := s.serviceKey(request.GetName())
	if err != nil {
		return nil, toStatus(err)
	}
	freshness := s.freshness(s.epochOf(key))
	preview, ok := s.cfg.Controller.Preview(key)
	if !ok {
		return nil, toStatus(&serviceNotFoundError{name: request.GetName(), freshness: freshness})
	}
	return &slicev1.PlanServiceResponse{
		Changes:    convertPlan(preview.Plan),
		WaitingFor: waitingFor(preview),
		Freshness:  freshness,
	}, nil
}

func (s *Server) ReconcileService(ctx context.Context, request *slicev1.ReconcileServiceRequest) (*slicev1.ReconcileServiceResponse, error) {
	key, err := s.serviceKey(request.GetName())
	if err != nil {
		return nil, toStatus(err)
	}
	freshness := s.freshness(s.epochOf(key))
	reconcile := s.cfg.Controller.Reconcile
	if request.GetValidateOnly() {
		reconcile = s.previewReconcile
	}
	result, err := reconcile(ctx, key)
	if err != nil {
		return nil, toStatus(s.reconcileError(request.GetName(), key, freshness, err))
	}
	return &slicev1.ReconcileServiceResponse{Changes: convertPlan(result.Plan), Applied: result.Applied, Freshness: freshness}, nil
}

// previewReconcile returns what Reconcile would write.
func (s *Server) previewReconcile(_ context.Context, key slicecontroller.Key) (slicecontroller.ReconcileResult, error) {
	state, ok := s.cfg.Controller.State(key)
	if !ok {
		return slicecontroller.ReconcileResult{}, slicecontroller.ErrServiceNotFound
	}
	preview, ok := s.cfg.Controller.Preview(key)
	switch {
	case !ok:
		return slicecontroller.ReconcileResult{}, slicecontroller.ErrServiceNotFound
	case state.Unmanaged != "" && preview.Plan.Empty():
		return slicecontroller.ReconcileResult{}, slicecontroller.ErrUnmanaged
	}
	return slicecontroller.ReconcileResult{Plan: preview.Plan}, nil
}

func (s *Server) reconcileError(name string, key slicecontroller.Key, freshness *statusv1.Freshness, err error) error {
	switch {
	case errors.Is(err, slicecontroller.ErrServiceNotFound):
		return &serviceNotFoundError{name: name, freshness: freshness}
	case errors.Is(err, slicecontroller.ErrUnmanaged):
		state, ok := s.cfg.Controller.State(key)
		if !ok {
			return &serviceNotFoundError{name: name, freshness: freshness}
		}
		return &unmanagedError{name: name, reason: string(state.Unmanaged)}
	case errors.Is(err, slicecontroller.ErrShardNotHeld):
		shards := s.cfg.Leadership.Status().Shards
		leader := shards[shardOf(key, len(shards))]
		return &shardNotHeldError{shard: leader.Shard, leaderAddress: leader.GRPCAddress}
	}
	return err
}

func (s *Server) ExplainEndpoint(_ context.Context, request *slicev1.ExplainEndpointRequest) (*slicev1.ExplainEndpointResponse, error) {
	key, err := s.serviceKey(request.GetName())
	if err != nil {
		return nil, toStatus(err)
	}
	epoch := s.epochOf(key)
	freshness := s.freshness(epoch)
	facts, err := s.cfg.Controller.Endpoint(key, request.GetPod())
	switch {
	case errors.Is(err, slicecontroller.ErrServiceNotFound):
		return nil, toStatus(&serviceNotFoundError{name: request.GetName(), freshness: freshness})
	case errors.Is(err, slicecontroller.ErrPodNotFound):
		return nil, toStatus(&podNotFoundError{namespace: key.Namespace, name: request.GetPod(), freshness: freshness})
	case err != nil:
		return nil, toStatus(err)
	}
	state, _ := s.cfg.Controller.State(key) // of a Service deleted meanwhile, TopologyProblem stays empty
	facts.Held, facts.TopologyProblem = epoch != 0, state.TopologyProblem
	response := convertChain(explain.Explain(facts), s.cfg.ReplicaID)
	response.Freshness = freshness
	return response, nil
}

// serviceKey parses the name of a request for one Service. It fails if no RPC can be answered now.
func (s *Server) serviceKey(name string) (slicecontroller.Key, error) {
	if err := s.checkAvailable(); err != nil {
		return slicecontroller.Key{}, err
	}
	key, ok := parseServiceName(name)
	if !ok {
		return slicecontroller.Key{}, &serviceNotFoundError{name: name}
	}
	return key, nil
}

func (s *Server) checkAvailable() error {
	if s.stopped.Load() {
		return errStopping
	}
	if err := s.cfg.CheckCaches(); err != nil {
		return &cacheNotSyncedError{cause: err}
	}
	return nil
}

// freshness must be taken before the cache is read, so that it never claims more than the answer
// contains.
func (s *Server) freshness(epoch int64) *statusv1.Freshness {
	return status.Freshness(s.cfg.ReplicaID, epoch, s.cfg.Controller.ResourceVersion())
}

func (s *Server) convertState(key slicecontroller.Key, state slicecontroller.ServiceState) *slicev1.ServiceSlices {
	converted := convertState(state, s.cfg.MaxEndpointsPerSlice)
	shards := s.cfg.Leadership.Status().Shards
	number := shardOf(key, len(shards))
	converted.Shard = int32(number)
	converted.Epoch = heldEpoch(shards[number])
	return converted
}

// epochOf returns the epoch of this replica's term of a Service's shard, 0 if the shard is not held
// here.
func (s *Server) epochOf(key slicecontroller.Key) int64 {
	epochs := s.heldEpochs()
	return epochs[shardOf(key, len(epochs))]
}

// newestEpoch returns the highest epoch of the shards held here, 0 if there is none.
func (s *Server) newestEpoch() int64 {
	var newest int64
	for _, epoch := range s.heldEpochs() {
		newest = max(newest, epoch)
	}
	return newest
}

// heldEpochs returns the epoch of each shard that is held here, 0 for the other shards.
func (s *Server) heldEpochs() []int64 {
	shards := s.cfg.Leadership.Status().Shards
	epochs := make([]int64, len(shards))
	for i, of := range shards {
		epochs[i] = heldEpoch(of)
	}
	return epochs
}

func heldEpoch(of term.ShardStatus) int64 {
	if !of.Here {
		return 0
	}
	return of.Epoch
}

func shardOf(service slicecontroller.Key, shards int) int {
	return shard.Of(service.Namespace, service.Name, shards)
}

func pageSize(requested int32) int {
	if requested <= 0 {
		return defaultPageSize
	}
	return min(int(requested), maxPageSize)
}
