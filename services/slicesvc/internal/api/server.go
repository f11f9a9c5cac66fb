package api

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/resumetoken"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
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
	Reconcile(ctx context.Context, service slicecontroller.Key, fingerprint string) (slicecontroller.Reconciled, error)
	Endpoint(service slicecontroller.Key, pod string) (explain.Facts, error)
	EndpointAt(service slicecontroller.Key, address string) (explain.Facts, error)
	Revision() uint64
	Changes(since uint64) slicecontroller.Changes
	RecordShardChange(shard int)
	Health() slicecontroller.Health
}

// Leadership tells which replica leads which shard. Its Status has an entry for every shard.
type Leadership interface {
	Status() term.Status
}

// Config configures a Server. All fields are required but Mirrors and SelectorLoopOff.
type Config struct {
	ReplicaID  string
	Controller Controller
	Leadership Leadership
	// SelectorLoopOff tells that the loop that the Controller serves is not selected.
	SelectorLoopOff bool
	// SelectorDryRun and MirrorDryRun tell that the Controller or Mirrors plans and writes nothing
	// now.
	SelectorDryRun, MirrorDryRun func() bool
	// Mirrors is the mirror controller; nil if its loop is off. CheckMirrors returns nil once the
	// Endpoints are known, before that what delays them; it is required with Mirrors.
	Mirrors      Mirrors
	CheckMirrors func() error
	// CheckCaches returns nil once the caches are filled, before that what delays them.
	CheckCaches func() error
	// Caches returns how fresh the caches are, ordered by kind. It reads memory only.
	Caches func() []kube.KindStatus
	// MaxEndpointsPerSlice is the capacity of a slice.
	MaxEndpointsPerSlice int
}

// Server implements SliceService. Run must be called once.
type Server struct {
	slicev1.UnimplementedSliceServiceServer
	cfg     Config
	stopped atomic.Bool
	// instance identifies the change log of this process in resume tokens.
	instance uint64
	leaders  leaderLog
}

// New returns a Server. It starts nothing.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, instance: rand.Uint64(), leaders: newLeaderLog()}
}

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
	leaders := s.leadersNow()
	source := s.source(leaders.of(key))
	state, ok := s.state(key)
	if !ok {
		return nil, toStatus(s.serviceNotFound(key, source))
	}
	return &slicev1.GetServiceSlicesResponse{
		ServiceSlices: s.convertState(state, leaders),
		Sources:       []*metav1.Source{source},
	}, nil
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
	leaders := s.leadersNow()
	response := &slicev1.ListServiceSlicesResponse{Sources: []*metav1.Source{s.source(leaders)}}
	if request.GetPageToken() == "" {
		response.ResumeToken = s.resumeTokens(namespace).Encode(s.cfg.Controller.Revision())
	}
	size := answer.PageSize(request.GetPageSize(), defaultPageSize, maxPageSize)
	keys := s.cfg.Controller.KeysAfter(namespace, after, size+1) // one more shows whether there is a next page
	if len(keys) > size {
		keys = keys[:size]
		response.NextPageToken = pageToken(namespace, keys[size-1])
	}
	for _, key := range keys {
		// A Service that was deleted since KeysAfter is left out.
		if state, ok := s.state(key); ok {
			response.ServiceSlices = append(response.ServiceSlices, s.convertState(state, leaders))
		}
	}
	return response, nil
}

func (s *Server) ExplainEndpoint(_ context.Context, request *slicev1.ExplainEndpointRequest) (*slicev1.ExplainEndpointResponse, error) {
	key, err := s.serviceKey(request.GetName())
	if err != nil {
		return nil, toStatus(err)
	}
	leader := s.leadersNow().of(key)
	source := s.source(leader)
	facts, err := s.facts(key, request)
	switch {
	case errors.Is(err, slicecontroller.ErrServiceNotFound):
		return nil, toStatus(s.serviceNotFound(key, source))
	case errors.Is(err, slicecontroller.ErrPodNotFound):
		return nil, toStatus(&podNotFoundError{namespace: key.Namespace, name: request.GetPod(), source: source})
	case err != nil:
		return nil, toStatus(err)
	}
	state, _ := s.cfg.Controller.State(key) // of a Service deleted meanwhile, TopologyProblem stays empty
	facts.Held, facts.TopologyProblem = source.GetEpoch() != 0, state.TopologyProblem
	response := convertChain(explain.Explain(facts), s.cfg.ReplicaID)
	response.Sources = []*metav1.Source{source}
	return response, nil
}

// facts fails with slicecontroller.ErrServiceNotFound, ErrPodNotFound, or a cacheNotSyncedError. An
// address of an Endpoints object is explained without its Service, too.
func (s *Server) facts(key slicecontroller.Key, request *slicev1.ExplainEndpointRequest) (facts explain.Facts, err error) {
	address := request.GetAddress()
	if address == "" {
		facts, err = s.cfg.Controller.Endpoint(key, request.GetPod())
	} else {
		facts, err = s.cfg.Controller.EndpointAt(key, address)
	}
	missing := errors.Is(err, slicecontroller.ErrServiceNotFound)
	if s.cfg.Mirrors == nil || err != nil && (!missing || address == "") {
		return facts, err
	}
	if unread := s.cfg.CheckMirrors(); unread != nil {
		if missing || len(facts.Service.Spec.Selector) == 0 {
			return explain.Facts{}, cmp.Or[error](err, &cacheNotSyncedError{cause: unread})
		}
		return facts, nil
	}
	facts.Mirror = s.mirrorFacts(key)
	if missing && facts.Mirror.Endpoints != nil {
		facts.Now, facts.Address, err = time.Now(), desired.CanonicalAddress(address), nil
	}
	return facts, err
}

func (s *Server) mirrorFacts(key slicecontroller.Key) *explain.MirrorFacts {
	state, ok := s.cfg.Mirrors.State(key)
	if !ok {
		state.Reason = mirror.NoEndpoints
	}
	return &explain.MirrorFacts{
		Namespace: key.Namespace, Name: key.Name,
		Endpoints: state.Endpoints, ContentKnown: state.ContentKnown, Reason: state.Reason, Limits: s.cfg.Mirrors.Limits(),
		Slices: state.Slices, Pending: state.Pending, Writer: state.Writer,
	}
}

// serviceKey parses the name of a request for one Service. It fails if no RPC can be answered now.
func (s *Server) serviceKey(name string) (slicecontroller.Key, error) {
	if err := s.checkAvailable(); err != nil {
		return slicecontroller.Key{}, err
	}
	key, ok := parseName(name)
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

// resumeTokens returns the format of the resume tokens of a watch of a namespace, or of all for "".
func (s *Server) resumeTokens(namespace string) resumetoken.Format {
	return resumetoken.Format{
		Instance:  s.instance,
		Method:    slicev1.SliceService_WatchServiceSlices_FullMethodName,
		Arguments: namespace,
	}
}
