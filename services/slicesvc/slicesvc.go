package slicesvc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/tracing"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/api"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

const (
	// LoopName is the name of the loop that writes slices, as --loops selects it.
	LoopName = "endpointslices"
	// stallTimeout is longer than any write takes.
	stallTimeout = 2 * time.Minute
	// compactAfter is the time without writes after which the slices of a Service are compacted.
	compactAfter = 5 * time.Second
)

// Program returns slicesvc as a server process. Flags fill cfg; it is read when the service is
// built.
func Program(cfg *Config) process.Program {
	return process.Program{
		Name:     "slicesvc",
		Short:    "Keeps the EndpointSlices of every Service with a selector.",
		GRPCPort: 7603, AdminPort: 7613,
		Shards:        func() int { return cfg.Shards },
		Kube:          true,
		Decides:       true,
		Loops:         loopNames(),
		DryRuns:       loopNames(),
		RegisterFlags: cfg.RegisterFlags,
		Validate:      cfg.Validate,
		Build: func(deps process.Deps) (process.Service, error) {
			clients, err := Connect(deps.KubeConfig)
			if err != nil {
				return nil, err
			}
			return New(*cfg, Deps{
				Member: deps.Member, Kube: clients, Leadership: deps.Candidate,
				Tracer: deps.Tracer, Logger: deps.Logger, Metrics: deps.Metrics, Ready: deps.Ready, Decisions: deps.Decisions, Shadow: deps.Shadow, LoopSelection: deps.LoopSelection,
			})
		},
	}
}

// Connect returns clients of kube-apiserver. The transport of cfg must refuse writes outside of a
// held term, except for Events.
func Connect(cfg *rest.Config) (kube.Clients, error) {
	return kube.Connect(cfg, kubeconn.FailFastOnThrottle(cfg, discoveryv1.Resource("endpointslices")))
}

// Leadership decides when this replica may write.
//
// Run blocks until ctx ends. It calls body once for each term held, concurrently for several
// shards. The context of body carries the term and ends before another replica can hold the shard.
// Run returns after every body has returned. Status does not block and has an entry for every
// shard, ordered by number. Both are safe for concurrent use.
type Leadership interface {
	Run(ctx context.Context, body term.Body) error
	Status() term.Status
}

// Deps are the dependencies of a Service. Member, Kube, Leadership and Logger are required.
type Deps struct {
	Member term.Member
	// Kube are the clients of kube-apiserver; see Connect.
	Kube       kube.Clients
	Leadership Leadership
	// Tracer starts the spans of the syncs.
	Tracer tracing.Tracer
	Logger *slog.Logger
	// Metrics registers trivet_slice_* and upstream's endpoint_slice_controller_* and
	// endpoint_slice_mirroring_controller_*.
	Metrics prometheus.Registerer
	// Ready gets the check "caches".
	Ready *observe.Checks
	// Decisions records what the loops decide; nil records nothing.
	Decisions *decisions.Log
	// LoopSelection is the value of --loops.
	LoopSelection []string
	// Shadow has the trackers of the loops in dry run; nil for none.
	Shadow *shadow.Trackers
}

// Service is slicesvc. Its methods are safe for concurrent use. Run must be called once.
type Service struct {
	leadership Leadership
	controller *slicecontroller.Controller
	mirrors    *mirrors // nil unless its loop is selected
	watches    *kube.Watches
	shadow     *shadow.Trackers
	logger     *slog.Logger
	api        *api.Server
	runner     *loop.Runner
}

