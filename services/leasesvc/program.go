package leasesvc

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/tracing"
)

// Leadership assigns shards to replicas. *term.Candidate implements it.
type Leadership interface {
	// Run blocks until ctx ends and calls body for each term of this replica; see term.Candidate.
	Run(ctx context.Context, body term.Body) error
	// Status answers from memory, with one entry for each shard, also before Run.
	Status() term.Status
}

// Deps are what the service needs from its process.
type Deps struct {
	// Member is this replica.
	Member term.Member
	// Kube is a client whose transport refuses writes without a held term.
	Kube kubernetes.Interface
	// Leadership must be for Config.Shards shards.
	Leadership Leadership
	// Etcd stores checkpoints; nil stores none.
	Etcd clientv3.KV
	// Dial connects to another replica, to forward beats. It must not block. Beats are not
	// forwarded if it is nil.
	Dial func(address string) (*grpc.ClientConn, error)
	// Authorizer decides about classes with the holderRule SubjectAccessReview; nil refuses their
	// holders.
	Authorizer *authz.Authorizer
	// Audit records takeovers, releases and refused holders; nil records nothing.
	Audit *audit.Log
	// Tracer starts the spans of node health.
	Tracer tracing.Tracer
	// Logger is required.
	Logger *slog.Logger
	// Metrics gets trivet_lease_*, trivet_node_*, trivet_watch_* and node_collector_*; nil leaves
	// them unregistered.
	Metrics prometheus.Registerer
	// Ready gets the check "nodes"; it may be nil.
	Ready *observe.Checks
	// Decisions records what the loops decide; nil records nothing.
	Decisions *decisions.Log
	// LoopSelection is the value of --loops.
	LoopSelection []string
	// Shadow has the trackers of the loops in dry run; nil for none.
	Shadow *shadow.Trackers
}

// kubeRate is far above what the writers can send. The number of writers limits the load, so that
// the latency of a Lease write depends on the kube-apiserver only. At one write per 10 s, 2,000
// nodes would use up the 200 per second of the other services.
const kubeRate = 20_000

// Program returns the service as a server process. Flags change cfg before the process builds the
// service.
func Program(cfg *Config) process.Program {
	return process.Program{
		Name:          ServiceName,
		Short:         "Keeps the heartbeats of nodes in memory and their Lease objects in Kubernetes.",
		GRPCPort:      7601,
		AdminPort:     7611,
		Shards:        func() int { return cfg.Shards },
		Kube:          true,
		Decides:       true,
		KubeQPS:       kubeRate,
		KubeBurst:     kubeRate,
		Loops:         loopNames(),
		DryRuns:       []string{NodeHealthLoop, TaintEvictionLoop},
		Unvalidated:   Unvalidated(),
		RegisterFlags: cfg.RegisterFlags,
		Validate:      cfg.Validate,
		Build:         func(deps process.Deps) (process.Service, error) { return build(*cfg, deps) },
	}
}

func build(cfg Config, deps process.Deps) (process.Service, error) {
	kube, err := kubernetes.NewForConfig(kubeconn.FailFastOnThrottle(deps.KubeConfig, coordinationv1.Resource("leases")))
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	return New(cfg, Deps{
		Member:        deps.Member,
		Kube:          kube,
		Leadership:    deps.Candidate,
		Etcd:          deps.Etcd,
		Dial:          dialer(deps),
		Authorizer:    deps.Authorizer,
		Audit:         deps.Audit,
		Tracer:        deps.Tracer,
		Logger:        deps.Logger,
		Metrics:       deps.Metrics,
		Ready:         deps.Ready,
		Decisions:     deps.Decisions,
		LoopSelection: deps.LoopSelection,
		Shadow:        deps.Shadow,
	})
}

// dialer connects to other replicas with the certificates of this process.
func dialer(deps process.Deps) func(address string) (*grpc.ClientConn, error) {
	return func(address string) (*grpc.ClientConn, error) {
		peers := deps.Peers
		peers.ServerName = ServiceName // a certificate cannot have the address of a pod, which is not known in advance
		return rpcclient.Dial(address, peers, deps.Logger)
	}
}
