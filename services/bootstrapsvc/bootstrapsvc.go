package bootstrapsvc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/kubewatch"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// Deps are the dependencies of a Service. All are required, except where it says otherwise.
type Deps struct {
	// Member is this replica.
	Member term.Member
	// Kube reads and writes Kubernetes. Its writes must be fenced, see kubeconn.Fence.
	Kube kubernetes.Interface
	// KubeConfig has the credentials for probes of the kube-apiserver, and its default URL.
	KubeConfig *rest.Config
	// Etcd has the keys of sidecars, the ranges and the repairs.
	Etcd apiserverscontroller.Etcd
	// Leadership is run by the service, with one shard.
	Leadership Leadership
	Logger     *slog.Logger
	// Tracer starts the spans of the reconcile loops.
	Tracer tracing.Tracer
	// Metrics may be nil: then nothing is registered.
	Metrics prometheus.Registerer
	// Decisions records what the loops decide; nil records nothing.
	Decisions *decisions.Log
	// LoopSelection is --loops; empty means all loops.
	LoopSelection []string
	// Shadow has the trackers of the loops in dry run; nil for none.
	Shadow *shadow.Trackers
}

// Service is one replica of bootstrapsvc. Its methods are safe for concurrent use. Run may be
// called once.
type Service struct {
	logger     *slog.Logger
	leadership *leadership
	baseline   *baselinecontroller.Controller
	apiservers *apiserverscontroller.Controller
	events     *baselinecontroller.Events
	shadow     *shadow.Trackers
	allocation *allocationcontroller.Controller
	runner     *loop.Runner
	server     *api.Server
	findings   *api.FindingServer
	repairs    *api.RepairServer
}

// New checks cfg and assembles the service. It starts nothing and makes no connection. It reads the
// network interfaces to find the address of this machine. An error names the flag to change.
func New(cfg Config, deps Deps) (*Service, error) {
	isSidecar, err := isEnabled(deps.LoopSelection, apiserverscontroller.ProbeLoop)
	if err != nil {
		return nil, err
	}
	local, err := findLocalServer(cfg, deps.KubeConfig, isSidecar)
	if err != nil {
		return nil, err
	}
	if deps.KubeConfig.Insecure {
		deps.Logger.Warn("probes do not verify certificates, because the kubeconfig says insecure-skip-tls-verify",
			"effect", "any program that answers at the address of a kube-apiserver counts as one", "url", local.url.Redacted())
	}
	newRegistry := apiserverscontroller.NewRegistry
	if cfg.Endpoints.SharedAddress {
		newRegistry = apiserverscontroller.NewSharedRegistry
	}
	return assemble(cfg, deps, parts{
		local:        local,
		objects:      baselinecontroller.NewKubeObjects(deps.Kube, deps.Metrics),
		keys:         newRegistry(deps.Etcd, etcdconn.KeyPrefix(deps.Member.Cluster), deps.Member.ID),
		probe:        apiserverscontroller.NewProber(deps.KubeConfig, local.url).Probe,
		masterLeases: apiserverscontroller.NewMasterLeaseReader(deps.Etcd, cfg.EtcdPrefix).Read,
		lookupIP:     net.DefaultResolver.LookupNetIP,
		probeOf: func(address netip.Addr) apiserverscontroller.Probe {
			at := netip.AddrPortFrom(address, uint16(local.port))
			return apiserverscontroller.NewPeerProber(deps.KubeConfig, &url.URL{Scheme: "https", Host: at.String()}).Probe
		},
		allocations: allocationcontroller.NewKubeCluster(deps.Kube, deps.Logger, kubewatch.NewMetrics(deps.Metrics)),
		ranges:      rangestore.New(deps.Etcd, cfg.EtcdPrefix),
		repairs:     repairstore.New(deps.Etcd, etcdconn.KeyPrefix(deps.Member.Cluster)),
	})
}

// loopNames are all loops of the service, as --loops takes them.
func loopNames() []string {
	return []string{
		allocationcontroller.AuditLoop, apiserverscontroller.ProbeLoop, apiserverscontroller.AdoptionLoop,
		baselinecontroller.NamespacesLoop, baselinecontroller.ServiceLoop, apiserverscontroller.EndpointsLoop,
	}
}

