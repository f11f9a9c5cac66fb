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
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

const (
	// LoopName is what --loops calls the loop that writes slices.
	LoopName = "endpointslices"
	// stall is longer than any write may take.
	stall = 2 * time.Minute
	// quiet is how long nothing may have been written for a Service before its slices are compacted.
	quiet = 5 * time.Second
)

// Deps is what slicesvc needs from its process.
type Deps struct {
	// Member is this replica.
	Member term.Member
	// Cluster is what slices are made from and written to; see Connect.
	Cluster Cluster
	// Leadership says when to write.
	Leadership Leadership
	Logger     *slog.Logger
	// Metrics gets trivet_slice_* and upstream's endpoint_slice_controller_*; nil leaves them unregistered.
	Metrics prometheus.Registerer
	// Ready gets the check "caches"; nil leaves it out.
	Ready *observe.Checks
	// LoopSelection is --loops.
	LoopSelection []string
}

// Cluster is a kube-apiserver as far as it is used here. Whatever writes slices
// must refuse to without a held term.
type Cluster struct {
	Objects kube.ObjectClient
	Slices  kube.SliceRequests
	Events  record.EventSink
}

// Connect returns the Cluster of a configuration, whose transport must refuse
// writes without a held term, those of Events aside. It contacts nobody.
func Connect(cfg *rest.Config) (Cluster, error) {
	objects, err := kube.NewObjectClient(cfg)
	if err != nil {
		return Cluster{}, err
	}
	slices, err := kube.NewMetadataOnlyRequests(kubeconn.Prompt(cfg, discoveryv1.Resource("endpointslices")))
	if err != nil {
		return Cluster{}, err
	}
	events, err := kube.NewEventSink(cfg)
	return Cluster{Objects: objects, Slices: slices, Events: events}, err
}

// Service is slicesvc. Its methods are safe for concurrent use; Run is called once.
type Service struct {
	cfg        Config
	member     term.Member
	leadership Leadership
	engine     *slicecontroller.Engine
	events     *slicecontroller.Events
	metrics    *slicecontroller.Metrics
	watch      *kube.Watches
	runner     *loop.Runner
	stopping   atomic.Bool
}

// New assembles the service. It starts nothing and contacts nothing.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := errors.Join(cfg.Validate()...); err != nil {
		return nil, err
	}
	if divided := len(deps.Leadership.Status().Shards); divided != cfg.Shards {
		return nil, fmt.Errorf("--shards is %d and leadership is for %d shards: they must agree", cfg.Shards, divided)
	}
	s := &Service{
		cfg:        cfg,
		member:     deps.Member,
		leadership: deps.Leadership,
		events:     slicecontroller.NewEvents(deps.Cluster.Events),
	}
	slices := kube.NewSliceClient(deps.Cluster.Slices, cfg.ManagedBy)
	var err error
	s.engine, err = slicecontroller.New(slicecontroller.Config{
		ManagedBy: cfg.ManagedBy,
		Shards:    cfg.Shards,
		Limit:     cfg.MaxEndpointsPerSlice,
		Workers:   cfg.ConcurrentServiceSyncs,
		CleanUp:   cfg.CleanUpSelectorless,

		CompactAfter: quiet,
	}, slicecontroller.Deps{
		Writer:  slices,
		Reader:  slices,
		Pace:    slicecontroller.NewBatcher(cfg.UpdatesBatchPeriod, cfg.ConcurrentServiceSyncs),
		Logger:  deps.Logger,
		Metrics: deps.Metrics,
		Contended: func(service *corev1.Service, by string) {
			s.events.Contended(service, by)
		},
		Passed: func(pass slicecontroller.Pass) {
			s.metrics.Passed(pass)
			s.events.Passed(pass)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if s.metrics, err = slicecontroller.NewMetrics(deps.Metrics, s.engine.Sizes); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.watch = kube.NewWatches(deps.Cluster.Objects, s.engine, deps.Logger)
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
			held, ok := term.FromContext(ctx)
			if !ok {
				return term.ErrNone
			}
			if !s.awaitCaches(ctx, report) {
				return nil
			}
			return s.engine.Hold(ctx, held.Shard(), report)
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
	group.Go(func() error { return s.engine.Run(ctx) })
	group.Go(func() error { return s.events.Run(ctx) })
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

// Counts tells what belongs to the shards held here, and how many Services of
// them wait for a pass. Every Service, slice, endpoint and pod of the cluster is
// in one shard (a pod in the one its own name falls into), so the counts of all
// replicas add up to those of the cluster, and a replica without a shard has
// none, though its caches are as full as anybody's.
func (s *Service) Counts() map[string]int64 {
	var held []int
	for _, holding := range s.leadership.Status().Shards {
		if holding.Here {
			held = append(held, holding.Shard)
		}
	}
	counts := s.engine.Counts(held)
	return map[string]int64{
		"services":        int64(counts.Services),
		"endpoint_slices": int64(counts.EndpointSlices),
		"endpoints":       int64(counts.Endpoints),
		"pods":            int64(counts.Pods),
		"queue":           int64(s.engine.QueueLength()),
	}
}

// shardOf is the shard of a Service.
func (s *Service) shardOf(key slicecontroller.Key) int {
	return shard.Of(key.Namespace, key.Name, s.cfg.Shards)
}

// epochOf is that of the term under which a Service is worked on here, 0 when
// its shard is not held here.
func (s *Service) epochOf(key slicecontroller.Key) int64 {
	holding := s.leadership.Status().Shards[s.shardOf(key)]
	if !holding.Here {
		return 0
	}
	return holding.Epoch
}

// heldEpochs has the epoch of each shard that is held here, 0 for the others.
func (s *Service) heldEpochs() []int64 {
	holdings := s.leadership.Status().Shards
	epochs := make([]int64, len(holdings))
	for i, holding := range holdings {
		if holding.Here {
			epochs[i] = holding.Epoch
		}
	}
	return epochs
}

// newestEpoch is that of the latest of the terms held here, 0 when there is none.
func (s *Service) newestEpoch() int64 {
	var newest int64
	for _, holding := range s.leadership.Status().Shards {
		if holding.Here {
			newest = max(newest, holding.Epoch)
		}
	}
	return newest
}
