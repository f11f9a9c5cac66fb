package leasesvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpointkey"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/forward"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/keeper"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/leaseobject"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/renewal"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/tenure"
)

// ServiceName is what the service is called in etcd keys and in errors.
const ServiceName = "leasesvc"

// Names of the loops, as --loops takes them.
const (
	SessionsLoop  = "sessions"
	WritebackLoop = "lease-writeback"
	SweepLoop     = "lease-sweep"
)

const (
	// writeTimeout bounds one write, reads before it included; upstream's client takes as long.
	writeTimeout = 10 * time.Second
	// sessionsStall is far beyond the time between two passes, and short of a Lease's duration.
	sessionsStall = 15 * time.Second
	// writebackStall is far beyond the two writeTimeouts between two passes of which every write hangs.
	writebackStall = 2 * time.Minute
	// keeperPoll is how soon those who need the keeper go on after its loop has started.
	keeperPoll = 50 * time.Millisecond
)

// Deps is what leasesvc needs from its process.
type Deps struct {
	// Member is this replica.
	Member term.Member
	// Kube reads and writes; its transport must refuse writes without a held term.
	Kube kubernetes.Interface
	// Leadership says who keeps the sessions of which shard; it must be for Config.Shards shards.
	Leadership Leadership
	// Etcd keeps what replicas remember of silent holders; nil remembers nothing.
	Etcd checkpointkey.Client
	// Dial makes a connection to another replica, to hand on beats that belong there; it must not block. nil hands on none.
	Dial func(address string) (*grpc.ClientConn, error)
	// Logger is required.
	Logger *slog.Logger
	// Metrics gets trivet_lease_*, trivet_node_* and node_collector_*; nil leaves them unregistered.
	Metrics prometheus.Registerer
	// Ready gets the check "nodes"; nil leaves it out.
	Ready *observe.Checks
	// LoopSelection is --loops.
	LoopSelection []string
}

// Service is leasesvc. Its methods are safe for concurrent use; Run is called once.
type Service struct {
	cfg        Config
	member     term.Member
	leadership Leadership
	logger     *slog.Logger
	nodes      *nodestore.Store
	writer     *leaseobject.Writer
	renewal    *renewal.Loop
	adoption   *renewal.Adoption
	orphans    *renewal.Sweep
	runner     *loop.Runner
	server     *server
	metrics    *metrics
	writes     *renewal.Metrics
	nodeHealth *nodeHealth
	eviction   *taintEviction
	// checkpoints and forwarder are nil where there is nothing that could keep or carry for them.
	checkpoints *checkpoints
	forwarder   *forward.Forwarder
	board       *tenure.Board                 // of the shards that are held here
	keeper      atomic.Pointer[keeper.Keeper] // nil while its loop does not run
}

// New assembles the service. It starts nothing and contacts nothing.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	if divided := len(deps.Leadership.Status().Shards); divided != cfg.Shards {
		return nil, fmt.Errorf("--shards is %d and leadership is for %d shards: they must agree", cfg.Shards, divided)
	}
	s := &Service{cfg: cfg, member: deps.Member, leadership: deps.Leadership, logger: deps.Logger, board: tenure.NewBoard()}
	var err error
	if s.nodeHealth, err = newNodeHealth(s, deps); err != nil {
		return nil, err
	}
	s.nodes = s.nodeHealth.store
	if s.writes, err = renewal.NewMetrics(deps.Metrics); err != nil {
		return nil, err
	}
	if s.metrics, err = newMetrics(deps.Metrics, s); err != nil {
		return nil, err
	}
	s.writer = leaseobject.NewWriter(deps.Kube.CoordinationV1(), s.nodes)
	s.renewal = renewal.New(renewal.Config{
		Workers: cfg.ConcurrentWrites, Timeout: writeTimeout, Metrics: s.writes, Logger: deps.Logger,
	}, s.writer)
	s.adoption = renewal.NewAdoption(s.writer, deps.Logger)
	s.orphans = newSweep(s)
	if s.eviction, err = newTaintEviction(cfg.TaintEviction, s.nodeHealth, deps); err != nil {
		return nil, err
	}
	if s.checkpoints, err = newCheckpoints(s, deps); err != nil {
		return nil, err
	}
	if s.forwarder, err = newForwarder(s, deps); err != nil {
		return nil, err
	}
	s.server = newServer(s)
	s.runner, err = loop.NewRunner(loop.Config{
		Loops: s.loops(), Selection: deps.LoopSelection, Logger: deps.Logger, Metrics: deps.Metrics,
	})
	if err != nil {
		return nil, err
	}
	if deps.Ready != nil {
		deps.Ready.Add("nodes", s.nodes.Check)
	}
	return s, nil
}

