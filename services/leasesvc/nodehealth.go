package leasesvc

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// evictionWorkers is the number of concurrent evictions, each with three requests. Upstream has no
// limit.
const evictionWorkers = 16

// nodeHealth is the loop node-health. Each replica watches all Nodes, and acts for the Nodes of the
// shards that it holds.
type nodeHealth struct {
	enabled    bool
	state      *state
	namespace  string // of the Leases of Nodes
	kube       kubernetes.Interface
	controller *nodehealthcontroller.Controller
	rules      nodehealth.Rules
	// store caches Nodes, Leases and Pods for both loops and for the writers of Leases.
	store     *nodestore.Store
	publisher *nodehealthcontroller.Publisher
	// evictions and receipts are set before run.
	evictions nodehealthcontroller.Evictions
	receipts  func() sessioncontroller.Receipts
}

func newNodeHealth(cfg *Config, state *state, deps Deps) (*nodeHealth, error) {
	metrics, err := nodehealthcontroller.NewMetrics(deps.Metrics)
	if err != nil {
		return nil, err
	}
	selection, err := loop.ParseSelection(loopNames(), deps.LoopSelection)
	if err != nil {
		return nil, err
	}
	// The class "node" need not be served.
	namespace, rules := corev1.NamespaceNodeLease, cfg.NodeHealth.Rules
	rules.FirstBeat = sessioncontroller.ReconnectTime
	if id, served := state.catalog.ByName(class.Node); served {
		namespace = state.catalog.Get(id).Namespace
		rules.FirstBeat += state.catalog.Get(id).HeartbeatInterval
		rules.SessionGrace = state.catalog.Get(id).Grace
	}
	enabled, publisher := selection.Enabled(NodeHealthLoop, true), nodehealthcontroller.NewPublisher()
	return &nodeHealth{
		enabled: enabled, state: state, namespace: namespace, kube: deps.Kube, rules: rules, publisher: publisher,
		store: nodestore.New(deps.Kube, nodestore.Config{
			Namespace: namespace, Labels: cfg.NodeHealth.ExcludeLabels, RenewedByUs: writeback.RenewedByUs, Logger: deps.Logger,
			NodeHealth: enabled, Eviction: selection.Enabled(TaintEvictionLoop, true),
			WatchSilenceLimit: cfg.WatchSilenceLimit, Metrics: deps.Metrics,
		}),
		controller: nodehealthcontroller.New(nodehealthcontroller.Config{
			Rules: rules, Workers: cfg.NodeHealth.ConcurrentWrites, Shards: cfg.Shards, Publisher: publisher,
			ShardOf: func(node string) int { return state.catalog.Shard(class.Node, node) },
			Metrics: metrics, Logger: deps.Logger,
		}),
	}, nil
}

func (n *nodeHealth) run(ctx context.Context, report loop.Report) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := nodestore.NewEvents(ctx, n.kube, nodestore.NodeHealthSource)
	defer events.Close()
	sessions := nodehealthcontroller.NewSessionTracker(n.state.catalog.Mark(n.namespace))
	running.Go(func() {
		sessions.Run(ctx, func() nodehealthcontroller.SessionWatcher {
			if current := n.state.sessions.Load(); current != nil {
				return current
			}
			return nil
		})
	})
	return n.controller.Run(ctx, nodehealthcontroller.Cluster{
		Cache:  n.store.Subscribe(nodestore.Nodes|nodestore.Leases|nodestore.Pods, nodestore.Nodes|nodestore.Leases),
		Writer: n.store.Writer(), Events: events, Sessions: sessions, Evictions: n.evictions,
		HeldShards: n.state.heldShards, Receipts: n.receipts,
	}, report)
}

// taintEviction is the loop taint-eviction. It runs on the replica that holds shard 0.
type taintEviction struct {
	kube       kubernetes.Interface
	controller *evictioncontroller.Controller
	nodes      *nodeHealth
}

func newTaintEviction(cfg TaintEvictionConfig, nodes *nodeHealth, deps Deps) (*taintEviction, error) {
	metrics, err := evictioncontroller.NewMetrics(deps.Metrics)
	if err != nil {
		return nil, err
	}
	return &taintEviction{
		kube: deps.Kube, nodes: nodes,
		controller: evictioncontroller.New(evictioncontroller.Config{
			Rules: eviction.Rules{Rate: cfg.QPS}, Workers: evictionWorkers, Metrics: metrics, Logger: deps.Logger,
		}),
	}, nil
}

// run evicts pods for one term. It watches pods during the term only, because a replica that does
// not evict needs none.
func (e *taintEviction) run(ctx context.Context, report loop.Report) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := nodestore.NewEvents(ctx, e.kube, nodestore.EvictionSource)
	defer events.Close()
	cluster := evictioncontroller.Cluster{
		Cache:  e.nodes.store.Subscribe(nodestore.Nodes|nodestore.Pods, nodestore.Nodes|nodestore.Pods),
		Writer: e.nodes.store.Writer(), Events: events,
	}
	if e.nodes.enabled {
		cluster.NodeHealth = e.nodes.publisher
	}
	return e.controller.Run(ctx, cluster, report)
}