// New returns a Service. It starts nothing and contacts nothing.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	if divided := len(deps.Leadership.Status().Shards); divided != cfg.Shards {
		return nil, fmt.Errorf("--shards is %d and leadership is for %d shards: they must agree", cfg.Shards, divided)
	}
	selectors, mirroring, err := loopsSelected(deps.LoopSelection)
	if err != nil {
		return nil, err
	}
	s := &Service{leadership: deps.Leadership, shadow: deps.Shadow, logger: deps.Logger}
	selectors = selectors || deps.Shadow.Tracker(LoopName) != nil
	mirroring = mirroring || deps.Shadow.Tracker(MirrorLoopName) != nil
	slices := kube.NewSliceClient(deps.Kube.Slices, cfg.ManagedBy)
	s.watches = kube.NewWatches(deps.Kube.Objects, cfg.WatchSilenceLimit, deps.Logger)
	s.controller, err = slicecontroller.New(slicecontroller.Config{
		ManagedBy:             cfg.ManagedBy,
		Shards:                cfg.Shards,
		MaxEndpointsPerSlice:  cfg.MaxEndpointsPerSlice,
		Workers:               cfg.ConcurrentServiceSyncs,
		DeleteUnmanagedSlices: cfg.CleanUpSelectorless,
		MayDeleteUnmanaged: func(key slicecontroller.Key) bool {
			return s.mirrors == nil || s.dryRun(MirrorLoopName) || s.mirrors.controller.Written(key) // a dry run writes no mirrored slices to wait for
		},
		CompactAfter: cfg.Compaction.after(),
	}, slicecontroller.Deps{
		Writer:  modeWriter{Writer: slices, loop: LoopName, dryRun: s.dryRun},
		Reader:  slices,
		Watches: s.watches.Inputs(),
		Batcher: slicecontroller.NewLoadBatcher(cfg.UpdatesBatchPeriod, cfg.ConcurrentServiceSyncs),
		Tracer:  deps.Tracer,
		Logger:  deps.Logger,
		Metrics: deps.Metrics,
		Events:  deps.Kube.Events,

		Decisions: deps.Decisions,
	})
	if err != nil {
		return nil, err
	}
	if mirroring {
		if s.mirrors, err = newMirrors(cfg, deps, s.watches, s.controller, s.dryRun); err != nil {
			return nil, err
		}
	}
	served := api.Config{
		ReplicaID:            deps.Member.ID,
		Controller:           s.controller,
		Leadership:           deps.Leadership,
		SelectorLoopOff:      !selectors,
		SelectorDryRun:       func() bool { return s.dryRun(LoopName) },
		MirrorDryRun:         func() bool { return s.dryRun(MirrorLoopName) },
		CheckCaches:          s.watches.CheckSlices,
		Caches:               s.watches.Status,
		MaxEndpointsPerSlice: cfg.MaxEndpointsPerSlice,
	}
	if s.mirrors != nil {
		served.Mirrors, served.CheckMirrors = s.mirrors.controller, s.checkEndpoints
	}
	s.api = api.New(served)
	s.runner, err = loop.NewRunner(loop.Config{
		Loops:     []loop.Loop{s.sliceLoop(), s.mirrorLoop()},
		Selection: deps.LoopSelection,
		DryRun:    deps.Shadow.Loops(),
		Logger:    deps.Logger,
		Metrics:   deps.Metrics,
	})
	if err != nil {
		return nil, err
	}
	if deps.Ready != nil {
		deps.Ready.AddWithDetail("caches", s.checkCaches, s.watches.Detail)
	}
	return s, registerWatches(deps.Metrics, s.watches)
}

// dryRun reports whether a loop must not write now.
func (s *Service) dryRun(loop string) bool { return s.runner.DryRun(loop) }

// checkCaches leaves out the Endpoints of a dry run: a role that lacks the rights of mirroring
// stops only that.
func (s *Service) checkCaches() error {
	if s.dryRun(MirrorLoopName) {
		return s.watches.CheckSlices()
	}
	return s.watches.Check()
}

// checkEndpoints returns nil once the cache has every Endpoints object.
func (s *Service) checkEndpoints() error {
	select {
	case <-s.watches.EndpointsSynced():
		return nil
	default:
		return cmp.Or(s.watches.Check(), errors.New("endpoints are being listed"))
	}
}