// isEnabled says whether the selection enables a loop, before there is a runner.
func isEnabled(selection []string, name string) (bool, error) {
	parsed, err := loop.ParseSelection(loopNames(), selection)
	if err != nil {
		return false, err
	}
	return parsed.Enabled(name, false), nil
}

// parts are adapters that tests replace.
type parts struct {
	local   localServer
	objects interface {
		baselinecontroller.Objects
		apiserverscontroller.Objects
	}
	keys         apiserverscontroller.Keys
	probe        apiserverscontroller.Probe
	probeOf      func(netip.Addr) apiserverscontroller.Probe
	masterLeases func(context.Context) ([]apiservers.MasterLease, error)
	lookupIP     func(ctx context.Context, network, host string) ([]netip.Addr, error)
	allocations  allocationcontroller.Cluster
	ranges       allocationcontroller.Ranges
	repairs      allocationcontroller.RepairStore
}

func assemble(cfg Config, deps Deps, made parts) (*Service, error) {
	ranges, err := parseServiceRanges(cfg.ServiceClusterIPRange)
	if err != nil {
		return nil, fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	extra, err := parseExtraPorts(cfg.ExtraPorts)
	if err != nil {
		return nil, fmt.Errorf("--kubernetes-service-extra-ports: %w", err)
	}
	metrics := baselinecontroller.NewMetrics(deps.Metrics)
	s := &Service{logger: deps.Logger, leadership: newLeadership(deps.Leadership), shadow: deps.Shadow, events: baselinecontroller.NewEvents(deps.Kube)}
	applied := func(change baseline.Change) {
		s.events.Applied(change)
		recordChange(deps.Decisions, change, s.leadership.epoch())
	}
	s.baseline = baselinecontroller.New(baselinecontroller.Config{
		ServiceRanges: ranges,
		Service: baseline.Service{
			TargetPort: made.local.port, NodePort: int32(cfg.NodePort), ExtraPorts: extra, DualStack: cfg.DualStackEndpoints,
		},
	}, baselinecontroller.Deps{Objects: made.objects, Logger: deps.Logger, Tracer: deps.Tracer, Metrics: metrics, Applied: applied, DryRun: s.dryRun})
	endpoints, err := cfg.controller(made.local, extra)
	if err != nil {
		return nil, err
	}
	s.apiservers = apiserverscontroller.New(endpoints, apiserverscontroller.Deps{
		ReplicaID: deps.Member.ID, Keys: made.keys, Session: deps.Leadership.Session, Probe: made.probe, ProbeOf: made.probeOf,
		MasterLeases: made.masterLeases, LookupIP: made.lookupIP, Objects: made.objects, ObserveService: s.baseline.ObserveService,
		YieldLeadership: deps.Leadership.YieldLeadership, PreferOthers: deps.Leadership.PreferOthers, Logger: deps.Logger, Tracer: deps.Tracer, Metrics: deps.Metrics, ReconcilerMetrics: metrics,
		Applied: applied, DryRun: s.dryRun(apiserverscontroller.EndpointsLoop),
	})
	audited, err := cfg.Audit.controller()
	if err != nil {
		return nil, err
	}
	s.allocation = allocationcontroller.New(audited, allocationcontroller.Deps{
		Cluster: made.allocations, Ranges: made.ranges, RepairStore: made.repairs, Logger: deps.Logger, Decisions: deps.Decisions,
		Reporter: allocationcontroller.NewTelemetry(deps.Kube, deps.Metrics),
	})
	loops := slices.Concat([]loop.Loop{s.allocation.Loop()}, s.apiservers.ProbeLoops(), s.baseline.Loops(), []loop.Loop{s.apiservers.EndpointsLoop()})
	s.runner, err = loop.NewRunner(loop.Config{
		Loops: s.withShadow(loops), Selection: deps.LoopSelection, DryRun: deps.Shadow.Loops(), Logger: deps.Logger, Metrics: deps.Metrics,
	})
	if err != nil {
		return nil, err
	}
	s.server = s.newServer(deps.Member)
	audit := s.allocationConfig(deps.Member)
	s.findings, s.repairs = api.NewFindingServer(audit), api.NewRepairServer(audit)
	return s, nil
}

// allocationConfig is what the servers of findings and repairs need.
func (s *Service) allocationConfig(member term.Member) api.AllocationConfig {
	cfg := api.AllocationConfig{
		Service: member.Service, ReplicaID: member.ID, Leadership: s.leadership, Allocation: s.allocation,
	}
	if !s.isRunning(allocationcontroller.AuditLoop) {
		cfg.AllocationDisabled = allocationcontroller.AuditLoop
	}
	return cfg
}

func (s *Service) newServer(member term.Member) *api.Server {
	loopOf := func(reconciler *baselinecontroller.Reconciler) api.Loop {
		return api.Loop{Name: reconciler.Loop, Reconciler: reconciler, Enabled: func() bool { return s.isRunning(reconciler.Loop) && !s.runner.DryRun(reconciler.Loop) }}
	}
	reconcilers := s.reconcilers()
	return api.New(api.Config{
		Service: member.Service, ReplicaID: member.ID,
		Leadership: s.leadership, Baseline: s.baseline, APIServers: s.apiservers,
		Namespaces: loopOf(reconcilers[0]), KubernetesService: loopOf(reconcilers[1]), Endpoints: loopOf(reconcilers[2]),
	})
}

// reconcilers are those of the system namespaces, of the Service and of the endpoints.
func (s *Service) reconcilers() []*baselinecontroller.Reconciler {
	return append(s.baseline.Reconcilers(), s.apiservers.Reconciler())
}

func (s *Service) isRunning(name string) bool {
	return slices.ContainsFunc(s.runner.Status(), func(status loop.Status) bool {
		return status.Name == name && status.State != loop.Disabled
	})
}

// Register adds the RPCs to a gRPC server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	s.server.Register(registrar)
	s.findings.Register(registrar)
	s.repairs.Register(registrar)
}

