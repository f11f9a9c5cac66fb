package leasesvc

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/acknowledge"
	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/class"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/shadowcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// evictionWorkers is the number of concurrent evictions, each with three requests. Upstream has no
// limit.
const evictionWorkers = 16

// leaseWrite is how long a kubelet's write of its Lease may take, so that it arrives before the
// Node is marked.
const leaseWrite = time.Second

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
	// shadow is nil unless the loop may be in dry run.
	shadow    *shadow.Tracker
	decisions *decisions.Log
	logger    *slog.Logger
	// dryRun reports whether a loop must not write now. It and evictions are set before run.
	dryRun    func(loop string) bool
	evictions nodehealthcontroller.Evictions
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
	rules.LeastSilence = sessioncontroller.ReconnectTime
	if id, served := state.catalog.ByName(class.Node); served {
		namespace = state.catalog.Get(id).Namespace
		rules.LeastSilence = max(rules.LeastSilence+2*state.catalog.Get(id).HeartbeatInterval, state.catalog.Get(id).Grace)
		rules.SessionGrace = state.catalog.Get(id).Grace
	}
	tracker := deps.Shadow.Tracker(NodeHealthLoop)
	if id, served := state.catalog.ByName(class.Node); served && selection.Enabled(NodeHealthLoop, true) {
		if err := checkMargin(state.catalog.Get(id)); err != nil {
			return nil, err
		}
	}
	enabled, publisher := tracker != nil || selection.Enabled(NodeHealthLoop, true), nodehealthcontroller.NewPublisher()
	return &nodeHealth{
		enabled: enabled, state: state, namespace: namespace, kube: deps.Kube, rules: rules, publisher: publisher,
		shadow: tracker, decisions: deps.Decisions, logger: deps.Logger,
		store: nodestore.New(deps.Kube, nodestore.Config{
			Namespace: namespace, Labels: cfg.NodeHealth.ExcludeLabels, RenewedByUs: writeback.RenewedByUs, Logger: deps.Logger,
			NodeHealth: enabled, Eviction: selection.Enabled(TaintEvictionLoop, true) || deps.Shadow.Tracker(TaintEvictionLoop) != nil,
			WatchSilenceLimit: cfg.WatchSilenceLimit, Metrics: deps.Metrics,
		}),
		controller: nodehealthcontroller.New(nodehealthcontroller.Config{
			Rules: rules, Workers: cfg.NodeHealth.ConcurrentWrites, Shards: cfg.Shards, Publisher: publisher,
			ShardOf: func(node string) int { return state.catalog.Shard(class.Node, node) },
			Metrics: metrics, Logger: deps.Logger, Tracer: deps.Tracer,
		}),
	}, nil
}

// checkMargin returns an error if a Node may be marked Unknown whose kubelet writes its Lease in
// time: a kubelet whose beats are not acknowledged does so within acknowledge.Latest of the last
// acknowledged one.
func checkMargin(c *class.Class) error {
	written := acknowledge.Latest(c.LeaseDuration)
	if c.Grace >= written+leaseWrite {
		return nil
	}
	return fmt.Errorf("class %q has a grace period of %v, must be at least %v with Leases of %v: a kubelet whose beats are not acknowledged writes its Lease within %v of the last acknowledged one, and the write takes up to %v; raise --heartbeat-grace-period or lower --lease-duration",
		c.Name, c.Grace, written+leaseWrite, c.LeaseDuration, written, leaseWrite)
}

func (n *nodeHealth) run(ctx context.Context, report loop.Report) error {
	events := nodestore.NewEvents(ctx, n.kube, nodestore.NodeHealthSource)
	defer events.Close()
	return n.judge(ctx, func(ctx context.Context, cluster nodehealthcontroller.Cluster) error {
		cluster.Writer, cluster.Events, cluster.Decisions = n.store.Writer(), events, n.decisions
		return n.controller.Run(ctx, cluster, report)
	})
}

