package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/shadowapi"
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/tracing"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// UsageError is a mistake in the configuration that is found only when the setting is used, such as
// a port in use.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Process is one server, ready to run. It owns its listeners and connections.
type Process struct {
	program   Program
	member    term.Member
	logger    *slog.Logger
	service   Service
	candidate *term.Candidate
	etcd      *clientv3.Client
	http      httpServers
	probe     *kubeconn.Probe // nil unless the program talks to Kubernetes
	access    *access
	decisions *decisions.Log   // nil unless Program.Decides
	tracing   *tracing.Tracing // nil without --tracing-endpoint
	ready     *observe.Checks
	shadow    *shadow.Trackers
	rpc       *rpcserver.Server
	admin     *observe.Admin
	rpcAt     net.Listener
	adminAt   net.Listener
}

// New opens the listeners and builds the process. It starts nothing and contacts no server. A
// *UsageError is a mistake in the configuration. After an error nothing remains open.
func New(cfg Config, program Program, logger *slog.Logger) (*Process, error) {
	p := &Process{program: program, ready: observe.NewChecks()}
	if program.Decides {
		p.decisions = decisions.NewLog()
	}
	if err := p.listen(cfg, logger); err != nil {
		p.close()
		return nil, &UsageError{Err: err}
	}
	if err := p.assemble(cfg, logger); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// Member returns the description of this replica in its member key.
func (p *Process) Member() term.Member { return p.member }

func (p *Process) listen(cfg Config, logger *slog.Logger) error {
	var err error
	if p.rpcAt, err = rpcserver.Listen(cfg.RPC); err != nil {
		return err
	}
	if p.adminAt, err = observe.ListenAdmin(context.Background(), cfg.Admin); err != nil {
		return err
	}
	address, err := advertised(cfg.AdvertiseAddress, p.rpcAt.Addr())
	if err != nil {
		return err
	}
	p.member = term.Member{
		ID:           identity.NewReplicaID(),
		Service:      p.program.Name,
		Cluster:      cfg.Cluster,
		Version:      identity.Version(),
		GRPCAddress:  address,
		AdminAddress: advertisedBeside(address, p.adminAt.Addr()),
		StartTime:    time.Now(),
	}
	p.logger = logger.With("service", p.member.Service, "replica", p.member.ID)
	return nil
}

// assemble needs the logger of New besides p.logger, because the candidate adds the replica id
// itself.
func (p *Process) assemble(cfg Config, logger *slog.Logger) error {
	registry := observe.NewRegistry()
	cfg.Etcd.Metrics = registry
	var err error
	if p.etcd, err = etcdconn.Connect(cfg.Etcd, p.logger); err != nil {
		return &UsageError{Err: err}
	}
	p.candidate, err = term.New(p.etcd, term.Config{
		Member: p.member, Shards: p.program.shards(), DryRun: cfg.DryRun.String(), TTL: term.DefaultTTL, Starting: true, Logger: logger, Metrics: registry,
		OnChange: func(change term.Change) { p.decisions.Record(termDecision(change)) },
		OnSwitch: func(loops []string) { p.service.Loops().SetSwitched(loops) },
	})
	if err != nil {
		return err
	}
	p.ready.Add("etcd", forServingOnly(p.candidate.Check))
	if p.program.shards() > 0 {
		lead := &leaderSeen{holdings: func() []term.ShardStatus { return p.candidate.Status().Shards }}
		p.ready.Add("leadership", forServingOnly(lead.check))
	}
	p.tracing, err = tracing.New(cfg.Tracing, tracing.Process{
		Service: p.member.Service, Version: p.member.Version, Replica: p.member.ID, Cluster: p.member.Cluster,
	}, p.logger, registry)
	if err != nil {
		return &UsageError{Err: err}
	}
	kube, err := p.connectKube(cfg)
	if err != nil {
		return &UsageError{Err: err}
	}
	if p.access, err = newAccess(cfg, p.logger, registry); err != nil {
		return &UsageError{Err: err}
	}
	if p.http, err = newHTTPServers(cfg, p.access, p.logger, registry); err != nil {
		return &UsageError{Err: err}
	}
	peers, err := peersOf(cfg, p.logger)
	if err != nil {
		return &UsageError{Err: err}
	}
	if p.shadow, err = shadow.New(cfg.DryRun, registry); err != nil {
		return err
	}
	peers.Tracing = p.tracing.Client()
	p.service, err = p.program.Build(Deps{
		Member: p.member, Etcd: p.etcd, KubeConfig: kube, Candidate: p.candidate,
		Authenticator: p.access.authenticator, Authorizer: p.access.authorizer, Quota: p.access.quota, Audit: p.access.audit, HTTP: p.http.service,
		Peers: peers, Tracer: p.tracing.Tracer(p.program.Name), Logger: p.logger, Metrics: registry, Ready: p.ready, Decisions: p.decisions, LoopSelection: cfg.Loops, Shadow: p.shadow,
	})
	if err != nil {
		return &UsageError{Err: err} // constructors contact no server, so only a setting can make them fail
	}
	p.ready.Add("loops", forServingOnly(p.service.Loops().CheckReady))
	return p.buildServers(cfg, registry)
}

// peersOf returns how to dial other servers. All connections have one identity, so that a new one
// has the certificates in use while their files are replaced.
func peersOf(cfg Config, logger *slog.Logger) (rpcclient.Config, error) {
	if cfg.RPC.Insecure {
		return rpcclient.Config{Insecure: true}, nil
	}
	client, err := cfg.RPC.PeerFiles().Client(logger)
	if err != nil {
		return rpcclient.Config{}, fmt.Errorf("certificates: %w", err)
	}
	return rpcclient.Config{Identity: client}, nil
}

func (p *Process) connectKube(cfg Config) (*rest.Config, error) {
	if !p.program.Kube {
		return nil, nil
	}
	config, err := kubeconn.RESTConfig(cfg.Kube)
	if err != nil {
		return nil, err
	}
	p.probe = kubeconn.NewProbe(config, kubeProbePeriod)
	p.ready.Add("kube-apiserver", p.probe.Check)
	config.Wrap(p.tracing.WrapTransport)
	return kubeconn.Fence(config), nil
}

// kubeProbePeriod is the period of requests to the kube-apiserver's /readyz.
const kubeProbePeriod = 2 * time.Second

func (p *Process) buildServers(cfg Config, registry *prometheus.Registry) error {
	connections, err := connlimit.New(cfg.RPC.Connections, registry, "grpc")
	if err != nil {
		return err
	}
	deps := rpcserver.Deps{
		Logger: p.logger, Metrics: registry, Unvalidated: p.program.Unvalidated, Cluster: p.member.Cluster,
		Authorizer: p.access.authorizer, Quota: p.access.quota, Audit: p.access.audit, Connections: connections,
		Tracing: p.tracing.Server(p.access.isServer),
	}
	if binding, binds := p.service.(interface{ Holders() rpcserver.HolderAccess }); binds {
		deps.Holders = binding.Holders()
	}
	if p.access.authenticator != nil { // an interface with a nil pointer is not nil
		deps.Authenticator = p.access.authenticator
	}
	p.rpc, err = rpcserver.New(cfg.RPC, deps)
	if err != nil {
		return &UsageError{Err: err}
	}
	p.rpc.Register(p.service.Register)
	p.rpc.Register(status.New(status.Deps{
		Member: p.member, Ready: p.ready, Shards: func() []term.ShardStatus { return p.candidate.Status().Shards },
		Loops: p.service.Loops().Status, Dependencies: p.dependencies, Counts: p.service.Counts, Problems: p.problems,
		ListShards: p.listShards(),
	}).Register)
	if p.program.Decides {
		p.rpc.Register(status.NewDecisionServer(p.member, p.decisions).Register)
	}
	if len(p.program.DryRuns) > 0 {
		p.rpc.Register(shadowapi.New(p.member, p.shadow, p.candidate, p.logger).Register)
	}
	live := observe.NewChecks()
	live.Add("loops", p.service.Loops().Check)
	live.Add("terms", p.candidate.CheckAlive)
	p.admin = observe.NewAdmin(cfg.Admin, observe.AdminDeps{
		Gatherer: registry, Live: live, Ready: p.ready,
		Loops: func() any { return p.service.Loops().Status() }, Logger: p.logger, Access: p.http.admin,
		LogLevel: cfg.Runtime.LogLevel, Flags: cfg.Runtime.Flags,
	})
	return nil
}

// termDecision describes the begin or the end of a term.
func termDecision(change term.Change) decisions.Decision {
	decision := decisions.Decision{
		Action: decisions.TermTaken, Shard: int32(change.Shard), Epoch: change.Epoch,
		Object:  decisions.Object{Kind: "Shard", Name: strconv.Itoa(change.Shard)},
		Message: "this replica leads the shard",
	}
	switch change.Kind {
	case term.GivenUp:
		decision.Action = decisions.TermGivenUp
	case term.Lost:
		decision.Action = decisions.TermLost
	case term.Taken:
	}
	if change.Cause != nil {
		decision.Message = change.Cause.Error()
	}
	return decision
}

// listShards returns how the service lists the shards of all services; nil if it does not.
func (p *Process) listShards() func(context.Context, *statusv1.ListShardsRequest) (*statusv1.ListShardsResponse, error) {
	if lister, lists := p.service.(interface {
		ListShards(context.Context, *statusv1.ListShardsRequest) (*statusv1.ListShardsResponse, error)
	}); lists {
		return lister.ListShards
	}
	return nil
}

// problems returns what the service reports.
func (p *Process) problems() []*metav1.Problem {
	if reporter, reports := p.service.(interface{ Problems() []*metav1.Problem }); reports {
		return reporter.Problems()
	}
	return nil
}

func (p *Process) dependencies() []status.Dependency {
	found := []status.Dependency{dependency("etcd", p.candidate.Check(), time.Time{})}
	if p.probe != nil {
		found = append(found, dependency("kube-apiserver", p.probe.Check(), p.probe.LastContact()))
	}
	return found
}

func dependency(name string, err error, lastContact time.Time) status.Dependency {
	found := status.Dependency{Name: name, Healthy: err == nil, LastContact: lastContact}
	if err != nil {
		found.Reason = err.Error()
	}
	return found
}

// close releases what New opened. It ignores the errors of listeners, which Serve has closed
// already.
func (p *Process) close() {
	for _, listener := range []net.Listener{p.rpcAt, p.adminAt} {
		if listener != nil {
			_ = listener.Close()
		}
	}
	if p.access != nil {
		for _, end := range p.access.close {
			end()
		}
	}
	if p.etcd == nil {
		return
	}
	if err := p.etcd.Close(); err != nil && !errors.Is(err, context.Canceled) {
		p.logger.Warn("cannot close the connection to etcd", "error", err)
	}
}