func (s *Service) sliceLoop() loop.Loop {
	return s.withShadow(loop.Loop{
		Name:  LoopName,
		Doc:   "keeps the EndpointSlices of every Service with a selector",
		Scope: loop.Leader,
		Stall: stallTimeout,
		Run: func(ctx context.Context, report loop.Report) error {
			held, ok := term.FromContext(ctx)
			if !ok {
				return term.ErrNone
			}
			if !awaitCaches(ctx, s.watches.Synced(), s.watches.CheckSlices, report) {
				return nil
			}
			return s.controller.RunShard(tracing.With(ctx, attribute.Int64("trivet.epoch", held.Epoch())), held.Shard(), report)
		},
	}, s.compareSlices)
}

// awaitCaches waits until synced is closed, and returns false if ctx ends first. Meanwhile it
// reports the cause of the delay: an unreachable cluster is a failure, not a stall, and a restart
// does not help.
func awaitCaches(ctx context.Context, synced <-chan struct{}, check func() error, report loop.Report) bool {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-synced:
			return true
		case <-ticker.C:
			if err := check(); err != nil {
				report(err)
			}
		}
	}
}

// Run fills the caches and takes part in leadership until ctx ends or one of its parts fails. It
// returns after all parts have.
func (s *Service) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, s.api.Stop)()
	group.Go(func() error { return s.watches.Run(ctx, s.handler()) })
	group.Go(func() error { return s.controller.Run(ctx) })
	if s.mirrors != nil {
		group.Go(func() error { return s.mirrors.controller.Run(ctx) })
	}
	group.Go(func() error { return s.runner.Run(ctx) })
	group.Go(func() error { return s.api.Run(ctx) })
	group.Go(func() error {
		return s.leadership.Run(ctx, func(ctx context.Context, _ *term.Term) error {
			return s.runner.RunTerm(ctx)
		})
	})
	return group.Wait()
}

// handler returns what receives the watched objects.
func (s *Service) handler() kube.Handler {
	if s.mirrors == nil {
		return s.controller
	}
	return objectHandler{Controller: s.controller, mirrors: s.mirrors.controller}
}

// Register adds the SliceService to a gRPC server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) { s.api.Register(registrar) }

// Loops returns the service's loops.
func (s *Service) Loops() *loop.Runner { return s.runner }

// Problems returns what is wrong with the duties of this replica, the worst first. It reads memory
// only.
func (s *Service) Problems() []*metav1.Problem { return s.api.Problems() }

// Counts returns the sizes of the shards held here, and the number of their Services that wait for
// a sync. Every object of the cluster is in one shard; a Pod is in the shard of its own name. So
// the counts of all replicas add up to those of the cluster.
func (s *Service) Counts() map[string]int64 {
	held := s.heldShards()
	counts := s.controller.Counts(held)
	all := map[string]int64{
		"services":        int64(counts.Services),
		"endpoint_slices": int64(counts.EndpointSlices),
		"endpoints":       int64(counts.Endpoints),
		"pods":            int64(counts.Pods),
		"queue":           int64(s.controller.QueueLength()),
	}
	if s.mirrors != nil {
		mirrored := s.mirrors.controller.Counts(held)
		all["mirrored_endpoints_objects"] = int64(mirrored.Mirrored)
		all["dropped_addresses"] = int64(mirrored.DroppedAddresses)
		all["mirrored_endpoint_slices"] = int64(mirrored.EndpointSlices)
		all["mirroring_queue"] = int64(s.mirrors.controller.QueueLength())
	}
	return all
}

// registerWatches registers the metrics of the watches.
func registerWatches(registerer prometheus.Registerer, watches *kube.Watches) error {
	if registerer == nil {
		return nil
	}
	if err := registerer.Register(watches); err != nil {
		return fmt.Errorf("register metrics of the watches: %w", err)
	}
	return nil
}
