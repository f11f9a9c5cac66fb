package leasesvc

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
)

// TaintEvictionLoop is the loop that does the work of upstream's taint-eviction controller, as --loops takes it. It runs where
// nodeShard is held.
const TaintEvictionLoop = "taint-eviction"

// evictionWorkers is how many pods are evicted at the same time, three requests each. Upstream bounds neither.
const evictionWorkers = 16

// TaintEvictionConfig is what the loop taint-eviction can be told.
type TaintEvictionConfig struct {
	// QPS is how many pods are evicted per second, 0 to 1000; 0 stands for no limit.
	QPS float64
}

func (c *TaintEvictionConfig) registerFlags(fs *pflag.FlagSet) {
	fs.Float64Var(&c.QPS, "taint-eviction-qps", c.QPS,
		"How many pods are evicted per second for the taints of their nodes, the one first that was due first. 0 stands for no limit.")
}

func (c *TaintEvictionConfig) validate() []error {
	if !(c.QPS >= 0 && c.QPS <= maxEvictionRate) { // no number is neither
		return []error{fmt.Errorf("--taint-eviction-qps is %v, must be 0 to %d", c.QPS, maxEvictionRate)}
	}
	return nil
}

// taintEviction is the loop taint-eviction.
type taintEviction struct {
	kube  kubernetes.Interface
	loop  *evictioncontroller.Controller
	nodes *nodeHealth
}

func newTaintEviction(cfg TaintEvictionConfig, nodes *nodeHealth, deps Deps) (*taintEviction, error) {
	metrics, err := evictioncontroller.NewMetrics(deps.Metrics)
	if err != nil {
		return nil, err
	}
	return &taintEviction{
		kube: deps.Kube, nodes: nodes,
		loop: evictioncontroller.New(evictioncontroller.Config{
			Rules: eviction.Rules{Rate: cfg.QPS}, Workers: evictionWorkers, Metrics: metrics, Logger: deps.Logger,
		}),
	}, nil
}

// run evicts for one term. What it watches it watches for that term only: a replica that does not evict needs no pods.
func (e *taintEviction) run(ctx context.Context, report loop.Report) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := nodestore.NewEvictionEvents(ctx, e.kube)
	defer events.Close()
	return e.loop.Run(ctx, evictioncontroller.Cluster{
		Cache:  e.nodes.store.Subscribe(nodestore.Nodes|nodestore.Pods, nodestore.Nodes|nodestore.Pods),
		Writer: nodestore.NewWriter(e.kube, e.nodes.objects), Events: events, NodeHealth: e.nodes.reliability(),
	}, report)
}

// pending returns the pods that have to leave a Node, the one first that is due first. known is false where the loop does not
// run.
func (e *taintEviction) pending(node string) (pending []evictioncontroller.PendingEviction, known bool) {
	return e.loop.Pending(node)
}
