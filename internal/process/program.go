package process

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/audit"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/httpaccess"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/tracing"
)

// Program describes one server. Its functions are called in the order RegisterFlags, Validate,
// Build. Name, Short and Build are required.
type Program struct {
	// Name is the name of the service in etcd keys and in the gateway, for example "leasesvc".
	Name string
	// Short describes the program in one line, for --help.
	Short string
	// GRPCPort and AdminPort are the default ports on loopback.
	GRPCPort, AdminPort int
	// Shards returns the number of shards of the service. It is called after flags have been read.
	// With nil or 0 the replica is a member that holds no terms.
	Shards func() int
	// Kube says whether the service talks to a kube-apiserver. Reviews of callers are separate:
	// every process asks them, and is ready without an answer.
	Kube bool
	// KubeQPS and KubeBurst are the defaults of --kube-api-qps and --kube-api-burst; 0 means the
	// defaults of kubeconn. A service that limits its requests itself sets them higher.
	KubeQPS   float32
	KubeBurst int
	// Loops are the names that --loops may select.
	Loops []string
	// Decides says that the service records decisions, which the process then serves.
	Decides bool
	// DryRuns are the names that --dry-run may select: the loops with loop.Loop.Shadow. The flags
	// of dry runs exist only if there are some.
	DryRuns []string
	// Unvalidated are full gRPC methods whose messages the service validates itself.
	Unvalidated []string
	// RegisterFlags adds the service's own flags; nil if it has none.
	RegisterFlags func(*pflag.FlagSet)
	// Validate returns all problems of the service's own configuration; nil if it has none.
	Validate func() []error
	// Build returns the service. It starts nothing.
	Build func(Deps) (Service, error)
}

func (p Program) shards() int {
	if p.Shards == nil {
		return 0
	}
	return p.Shards()
}

// Service is the service that a process runs. After Run was called, its methods are called
// concurrently; Loops and Counts also before.
type Service interface {
	// Register adds the service's own RPCs.
	Register(grpc.ServiceRegistrar)
	// Run runs the service, including its candidate. It returns after ctx has ended and its
	// goroutines have returned.
	Run(ctx context.Context) error
	// Loops returns the service's loops for /loops, /livez and /readyz.
	Loops() *loop.Runner
	// Counts returns the counts of the status page, by stable snake_case names.
	Counts() map[string]int64
}

// Deps are the dependencies that a process gives to its service.
type Deps struct {
	// Member describes this replica in its member key.
	Member term.Member
	// Etcd connects lazily and is closed by the process.
	Etcd *clientv3.Client
	// KubeConfig refuses each write without a held term; see kubeconn.Fence. It is nil unless
	// Program.Kube.
	KubeConfig *rest.Config
	// Candidate claims the shards of this replica. The service runs it, unless the number of shards
	// is 0.
	Candidate *term.Candidate
	// Peers configures connections to other Trivet processes, with this process's certificates.
	Peers rpcclient.Config
	// Authenticator finds the callers of further servers of the process; nil with --insecure, where
	// each caller may do everything.
	Authenticator *authn.Authenticator
	// Authorizer decides what a caller may do. It is never nil.
	Authorizer *authz.Authorizer
	// Quota limits the calls of each caller, together with the gRPC server's.
	Quota *quota.Quota
	// Audit records mutations and denials that a handler decides, such as one item of a batch. It
	// is nil without an audit log, and nil records nothing.
	Audit *audit.Log
	// HTTP decides about the requests of further HTTP servers; nil with --insecure.
	HTTP *httpaccess.Access
	// Tracer starts the spans of the service. It is off without --tracing-endpoint.
	Tracer  tracing.Tracer
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	// Ready has the checks of /readyz. A service may add checks before Run.
	Ready *observe.Checks
	// Decisions is nil unless Program.Decides, and nil records nothing.
	Decisions *decisions.Log
	// LoopSelection is the value of --loops.
	LoopSelection []string
	// Shadow has a tracker for each loop in dry run.
	Shadow *shadow.Trackers
}
