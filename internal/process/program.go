package process

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/term"
)

// Program is what one server has of its own. It is a value to be filled once; the functions are called in the order
// RegisterFlags, Validate, Build.
type Program struct {
	// Name is the service's name, as in etcd keys and on the gateway: "leasesvc".
	Name string
	// Short says in one line what it does, for --help.
	Short string
	// GRPCPort and AdminPort are the default ports on loopback.
	GRPCPort, AdminPort int
	// Shards returns how many terms the service divides its work into; it is called when the process is built, after flags
	// have been read. nil, or 0, means that the service only makes itself known.
	Shards func() int
	// Kube says whether the service talks to a kube-apiserver.
	Kube bool
	// KubeQPS and KubeBurst are the defaults of --kube-api-qps and --kube-api-burst, for a service that bounds its requests by
	// itself; 0 means kubeconn's.
	KubeQPS   float32
	KubeBurst int
	// Loops are the names that --loops may select.
	Loops []string
	// Unvalidated lists full gRPC methods whose messages the service checks by itself.
	Unvalidated []string
	// RegisterFlags adds the service's own flags; nil if it has none.
	RegisterFlags func(*pflag.FlagSet)
	// Validate returns all problems of the service's own configuration; nil if there can be none.
	Validate func() []error
	// Build makes the service. It starts nothing.
	Build func(Deps) (Service, error)
}

// shards is how many terms there are to hold.
func (p Program) shards() int {
	if p.Shards == nil {
		return 0
	}
	return p.Shards()
}

// Service is what a process runs. Its methods may be called concurrently once Run has been called; Loops and Counts also before.
type Service interface {
	// Register adds the service's own RPCs.
	Register(grpc.ServiceRegistrar)
	// Run does the service's work, leadership included. It blocks until ctx ends and its goroutines have returned.
	Run(ctx context.Context) error
	// Loops are the service's loops: /loops shows them, /livez and /readyz judge by them.
	Loops() *loop.Runner
	// Counts tells what there is to count, by stable snake_case names.
	Counts() map[string]int64
}

// Deps is what a process gives to its service.
type Deps struct {
	// Member is this replica as its member key describes it.
	Member term.Member
	// Etcd connects lazily and is closed by the process.
	Etcd *clientv3.Client
	// KubeConfig refuses every write without a held term; nil unless Program.Kube. See kubeconn.Fence.
	KubeConfig *rest.Config
	// Candidate is this replica's part in leadership; the service runs it, unless Program.Shards says 0.
	Candidate *term.Candidate
	// Peers is how to dial other Trivet processes: with this process's own certificates.
	Peers   rpcclient.Config
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Ready collects the checks behind /readyz; a service may add its own before Run.
	Ready *observe.Checks
	// LoopSelection is --loops.
	LoopSelection []string
}