// compare is run in dry run: it gets no Writer that could write.
func (n *nodeHealth) compare(ctx context.Context, report loop.Report) error {
	defer n.shadow.Idle()
	dry := shadowcontroller.New(shadowcontroller.Config{
		Tracker: n.shadow, NodeHealth: n.controller, Snapshot: n.publisher.Snapshot,
		Reader: n.store.Writer(), Pods: n.store.Pods, Logger: n.logger,
	})
	return n.judge(ctx, func(ctx context.Context, cluster nodehealthcontroller.Cluster) error {
		return dry.Run(ctx, cluster, report)
	})
}

// judge calls run with a cluster that has no Writer, Events and Decisions.
func (n *nodeHealth) judge(ctx context.Context, run func(context.Context, nodehealthcontroller.Cluster) error) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sessions := nodehealthcontroller.NewSessionTracker(n.state.catalog.Mark(n.namespace))
	running.Go(func() {
		sessions.Run(ctx, func() nodehealthcontroller.SessionWatcher {
			if current := n.state.sessions.Load(); current != nil {
				return current
			}
			return nil
		})
	})
	return run(ctx, nodehealthcontroller.Cluster{
		Cache:    n.store.Subscribe(nodestore.Nodes|nodestore.Leases|nodestore.Pods, nodestore.Nodes|nodestore.Leases),
		Sessions: sessions, Evictions: n.evictions, HeldShards: n.state.heldShards,
	})
}

// writes is false if upstream's controller marks and taints Nodes: the loop is off or in dry run.
func (n *nodeHealth) writes() bool { return n.enabled && !n.dryRun(NodeHealthLoop) }

var _ evictioncontroller.NodeHealth = (*nodeHealth)(nil)

// TaintHold says why the taints of node health are unreliable; those that upstream's controller
// sets never are.
func (n *nodeHealth) TaintHold() nodehealth.Delay {
	if !n.writes() {
		return nodehealth.Delay{}
	}
	return n.publisher.TaintHold()
}

// taintEviction is the loop taint-eviction. It runs on the replica that holds shard 0.
type taintEviction struct {
	kube       kubernetes.Interface
	controller *evictioncontroller.Controller
	nodes      *nodeHealth
	// shadow is nil unless the loop may be in dry run.
	shadow    *shadow.Tracker
	decisions *decisions.Log
	logger    *slog.Logger
}

func newTaintEviction(cfg TaintEvictionConfig, nodes *nodeHealth, deps Deps) (*taintEviction, error) {
	metrics, err := evictioncontroller.NewMetrics(deps.Metrics)
	if err != nil {
		return nil, err
	}
	tracker := deps.Shadow.Tracker(TaintEvictionLoop)
	if tracker != nil {
		tracker.Idle() // only the leader of shard 0 compares
	}
	return &taintEviction{
		kube: deps.Kube, nodes: nodes, shadow: tracker, decisions: deps.Decisions, logger: deps.Logger,
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
	cluster := e.cluster()
	cluster.Writer, cluster.Events, cluster.Decisions = e.nodes.store.Writer(), events, e.decisions
	return e.controller.Run(ctx, cluster, report)
}

// compare is run in dry run: it gets no Writer that could write, and what it would do is no
// decision.
func (e *taintEviction) compare(ctx context.Context, report loop.Report) error {
	defer e.shadow.Idle()
	return shadowcontroller.NewEvictions(shadowcontroller.EvictionsConfig{
		Tracker: e.shadow, Evictions: e.controller, Reader: e.nodes.store.Writer(), Logger: e.logger,
	}).Run(ctx, e.cluster(), report)
}

// cluster has no Writer, Events and Decisions.
func (e *taintEviction) cluster() evictioncontroller.Cluster {
	return evictioncontroller.Cluster{
		Cache:      e.nodes.store.Subscribe(nodestore.Nodes|nodestore.Pods, nodestore.Nodes|nodestore.Pods),
		NodeHealth: e.nodes,
	}
}

// Pending returns the Pods that must leave a Node. running is false if this replica evicts none.
func (e *taintEviction) Pending(node string) (pending []evictioncontroller.PendingEviction, running bool) {
	if e.nodes.dryRun(TaintEvictionLoop) {
		return nil, false
	}
	return e.controller.Pending(node)
}