// loops are those of the replica, as one keeper and one set of writers serve all shards that are held, and the one of the term
// of nodeShard.
func (s *Service) loops() []loop.Loop {
	return []loop.Loop{
		{
			Name: SessionsLoop, Doc: "keeps the sessions of the holders whose shards are held here", Scope: loop.Always,
			Stall: sessionsStall, Run: s.keepSessions,
		},
		{
			Name: WritebackLoop, Doc: "writes the Lease objects of the sessions", Scope: loop.Always,
			Stall: writebackStall, Run: s.writeBack,
		},
		{
			Name: SweepLoop, Doc: "deletes the Leases of holders that are long gone and belonged to no Node", Scope: loop.Always,
			Run: loop.Every(sweepEvery, s.sweep),
		},
		{
			// It never stalls: a large cluster takes its time to be listed, and a pass waits for nobody.
			Name: NodeHealthLoop, Doc: "declares silent nodes, taints them and marks their pods", Scope: loop.Always,
			OffByDefault: true, Run: s.nodeHealth.run,
		},
		{
			// It never stalls, for the same reasons.
			Name: TaintEvictionLoop, Doc: "deletes pods from nodes whose taints they do not tolerate", Scope: loop.Leader,
			OffByDefault: true, Run: s.eviction.run,
		},
	}
}

// Register adds the service's RPCs to a server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) {
	s.server.register(registrar)
	(&nodeServer{service: s}).register(registrar)
}

// Run watches Nodes and keeps the sessions of the terms that are held here, until ctx ends and all goroutines have returned.
func (s *Service) Run(ctx context.Context) error {
	s.cfg.Writes.warn(s.logger, s.nodeHealth.enabled)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.nodes.Run(ctx) })
	// The loops outlive the terms: shards are handed over by a keeper that still works.
	loops, endLoops := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { return s.runner.Run(loops) })
	group.Go(func() error { return s.forwardBeats(loops) })
	group.Go(func() error {
		defer endLoops()
		return s.leadership.Run(ctx, s.serveShard)
	})
	return group.Wait()
}

// serveShard is the body of a term.
func (s *Service) serveShard(ctx context.Context, t *term.Term) error {
	if t.Shard() != nodeShard {
		return s.keepShard(ctx, t)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.keepShard(ctx, t) })
	group.Go(func() error { return s.runner.RunTerm(ctx) })
	return group.Wait()
}

// keepShard puts the shard on the board for the length of its term, and keeps its sessions. A shard whose keeper fails is
// given up, so that others may take it over. While there is no keeper, because its loop starts again or is switched off, the
// shard is held and has no sessions. The term ends only after all writes made under it have returned, whoever made them.
func (s *Service) keepShard(ctx context.Context, t *term.Term) error {
	held := tenure.New(ctx, t.Shard(), t.Epoch())
	defer held.Finish()
	s.board.Add(held)
	defer s.board.Remove(held)
	ticker := time.NewTicker(keeperPoll)
	defer ticker.Stop()
	for {
		if k := s.keeper.Load(); k != nil {
			return s.keepSessionsOf(ctx, t, k, held)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// keepSessionsOf begins with those who are known to be silent, and remembers those for the next holder of the shard.
func (s *Service) keepSessionsOf(ctx context.Context, t *term.Term, k *keeper.Keeper, held *tenure.Tenure) error {
	silences, empty := s.checkpoints.restore(ctx, t)
	var saving sync.WaitGroup
	defer saving.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	saving.Go(func() { s.checkpoints.save(ctx, t, k, empty) })
	return k.Keep(held, silences...)
}

// Loops are the service's loops, for the process to show and to judge by.
func (s *Service) Loops() *loop.Runner { return s.runner }

// Counts tells how many sessions there are in each state, in the shards that are held here; so the counts of all replicas
// add up. Lease objects that were written count since the start of the process, and streams as long as they are open.
func (s *Service) Counts() map[string]int64 {
	c := s.sessionCounts()
	return map[string]int64{
		"sessions": int64(c.Total()), "alive": int64(c.Alive), "suspect": int64(c.Suspect), "expired": int64(c.Expired),
		"lease_writes": s.writes.Written(), "streams": s.server.streams.Load(),
	}
}

// keepSessions begins without sessions, whatever a keeper before this one knew.
func (s *Service) keepSessions(ctx context.Context, report loop.Report) error {
	k := keeper.New(keeper.Config{
		Classes: s.cfg.rules(), Shards: s.cfg.Shards, Limit: s.cfg.MaxSessions, Surveys: true,
		Passed: func() { report(nil) }, Logger: s.logger,
	})
	s.keeper.Store(k)
	defer s.keeper.CompareAndSwap(k, nil)
	return k.Run(ctx)
}

// writeBack follows the keeper: when its loop is started anew, so is the writing.
func (s *Service) writeBack(ctx context.Context, report loop.Report) error {
	ticker := time.NewTicker(keeperPoll)
	defer ticker.Stop()
	for {
		if k := s.keeper.Load(); k != nil {
			group, ctx := errgroup.WithContext(ctx)
			group.Go(func() error { return s.adoption.Run(ctx, k) })
			group.Go(func() error { return s.renewal.Run(ctx, k, report) })
			if err := group.Wait(); err != nil {
				return err
			}
		}
		report(nil)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
