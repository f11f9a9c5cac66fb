package evictioncontroller

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
)

const (
	// Interval is the time between two passes, so the delay of an eviction beside its own requests.
	Interval = 50 * time.Millisecond
	// evictTimeout bounds one eviction with its three requests.
	evictTimeout = 10 * time.Second
	// reportEvery is the time between two reports.
	reportEvery = time.Second
)

// Config is the configuration of a Controller. All fields are required.
type Config struct {
	Rules eviction.Rules
	// Workers is how many evictions run at the same time.
	Workers int
	Metrics *Metrics
	Logger  *slog.Logger
}

// Cluster is what one Run works on. All fields are required.
type Cluster struct {
	Cache      Cache
	Writer     Writer
	Events     Events
	NodeHealth NodeHealth
}

// Cache is the cluster as far as it is cached; *nodestore.Subscription is one. Its methods, except
// Run, answer from memory and may be called concurrently. Returned objects must not be written to.
type Cache interface {
	nodestore.Cache
	// Changed returns the names of the Nodes that changed since the last call, or whose Pods did.
	Changed() map[string]struct{}
	// Node returns nil for a Node that does not exist.
	Node(name string) *corev1.Node
	// Pods returns the Pods on a Node.
	Pods(node string) []*corev1.Pod
}

// Writer evicts Pods and reads past the cache; *nodestore.Writer is one. Its methods block until
// kube-apiserver answers or ctx, which carries the term, ends. They are called concurrently for
// different Pods.
type Writer interface {
	// Node reads a Node past the cache. It returns nil for a Node that does not exist.
	Node(ctx context.Context, name string) (*corev1.Node, error)
	// Evict marks a Pod as disrupted and deletes it, if it has not changed. A Pod that does not
	// exist is a NotFound error.
	Evict(ctx context.Context, e *eviction.Eviction) error
}

// Events sends Kubernetes Events; nodestore.EvictionEvents is one. Its methods never block.
type Events interface {
	Evicted(e *eviction.Eviction)
	EvictionCancelled(p eviction.PendingPod)
}

// NodeHealth tells when the taints of node health are unreliable. Its methods answer from memory
// and may be called concurrently.
type NodeHealth interface {
	// TaintsHeldBy returns why the not-ready and unreachable taints of a zone must not evict now, or
	// "". Zones have the names of nodehealth.ZoneOf.
	TaintsHeldBy(zone string) string
}

// ReliableTaints is the NodeHealth of a process that does not run node health.
type ReliableTaints struct{}

// TaintsHeldBy returns "".
func (ReliableTaints) TaintsHeldBy(string) string { return "" }

// Controller is taint eviction, one term after the other. Run must not be called concurrently.
type Controller struct {
	cfg      Config
	snapshot atomic.Pointer[snapshot] // nil while Run does not pass
}

// New returns a Controller. It starts nothing.
func New(cfg Config) *Controller { return &Controller{cfg: cfg} }

// Run evicts until ctx, which carries the term, ends. Once the cache is synced it reports every
// second: an error if the last eviction failed and a failed one is still pending, else nil.
func (c *Controller) Run(ctx context.Context, cluster Cluster, report func(error)) error {
	r := newRun(c.cfg, cluster, report, &c.snapshot)
	return nodestore.Loop{
		Name: "taint eviction", Interval: Interval, Logger: c.cfg.Logger, Start: r.start, Pass: r.pass, End: r.end,
	}.Run(ctx, cluster.Cache)
}

// Pending returns the Pods that must leave a Node, ordered by Due. running is false if the
// Controller does not run here or has not listed the cluster yet.
func (c *Controller) Pending(node string) (pending []PendingEviction, running bool) {
	s := c.snapshot.Load()
	if s == nil {
		return nil, false
	}
	return s.pending(node), true
}
