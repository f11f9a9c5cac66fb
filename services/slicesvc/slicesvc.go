package slicesvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/apply"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/engine"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/watch"
)

const (
	// LoopName is what --loops calls the loop that writes slices.
	LoopName = "endpointslices"
	// stall is longer than any write may take.
	stall = 2 * time.Minute
)

// Deps is what slicesvc needs from its process.
type Deps struct {
	// Member is this replica.
	Member term.Member
	// Kube reads and writes; its transport must refuse writes without a held term.
	Kube kubernetes.Interface
	// Leadership says when to write.
	Leadership Leadership
	Logger     *slog.Logger
	// Metrics gets trivet_slice_*; nil leaves them unregistered.
	Metrics prometheus.Registerer
	// Ready gets the check "caches"; nil leaves it out.
	Ready *observe.Checks
	// LoopSelection is --loops.
	LoopSelection []string
}

// Service is slicesvc. Its methods are safe for concurrent use; Run is called once.
type Service struct {
	cfg        Config
	member     term.Member
	leadership Leadership
	engine     *engine.Engine
	watch      *watch.Watch
	runner     *loop.Runner
	stopping   atomic.Bool
}

// New assembles the service. It starts nothing and contacts nothing.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, member: deps.Member, leadership: deps.Leadership}
	var err error
	s.engine, err = engine.New(engine.Config{
		ManagedBy: cfg.ManagedBy,
		Limit:     cfg.MaxEndpointsPerSlice,
		Workers:   cfg.ConcurrentServiceSyncs,
	}, engine.Deps{
		Writer:  apply.NewWriter(deps.Kube.DiscoveryV1()),
		Logger:  deps.Logger,
		Metrics: deps.Metrics,
	})
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.watch = watch.New(deps.Kube, s.engine, deps.Logger)
	s.runner, err = loop.NewRunner(loop.Config{
		Loops:     []loop.Loop{s.sliceLoop()},
		Selection: deps.LoopSelection,
		Logger:    deps.Logger,
		Metrics:   deps.Metrics,
	})
	if err != nil {
		return nil, err
	}
	if deps.Ready != nil {
		deps.Ready.Add("caches", s.watch.Check)
	}
	return s, nil
}

func (s *Service) sliceLoop() loop.Loop {
	return loop.Loop{
		Name:  LoopName,
		Doc:   "keeps the EndpointSlices of every Service with a selector",
		Scope: loop.Leader,
		Stall: stall,
		Run: func(ctx context.Context, report loop.Report) error {
			if !s.awaitCaches(ctx, report) {
				return nil
			}
			return s.engine.Run(ctx, report)
		},
	}
}

// awaitCaches waits until the caches are filled and reports meanwhile what is
// in the way: a cluster that cannot be read is a failure, not a hang that a
// restart could heal. It returns false when ctx ends first.
func (s *Service) awaitCaches(ctx context.Context, report loop.Report) bool {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.watch.Synced():
			return true
		case <-ticker.C:
			if err := s.watch.Check(); err != nil {
				report(err)
			}
		}
	}
}

// Run fills the caches and takes part in leadership until ctx ends, or until
// one of its parts fails, and returns after all of them have.
func (s *Service) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	defer context.AfterFunc(ctx, func() { s.stopping.Store(true) })()
	group.Go(func() error { return s.watch.Run(ctx) })
	group.Go(func() error { return s.runner.Run(ctx) })
	group.Go(func() error {
		return s.leadership.Run(ctx, func(ctx context.Context, _ *term.Term) error {
			return s.runner.RunTerm(ctx)
		})
	})
	return group.Wait()
}

// Register adds the SliceService to a gRPC server.
func (s *Service) Register(registrar grpc.ServiceRegistrar) { registerServer(registrar, s) }

// Loops are the service's loops, for the process to show and to judge by.
func (s *Service) Loops() *loop.Runner { return s.runner }

// Counts tells what the caches hold and how many Services wait for a pass.
func (s *Service) Counts() map[string]int64 {
	counts := s.engine.Counts()
	return map[string]int64{
		"services":        int64(counts.Services),
		"endpoint_slices": int64(counts.EndpointSlices),
		"endpoints":       int64(counts.Endpoints),
		"pods":            int64(counts.Pods),
		"queue":           int64(s.engine.QueueLength()),
	}
}

// epoch is that of the term held here, 0 when there is none.
func (s *Service) epoch() int64 {
	var newest int64
	for _, holding := range s.leadership.Status().Shards {
		if holding.Here {
			newest = max(newest, holding.Epoch)
		}
	}
	return newest
}
