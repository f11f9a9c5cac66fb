package leasesvc

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodeobject"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodewatch"
)

// NodeHealthLoop is the loop that does the work of upstream's node-lifecycle controller, as --loops takes it.
const NodeHealthLoop = "node-health"

// nodeShard is the shard whose holder judges all Nodes: what a zone is allowed follows from all of its Nodes together.
const nodeShard = 0

// nodeHealth is the loop node-health.
type nodeHealth struct {
	service *Service
	kube    kubernetes.Interface
	loop    *nodewatch.Loop
	objects nodeobject.Config
}

func newNodeHealth(s *Service, deps Deps) (*nodeHealth, error) {
	metrics, err := nodewatch.NewMetrics(deps.Metrics)
	if err != nil {
		return nil, err
	}
	cfg := s.cfg.NodeHealth
	return &nodeHealth{
		service: s,
		kube:    deps.Kube,
		loop: nodewatch.New(nodewatch.Config{
			Rules: cfg.rules(), Workers: cfg.ConcurrentWrites, Metrics: metrics, Logger: deps.Logger,
		}),
		objects: nodeobject.Config{Namespace: s.nodeNamespace(), Labels: cfg.ExcludeLabels, Logger: deps.Logger},
	}, nil
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

// run judges Nodes for one term. What it watches it watches for that term only: a replica that does not judge needs no pods.
func (n *nodeHealth) run(ctx context.Context, report loop.Report) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	objects, err := nodeobject.NewWatch(n.kube, n.objects)
	if err != nil {
		return err
	}
	events := nodeobject.NewEvents(ctx, n.kube)
	defer events.Close()
	sessions := newNodeSessions(n.service)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		sessions.run(ctx)
	}()
	defer func() { <-followed }()
	defer cancel()
	return n.loop.Run(ctx, nodewatch.Cluster{
		Objects: objects, Writer: nodeobject.NewWriter(n.kube, n.objects), Events: events, Sessions: sessions,
	}, report)
}