// Loops are the loops of the service, for the process's status and health.
func (s *Service) Loops() *loop.Runner { return s.runner }

// Counts are "baseline_writes", the writes to the baseline since the process started, and facts
// that only the leader knows: "namespaces" (existing system namespaces), "apiservers",
// "ready_apiservers", "endpoint_addresses", "open_findings", "pending_findings" and
// "ignored_findings". "adopts_master_leases" is 1 with --adopt-master-leases.
func (s *Service) Counts() map[string]int64 {
	counts := map[string]int64{}
	writes := int64(0)
	for _, reconciler := range s.reconcilers() {
		reconciler.CountInto(counts)
		writes += reconciler.Writes()
	}
	s.allocation.CountInto(counts)
	counts["baseline_writes"] = writes
	if s.apiservers.AdoptMasterLeases {
		counts["adopts_master_leases"] = 1 // `trivet migrate endpoints` looks for it
	}
	return counts
}

// Run probes the kube-apiserver and does the work of the leader while this replica leads. After ctx
// has ended, it deletes the key of the kube-apiserver, removes the address from the endpoints if
// this replica leads, and gives up the term, in this order and within twenty seconds.
func (s *Service) Run(ctx context.Context) error {
	group, alive := errgroup.WithContext(context.WithoutCancel(ctx))
	working, stop := context.WithCancel(alive)
	defer stop()
	defer context.AfterFunc(ctx, func() {
		s.leadership.stop()
		stop()
	})()
	// The term outlives working, so that the address is removed under it.
	leading, resign := context.WithCancel(alive)
	defer resign()
	group.Go(func() error {
		defer resign()
		err := s.runner.Run(working)
		s.withdraw()
		return err
	})
	group.Go(func() error {
		defer stop()
		return s.leadership.run(leading, s.lead)
	})
	group.Go(func() error {
		s.allocation.Repairs.Run(working)
		return nil
	})
	return group.Wait()
}

// lead is the body of a term.
func (s *Service) lead(ctx context.Context) error {
	defer s.events.Start(ctx)()
	defer func() {
		s.baseline.Forget()
		s.apiservers.Forget()
	}()
	return s.runner.RunTerm(ctx)
}

