package bootstrapsvc

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

// Deps is what the service needs of its process.
type Deps struct {
	// Member is this replica.
	Member term.Member
	// Kube reads and writes Kubernetes; its writes must be fenced, see kubeconn.Fence.
	Kube kubernetes.Interface
	// KubeConfig has the credentials with which the kube-apiserver is probed, and its default URL.
	KubeConfig *rest.Config
	// Etcd holds the apiserver keys.
	Etcd Etcd
	// Leadership is run by the service, with one shard.
	Leadership Leadership
	// Sessions binds this replica's key; usually the same candidate as Leadership.
	Sessions Sessions
	// Logger must not be nil.
	Logger *slog.Logger
	// Metrics may be nil: then nothing is registered.
	Metrics prometheus.Registerer
	// LoopSelection is --loops; empty: all.
	LoopSelection []string
}

// Service is one replica of bootstrapsvc. Its methods are safe for concurrent use; Run may be called once.
type Service struct {
	member     term.Member
	leadership Leadership
	logger     *slog.Logger
	metrics    *metrics
	runner     *loop.Runner
	keys       keys
	surveyor   *surveyor
	keepers    []*keeper
	audit      audit
	// The duties of the leader, in the order in which a cluster needs them.
	namespaces, service, endpoints *duty
	// at is where the kube-apiserver beside this replica is reached; nowhere without one.
	at advertised
	// adoption is nil unless kube-apiserver's own keys are read, too.
	adoption *adoption
	// held is the term held here; nil without one.
	held    atomic.Pointer[term.Term]
	repairs atomic.Int64
	// stopping is set once Run has been told to stop.
	stopping atomic.Bool
	// stopped is closed by Run then.
	stopped chan struct{}
}

// New checks cfg and puts the service together. It starts nothing and contacts nobody; to find its own address it looks at the
// network interfaces. An error names the flag to change.
func New(cfg Config, deps Deps) (*Service, error) {
	objects, err := baselinecontroller.New(deps.Kube, deps.Metrics)
	if err != nil {
		return nil, err
	}
	isSidecar, err := selected(deps.LoopSelection, probeLoop)
	if err != nil {
		return nil, err
	}
	server, err := findAPIServer(cfg, deps.KubeConfig, isSidecar)
	if err != nil {
		return nil, err
	}
	newKeys := apiserverscontroller.NewRegistry
	if cfg.Endpoints.SharedAddress {
		newKeys = apiserverscontroller.NewSharedRegistry
	}
	return assemble(cfg, deps, parts{
		server:   server,
		objects:  objects,
		keys:     newKeys(deps.Etcd, term.Prefix(deps.Member.Cluster), deps.Member.ID),
		prober:   apiserverscontroller.NewProber(deps.KubeConfig, server.url),
		leases:   apiserverscontroller.NewMasterLeaseReader(deps.Etcd, cfg.EtcdPrefix),
		resolver: net.DefaultResolver,
		proberOf: func(address netip.Addr) prober {
			at := netip.AddrPortFrom(address, uint16(server.port))
			return apiserverscontroller.NewProber(deps.KubeConfig, &url.URL{Scheme: "https", Host: at.String()})
		},
		audit: realAuditParts(cfg, deps),
	})
}

// selected tells whether a loop will run, for what has to be known before the runner can be made.
func selected(selection []string, name string) (bool, error) {
	parsed, err := loop.ParseSelection([]string{auditLoop, probeLoop, adoptionLoop, namespacesLoop, serviceLoop, endpointsLoop}, selection)
	if err != nil {
		return false, err
	}
	return parsed.Enabled(name, false), nil
}

// parts are what New has made, and what a test makes otherwise.
type parts struct {
	server   apiServer
	objects  objects
	keys     keys
	prober   prober
	leases   leases
	resolver resolver
	// proberOf makes one of the kube-apiserver at an address.
	proberOf func(netip.Addr) prober
	audit    auditParts
}

