// Package api serves trivet.bootstrap: the RPC handlers, the conversion to API messages and the
// tables from errors to statuses.
//
// [Server] has the services of the baseline and of the kube-apiservers, [FindingServer] and
// [RepairServer] those of the allocations.
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

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/prototime"
	"github.com/trivet-dev/trivet/internal/term"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
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
	Reconcile(ctx context.Context) (baselinecontroller.Result, error)
	ReconcilePlan(ctx context.Context, writes []baseline.Change) (baselinecontroller.Result, error)
}

// Loop is a reconcile loop of the baseline. A loop that --loops disables plans and writes nothing.
type Loop struct {
	Name       string
	Reconciler Reconciler
	// Enabled reports whether the loop writes now.
	Enabled func() bool
}

// Config has what the handlers need. All fields are required.
type Config struct {
	// Service and ReplicaID are the names of this service and replica in answers.
	Service, ReplicaID string
	Leadership         Leadership
	Baseline           Baseline
	APIServers         KubeAPIServers
	// Namespaces, KubernetesService and Endpoints are the loops, in the order in which a cluster
	// needs them.
	Namespaces, KubernetesService, Endpoints Loop
}

// Server implements BaselineService and APIServerService. It is safe for concurrent use.
type Server struct {
	baseline   *baselineServer
	apiservers *apiserverServer
}

// New returns a server.
func New(cfg Config) *Server {
	replica := replica{Config: cfg}
	return &Server{baseline: newBaselineServer(replica), apiservers: newAPIServerServer(replica)}
}

// Register adds the RPCs to a gRPC server.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	bootstrapv1.RegisterBaselineServiceServer(registrar, s.baseline)
	bootstrapv1.RegisterAPIServerServiceServer(registrar, s.apiservers)
}

// replica has what both services share.
type replica struct{ Config }

func (r replica) isStopping() bool {
	select {
	case <-r.Leadership.Stopping():
		return true
	default:
		return false
	}
}

// heldTerm is the term that is held here, or the error that rejects an RPC for leaders.
func (r replica) heldTerm() (*term.Term, error) {
	held := r.Leadership.Term()
	switch {
	case r.isStopping():
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

// untilStop returns a context that also ends when the service begins to stop, with errStopping as
// its cause. The caller calls the function when it is done.
func (r replica) untilStop(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-r.Leadership.Stopping():
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

// sources is the source of an answer for which no term is needed.
func (r replica) sources(read time.Time) []*metav1.Source {
	return []*metav1.Source{{Service: r.Service, ReplicaId: r.ReplicaID, ReadTime: prototime.New(read)}}
}

// leaderSources is the source of an answer under a term.
func (r replica) leaderSources(held *term.Term) []*metav1.Source {
	return []*metav1.Source{answer.Replica{Service: r.Service, ID: r.ReplicaID}.Source(held.Epoch(), []int{0})}
}