// withdraw removes the own address from the endpoints if this replica leads. Otherwise the leader
// does it, because its watch has seen that the key is gone.
func (s *Service) withdraw() {
	held := s.leadership.Term()
	if held == nil || !s.isRunning(apiserverscontroller.EndpointsLoop) || s.runner.DryRun(apiserverscontroller.EndpointsLoop) {
		return
	}
	ctx, cancel := context.WithTimeout(held.Context(), baselinecontroller.PassTimeout)
	defer cancel()
	if err := s.apiservers.WithdrawOwn(ctx); err != nil {
		s.logger.Warn("cannot remove the address of the kube-apiserver from the endpoints; the next leader does", "error", err)
	}
}

// Program is bootstrapsvc as a server process. cfg is filled by flags and read when the service is
// built.
func Program(cfg *Config) process.Program {
	return process.Program{
		Name:          "bootstrapsvc",
		Short:         "Keeps system namespaces, the kubernetes Service and its endpoints.",
		GRPCPort:      7602,
		AdminPort:     7612,
		Shards:        func() int { return 1 },
		Kube:          true,
		Decides:       true,
		Loops:         loopNames(),
		DryRuns:       []string{baselinecontroller.NamespacesLoop, baselinecontroller.ServiceLoop, apiserverscontroller.EndpointsLoop},
		RegisterFlags: cfg.RegisterFlags,
		Validate:      cfg.Validate,
		Build:         func(deps process.Deps) (process.Service, error) { return build(*cfg, deps) },
	}
}

func build(cfg Config, deps process.Deps) (process.Service, error) {
	kube, err := kubernetes.NewForConfig(deps.KubeConfig)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	return New(cfg, Deps{
		Member:        deps.Member,
		Kube:          kube,
		KubeConfig:    deps.KubeConfig,
		Etcd:          deps.Etcd,
		Leadership:    deps.Candidate,
		Logger:        deps.Logger,
		Tracer:        deps.Tracer,
		Metrics:       deps.Metrics,
		Decisions:     deps.Decisions,
		LoopSelection: deps.LoopSelection,
		Shadow:        deps.Shadow,
	})
}

// Leadership decides which replica leads. *term.Candidate implements it.
type Leadership interface {
	// Run blocks until ctx ends and calls body for each term held here; see term.Candidate.
	Run(ctx context.Context, body term.Body) error
	// Status answers from memory.
	Status() term.Status
	// YieldLeadership gives the term to a replica that can do the work, for as long as there is a
	// reason. PreferOthers ranks this replica behind ready ones and keeps its term. Neither blocks.
	YieldLeadership(reason error)
	PreferOthers(reason error)
	// Session answers from memory: the etcd lease, a context that ends with it, and whether there
	// is one now.
	Session() (clientv3.LeaseID, context.Context, bool)
}

// leadership is what the RPC handlers know about leader election.
type leadership struct {
	candidate Leadership
	// held is nil while no term is held here.
	held     atomic.Pointer[term.Term]
	stopping chan struct{}
}

func newLeadership(candidate Leadership) *leadership {
	return &leadership{candidate: candidate, stopping: make(chan struct{})}
}

func (l *leadership) run(ctx context.Context, body func(context.Context) error) error {
	return l.candidate.Run(ctx, func(ctx context.Context, held *term.Term) error {
		l.held.Store(held)
		defer l.held.Store(nil)
		return body(ctx)
	})
}

// stop says that the service stops. It may be called once.
func (l *leadership) stop() { close(l.stopping) }

// epoch is that of the term that is held here; 0 without one.
func (l *leadership) epoch() int64 {
	if held := l.Term(); held != nil {
		return held.Epoch()
	}
	return 0
}

// Term is the term that is held here; nil without one.
func (l *leadership) Term() *term.Term { return l.held.Load() }

// LeaderAddress is the gRPC address of the leader; empty if it is unknown.
func (l *leadership) LeaderAddress() string {
	shards := l.candidate.Status().Shards
	if len(shards) == 0 {
		return ""
	}
	return shards[0].GRPCAddress
}

// Stopping is closed when the service begins to stop.
func (l *leadership) Stopping() <-chan struct{} { return l.stopping }