func assemble(cfg Config, deps Deps, made parts) (*Service, error) {
	ranges, err := cfg.serviceRanges()
	if err != nil {
		return nil, fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	extra, err := cfg.extraPorts()
	if err != nil {
		return nil, fmt.Errorf("--kubernetes-service-extra-ports: %w", err)
	}
	metrics, err := newMetrics(deps.Metrics)
	if err != nil {
		return nil, err
	}
	s := &Service{
		member: deps.Member, leadership: deps.Leadership, logger: deps.Logger, metrics: metrics,
		keys: made.keys, at: made.server.at, stopped: make(chan struct{}),
		surveyor: &surveyor{
			objects: made.objects, keys: made.keys, serviceRanges: ranges,
			want: baseline.Service{
				TargetPort: made.server.port, NodePort: int32(cfg.NodePort), ExtraPorts: extra, DualStack: cfg.DualStackEndpoints,
			},
		},
	}
	if err := s.prepareEndpoints(cfg, made); err != nil {
		return nil, err
	}
	s.namespaces = newDuty(namespacesPeriod, s.keepNamespaces(s.newKeeper(namespacesLoop, made.objects)))
	s.service = newDuty(servicePeriod, s.keepService(s.newKeeper(serviceLoop, made.objects)))
	s.endpoints = newDuty(endpointsPeriod, s.keepEndpoints(s.newKeeper(endpointsLoop, made.objects)))
	sidecar := &sidecar{
		keys: made.keys, sessions: deps.Sessions, prober: made.prober, logger: deps.Logger, metrics: metrics,
		replica: deps.Member.ID, at: made.server.at, port: made.server.port, cfg: cfg, concede: deps.Leadership.Concede,
	}
	if s.audit, err = newAudit(cfg.Audit, deps, made.audit); err != nil {
		return nil, err
	}
	s.runner, err = loop.NewRunner(loop.Config{
		Loops: s.loops(sidecar), Selection: deps.LoopSelection, Logger: deps.Logger, Metrics: deps.Metrics,
	})
	return s, err
}

// prepareEndpoints adds to the surveyor what it needs for endpoints.
func (s *Service) prepareEndpoints(cfg Config, made parts) error {
	policy, err := cfg.Endpoints.policy()
	if err != nil {
		return err
	}
	static, err := cfg.Endpoints.staticTarget()
	if err != nil {
		return fmt.Errorf("--static-apiserver-address: %w", err)
	}
	if cfg.Endpoints.AdoptMasterLeases {
		s.adoption = newAdoption(made.leases, made.proberOf, made.server.port, cfg, s.logger)
		s.adoption.changed = func() { s.endpoints.nudge() }
	}
	s.surveyor.caller = &caller{
		keys: made.keys, static: static, staticPort: cmp.Or(int32(cfg.Endpoints.StaticPort), made.server.port),
		resolver: made.resolver, adoption: s.adoption,
	}
	s.surveyor.publish = apiservers.Want{
		Policy: policy, DualStack: cfg.DualStackEndpoints, ExtraPorts: portsOf(s.surveyor.want.ExtraPorts),
	}
	return nil
}

func (s *Service) newKeeper(name string, objects objects) *keeper {
	k := &keeper{loop: name, objects: objects, logger: s.logger, metrics: s.metrics, repairs: &s.repairs}
	s.keepers = append(s.keepers, k)
	return k
}

// Loops are the service's loops, for the process to show and to judge by.
func (s *Service) Loops() *loop.Runner { return s.runner }

// Counts are "namespaces" (system namespaces that exist), "apiservers", "ready_apiservers" and "endpoint_addresses", known
// only while this replica leads, as are "open_findings" and "pending_findings" of the audit, and "repairs", its writes since it
// started.
func (s *Service) Counts() map[string]int64 {
	counts := facts{"repairs": s.repairs.Load()}
	for _, k := range s.keepers {
		k.countInto(counts)
	}
	s.audit.countInto(counts)
	return counts
}
