// Package api serves trivet.bootstrap.v1.BootstrapService: the RPC handlers, the conversion to API
// messages and the one table from errors to statuses.
//
// Every handler returns errors and logs none. A replica that does not lead answers reads of the
// baseline and of the kube-apiservers, and rejects the remaining RPCs with NOT_LEADER.
package api

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

// ReadTimeout bounds the reads behind an answer, so that a caller without a deadline learns which
// dependency did not answer.
const ReadTimeout = 5 * time.Second

var (
	errNotLeading = errors.New("this replica does not lead")
	errStopping   = errors.New("this replica is shutting down")
)

// Leadership is the part of this replica in leader election. Its methods answer from memory.
type Leadership interface {
	// Term is the term that is held here; nil without one.
	Term() *term.Term
	// LeaderAddress is the gRPC address of the leader; empty if it is unknown.
	LeaderAddress() string
	// Stopping is closed when the service begins to stop.
	Stopping() <-chan struct{}
}

// Baseline observes the system namespaces and the Service; see baselinecontroller.Controller.
type Baseline interface {
	ObserveNamespaces(ctx context.Context) (baselinecontroller.NamespacesObservation, error)
	ObserveService(ctx context.Context) (baselinecontroller.ServiceObservation, error)
}

// KubeAPIServers observes the kube-apiservers and the endpoints; see
// apiserverscontroller.Controller.
type KubeAPIServers interface {
	ListServers(ctx context.Context) (apiserverscontroller.ServerList, error)
	WatchServers(ctx context.Context, changed func())
	ObserveEndpoints(ctx context.Context) (apiserverscontroller.EndpointsObservation, error)
	PlanEndpoints(ctx context.Context, list apiserverscontroller.ServerList, leaving []netip.Addr) (apiserverscontroller.EndpointsObservation, error)
}

// Reconciler makes a pass of one reconcile loop now; see baselinecontroller.Reconciler.
type Reconciler interface {
	Reconcile(ctx context.Context) ([]baseline.Change, error)
}

// Config has what the handlers need. All fields but Reconcilers are required.
type Config struct {
	// Service and ReplicaID are the names of this service and replica in answers.
	Service, ReplicaID string
	Leadership         Leadership
	Baseline           Baseline
	APIServers         KubeAPIServers
	// Reconcilers are those of the enabled loops, in the order in which a cluster needs them.
	Reconcilers []Reconciler
}

// Server implements the RPCs. It is safe for concurrent use.
type Server struct {
	bootstrapv1.UnimplementedBootstrapServiceServer
	Config
}

// New returns a server.
func New(cfg Config) *Server { return &Server{Config: cfg} }

// Register adds the RPCs to a gRPC server.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	bootstrapv1.RegisterBootstrapServiceServer(registrar, s)
}

func (s *Server) isStopping() bool {
	select {
	case <-s.Leadership.Stopping():
		return true
	default:
		return false
	}
}

// heldTerm is the term that is held here, or the error that rejects an RPC for leaders.
func (s *Server) heldTerm() (*term.Term, error) {
	held := s.Leadership.Term()
	switch {
	case s.isStopping():
		return nil, errStopping
	case held == nil:
		return nil, errNotLeading
	default:
		return held, nil
	}
}

// boundByTerm returns a context that also ends with the term, with the end of the term as its
// cause.
func boundByTerm(ctx context.Context, held *term.Term) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(held.Context(), func() { cancel(held.Check()) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// freshness of an answer; version is the newest resourceVersion behind it, empty for a live read.
func (s *Server) freshness(version string) *statusv1.Freshness {
	epoch := int64(0)
	if held := s.Leadership.Term(); held != nil {
		epoch = held.Epoch()
	}
	return status.Freshness(s.ReplicaID, epoch, version)
}
