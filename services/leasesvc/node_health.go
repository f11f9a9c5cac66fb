package leasesvc

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/leaseobject"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
)

// NodeHealthLoop is the loop that does the work of upstream's node-lifecycle controller, as --loops takes it.
const NodeHealthLoop = "node-health"

// nodeShard is the shard whose holder has the zones, and evicts pods: what a zone is allowed follows from all of its Nodes
// together.
const nodeShard = nodehealthcontroller.ZoneShard

// nodeHealth is the loop node-health. Every replica watches over all Nodes, and acts for those whose shards are held here.
type nodeHealth struct {
	service *Service
	enabled bool
	kube    kubernetes.Interface
	loop    *nodehealthcontroller.Controller
	rules   nodehealth.Rules
	objects nodestore.Config
	// store caches Nodes, Leases and Pods for both loops and for the writers of Leases.
	store     *nodestore.Store
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
		service: s, enabled: selection.Enabled(NodeHealthLoop, true), kube: deps.Kube, rules: cfg.rules(), publisher: nodehealthcontroller.NewPublisher(),
		objects: nodestore.Config{
			Namespace: s.nodeNamespace(), Labels: cfg.ExcludeLabels, RenewedByUs: leaseobject.RenewedByUs, Logger: deps.Logger,
			NodeHealth: selection.Enabled(NodeHealthLoop, true), Eviction: selection.Enabled(TaintEvictionLoop, true),
		},
	}
	n.store = nodestore.New(deps.Kube, n.objects)
	n.rules.FirstBeat = s.firstBeat()
	n.loop = nodehealthcontroller.New(nodehealthcontroller.Config{
		Rules: n.rules, Workers: cfg.ConcurrentWrites, Shards: s.cfg.Shards, ShardOf: n.shardOf, Publisher: n.publisher,
		Metrics: metrics, Logger: deps.Logger,
	})
	return n, nil
}

// firstBeat is how soon a node that lives is heard by a replica that it did not beat to before.
func (s *Service) firstBeat() time.Duration {
	for _, class := range s.cfg.classes() {
		if class.Name == NodeClass {
			return class.HeartbeatInterval + reconnectBudget
		}
	}
	return reconnectBudget
}

// nodeNamespace is where the Leases of Nodes are, whether the class "node" is served or not.
func (s *Service) nodeNamespace() string {
	for _, class := range s.cfg.classes() {
		if class.Name == NodeClass {
			return class.Namespace
		}
	}
	return corev1.NamespaceNodeLease
}

// shardOf is the shard of a Node, which is that of the session it may have.
func (n *nodeHealth) shardOf(node string) int { return shard.Of(NodeClass, node, n.service.cfg.Shards) }

// run watches over the Nodes until ctx ends.
func (n *nodeHealth) run(ctx context.Context, report loop.Report) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := nodestore.NewNodeEvents(ctx, n.kube)
	defer events.Close()
	sessions := newNodeSessions(n.service)
	running.Go(func() { sessions.run(ctx) })
	return n.loop.Run(ctx, nodehealthcontroller.Cluster{
		Cache:  n.store.Subscribe(nodestore.Nodes|nodestore.Leases|nodestore.Pods, nodestore.Nodes|nodestore.Leases),
		Writer: nodestore.NewWriter(n.kube, n.objects), Events: events, Sessions: sessions, HeldShards: n.service.board,
	}, report)
}

// reliability tells taint eviction which taints must not evict.
func (n *nodeHealth) reliability() evictioncontroller.NodeHealth {
	if n.enabled {
		return n
	}
	return evictioncontroller.ReliableTaints{}
}

// Doubt tells whether the taints of a zone's Nodes are in doubt.
func (n *nodeHealth) TaintsUnreliable(zone string) (why string, doubted bool) {
	edition := n.publisher.Snapshot()
	switch {
	case edition == nil:
		return "node health has not seen the cluster yet", true
	case edition.Blindness != nil:
		return edition.Blindness.String(), true
	case edition.MassSilence.Zone(zone):
		return nodehealth.MassSilenceReason, true
	case allDown(edition.Zones):
		return "no zone has a ready node", true
	}
	return "", false
}

// allDown tells whether no zone that counts has a ready node: what is wrong then is hardly the nodes, and their taints go.
func allDown(zones []nodehealth.Zone) bool {
	counted := slices.ContainsFunc(zones, func(z nodehealth.Zone) bool { return z.Size > 0 })
	return counted && !slices.ContainsFunc(zones, func(z nodehealth.Zone) bool { return z.Size > 0 && z.State != nodehealth.FullDisruption })
}
