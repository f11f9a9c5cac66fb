package leasesvc

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpointcontroller"
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
	Etcd checkpointcontroller.EtcdClient
	// Dial connects to another replica, to forward beats. It must not block. Beats are not
	// forwarded if it is nil.
	Dial func(address string) (*grpc.ClientConn, error)
	// Logger is required.
	Logger *slog.Logger
	// Metrics gets trivet_lease_*, trivet_node_* and node_collector_*; nil leaves them
	// unregistered.
	Metrics prometheus.Registerer
	// Ready gets the check "nodes"; it may be nil.
	Ready *observe.Checks
	// LoopSelection is the value of --loops.
	LoopSelection []string
}
