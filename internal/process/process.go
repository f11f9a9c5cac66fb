package process

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/internal/status"
	"github.com/trivet-dev/trivet/internal/term"
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
	ready     *observe.Checks
	rpc       *rpcserver.Server
	admin     *observe.Admin
	rpcAt     net.Listener
	adminAt   net.Listener
}

// New opens the listeners and builds the process. It starts nothing and contacts no server. A
// *UsageError is a mistake in the configuration. After an error nothing remains open.
func New(cfg Config, program Program, logger *slog.Logger) (*Process, error) {
	p := &Process{program: program, ready: observe.NewChecks()}
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
		Member: p.member, Shards: p.program.shards(), TTL: term.DefaultTTL, Starting: true, Logger: logger, Metrics: registry,
	})
	if err != nil {
		return err
	}
	p.ready.Add("etcd", forServingOnly(p.candidate.Check))
	if p.program.shards() > 0 {
		lead := &leaderSeen{holdings: func() []term.ShardStatus { return p.candidate.Status().Shards }}
		p.ready.Add("leadership", forServingOnly(lead.check))
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
	p.service, err = p.program.Build(Deps{
		Member: p.member, Etcd: p.etcd, KubeConfig: kube, Candidate: p.candidate,
		Authenticator: p.access.authenticator, Authorizer: p.access.authorizer, Quota: p.access.quota, Audit: p.access.audit, HTTP: p.http.service,
		Peers:  rpcclient.Config{TLS: cfg.RPC.PeerFiles(), Insecure: cfg.RPC.Insecure},
		Logger: p.logger, Metrics: registry, Ready: p.ready, LoopSelection: cfg.Loops,
	})
	if err != nil {
		return &UsageError{Err: err} // constructors contact no server, so only a setting can make them fail
	}
	p.ready.Add("loops", forServingOnly(p.service.Loops().CheckReady))
	return p.buildServers(cfg, registry)
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
	live := observe.NewChecks()
	live.Add("loops", p.service.Loops().Check)
	live.Add("terms", p.candidate.CheckAlive)
	p.admin = observe.NewAdmin(cfg.Admin, observe.AdminDeps{
		Gatherer: registry, Live: live, Ready: p.ready,
		Loops: func() any { return p.service.Loops().Status() }, Logger: p.logger, Access: p.http.admin,
	})
	return nil
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
