package leasesvc

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpointcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
)

// evictionWorkers is the number of concurrent evictions, each with three requests. Upstream has no limit.
const evictionWorkers = 16

// nodeHealth is the loop node-health. Each replica watches all Nodes, and acts for the Nodes of the shards that it holds.
type nodeHealth struct {
	service    *Service
	enabled    bool
	kube       kubernetes.Interface
	controller *nodehealthcontroller.Controller
	rules      nodehealth.Rules
	store      nodestore.Config
	// latest is the cache of the current run, and publisher its results.
	latest    *nodestore.Latest
	publisher *nodehealthcontroller.Publisher
}

func newNodeHealth(s *Service, deps Deps) (*nodeHealth, error) {
	metrics, err := nodehealthcontroller.NewMetrics(deps.Metrics)
	if err != nil {
		return nil, err
	}
	selection, err := loop.ParseSelection(loopNames(), deps.LoopSelection)
	if err != nil {
		return nil, err
	}
	cfg := s.cfg.NodeHealth
	n := &nodeHealth{
		service: s, enabled: selection.Enabled(NodeHealthLoop, true), kube: deps.Kube, rules: cfg.rules(),
		store:  nodestore.Config{Namespace: s.nodeNamespace(), Labels: cfg.ExcludeLabels, Logger: deps.Logger},
		latest: &nodestore.Latest{}, publisher: nodehealthcontroller.NewPublisher(),
	}
	n.rules.FirstBeat = s.firstBeat()
	n.controller = nodehealthcontroller.New(nodehealthcontroller.Config{
		Rules: n.rules, Workers: cfg.ConcurrentWrites, Shards: s.cfg.Shards, Publisher: n.publisher,
		ShardOf: func(node string) int { return s.catalog.Shard(class.Node, node) },
		Metrics: metrics, Logger: deps.Logger,
	})
	return n, nil
}

// firstBeat is the longest time in which the beat of a live Node reaches a replica that has just taken over its shard.
func (s *Service) firstBeat() time.Duration {
	if id, served := s.catalog.ByName(class.Node); served {
		return s.catalog.Get(id).HeartbeatInterval + checkpointcontroller.ReconnectTime
	}
	return checkpointcontroller.ReconnectTime
}

// nodeNamespace is the namespace of the Leases of Nodes, also if the class "node" is not served.
func (s *Service) nodeNamespace() string {
	if id, served := s.catalog.ByName(class.Node); served {
		return s.catalog.Get(id).Namespace
	}
	return corev1.NamespaceNodeLease
}

func (n *nodeHealth) run(ctx context.Context, report loop.Report) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cache, err := nodestore.NewCache(n.kube, n.store)
	if err != nil {
		return err
	}
	events := nodestore.NewNodeEvents(ctx, n.kube)
	defer events.Close()
	sessions := nodehealthcontroller.NewSessionTracker(n.service.catalog.Mark(n.store.Namespace))
	running.Go(func() {
		sessions.Run(ctx, func() nodehealthcontroller.SessionWatcher {
			if current := n.service.sessions.Load(); current != nil {
				return current
			}
			return nil
		})
	})
	running.Go(func() { n.latest.Follow(cache, ctx.Done()) })
	return n.controller.Run(ctx, nodehealthcontroller.Cluster{
		Cache: cache, Writer: nodestore.NewWriter(n.kube, n.store), Events: events, Sessions: sessions,
		HeldShards: n.service.heldShards,
	}, report)
}

// nodeIndex uses the cache of the loop if the loop is enabled, so that the replica watches Nodes once.
func (n *nodeHealth) nodeIndex() (*nodestore.NodeIndex, error) {
	if n.enabled {
		return nodestore.NodeIndexOver(n.kube, n.latest), nil
	}
	return nodestore.NewNodeIndex(n.kube)
}

// taintReliability tells taint eviction which taints are reliable. Taints of upstream's controller always are.
func (n *nodeHealth) taintReliability() evictioncontroller.NodeHealth {
	if n.enabled {
		return n.publisher
	}
	return evictioncontroller.ReliableTaints{}
}

// taintEviction is the loop taint-eviction. It runs on the replica that holds shard 0.
type taintEviction struct {
	kube       kubernetes.Interface
	controller *evictioncontroller.Controller
	health     evictioncontroller.NodeHealth
	logger     *slog.Logger
}

func newTaintEviction(cfg TaintEvictionConfig, health evictioncontroller.NodeHealth, deps Deps) (*taintEviction, error) {
	metrics, err := evictioncontroller.NewMetrics(deps.Metrics)
	if err != nil {
		return nil, err
	}
	return &taintEviction{
		kube: deps.Kube, health: health, logger: deps.Logger,
		controller: evictioncontroller.New(evictioncontroller.Config{
			Rules: eviction.Rules{Rate: cfg.QPS}, Workers: evictionWorkers, Metrics: metrics, Logger: deps.Logger,
		}),
	}, nil
}

// run evicts pods for one term. It watches pods during the term only, because a replica that does not evict needs none.
func (e *taintEviction) run(ctx context.Context, report loop.Report) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cache, err := evictioncontroller.NewPodCache(e.kube, e.logger)
	if err != nil {
		return err
	}
	events := evictioncontroller.NewRecorder(ctx, e.kube)
	defer events.Close()
	return e.controller.Run(ctx, evictioncontroller.Cluster{
		Cache: cache, Writer: evictioncontroller.NewPodWriter(e.kube), Events: events, NodeHealth: e.health,
	}, report)
}
