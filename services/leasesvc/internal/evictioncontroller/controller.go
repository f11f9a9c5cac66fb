package evictioncontroller

import (
	"context"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
)

const (
	// Interval is the time between two passes, so the delay of an eviction beside its own requests.
	Interval = 50 * time.Millisecond
	// evictTimeout bounds the first try of an eviction with its requests, maxEvictTimeout each try.
	evictTimeout    = 10 * time.Second
	maxEvictTimeout = time.Minute
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

// Cluster is what one Run works on.
type Cluster struct {
	Cache  Cache
	Writer Writer
	Events Events
	// NodeHealth is nil in a process whose node health sets no taints: the taints of upstream's
	// controller are always reliable.
	NodeHealth NodeHealth
	// Decisions records evictions; nil records nothing.
	Decisions *decisions.Log
}

// Cache is a nodestore.Cache; *nodestore.Subscription is one.
type Cache interface {
	nodestore.Cache
	// Relist lists all objects again, because the cache is behind.
	Relist()
}

// Writer evicts Pods and reads past the cache; *nodestore.Writer is one. Its methods block until
// kube-apiserver answers or ctx, which carries the term, ends. They are called concurrently for
// different Pods.
type Writer interface {
	// LiveNode reads a Node past the cache. It returns nil for a Node that does not exist.
	LiveNode(ctx context.Context, name string) (*corev1.Node, error)
	// LivePod reads a Pod past the cache. It returns nil for a Pod that does not exist, or that
	// another one of its name has replaced.
	LivePod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
	// Evict marks a Pod as disrupted and deletes it, if it has not changed. A Pod that does not
	// exist is a NotFound error.
	Evict(ctx context.Context, e *eviction.Eviction) error
}

// Events sends Kubernetes Events; *nodestore.Events is one. Its methods never block.
type Events interface {
	Evicted(e *eviction.Eviction)
	EvictionCancelled(p eviction.PendingPod)
}

// NodeHealth tells when the taints of node health are unreliable. Its methods answer from memory
// and may be called concurrently.
type NodeHealth interface {
	// TaintHold returns why the not-ready and unreachable taints must not evict now.
	TaintHold() nodehealth.Delay
}

// Controller is taint eviction, one term after the other. Run must not be called concurrently.
type Controller struct {
	cfg      Config
	snapshot atomic.Pointer[snapshot] // nil while Run does not pass
}

// New returns a Controller. It starts nothing.
func New(cfg Config) *Controller { return &Controller{cfg: cfg} }

// Run evicts until ctx, which carries the term, ends. Once the cache is synced it reports every
// second: an error if the last eviction failed and a failed one is still pending, or if the cache
// of Pods is behind, else nil.
func (c *Controller) Run(ctx context.Context, cluster Cluster, report func(error)) error {
	r := newRun(c.cfg, cluster, report, &c.snapshot)
	return nodestore.Loop{
		Name: "taint eviction", Interval: Interval, Report: report, Start: r.start, Pass: r.pass, End: r.end,
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

// EachPending calls visit for each Pod that must leave its Node, in no order, with the time since
// when it may leave: 0 if it may not yet, or is held. It returns false if the Controller does not
// run here or has not listed the cluster yet.
func (c *Controller) EachPending(now time.Time, visit func(p eviction.PendingPod, due time.Duration)) bool {
	s := c.snapshot.Load()
	if s == nil {
		return false
	}
	for _, node := range s.nodes {
		for _, pending := range node.Pending {
			due := time.Duration(0)
			if cause := pending.CauseNow(s.unreliable.Active()); cause != nil {
				due = max(0, now.Sub(s.origin.Add(cause.Due.Sub(0))))
			}
			visit(pending, due)
		}
	}
	return true
}

// Holds returns why the due Pods of Nodes are not evicted, by the names of the Nodes. It is nil if
// the Controller does not run here. The caller must not change it.
func (c *Controller) Holds() map[string]nodehealth.Delay {
	if s := c.snapshot.Load(); s != nil {
		return s.holds
	}
	return nil
}

// Failing returns how many evictions failed and are to be retried, and the last failure.
func (c *Controller) Failing() (pods int, last error) {
	if s := c.snapshot.Load(); s != nil {
		return len(s.attempts), s.failed
	}
	return 0, nil
}

// PendingEviction is a Pod that must leave its Node.
type PendingEviction struct {
	Namespace, Name string
	// Taint is "key=value:effect".
	Taint string
	// Due is when the toleration of the Pod is over, by the wall clock of this process.
	Due time.Time
	// Hold is why the Pod is not evicted even if it is due.
	Hold nodehealth.Delay
	// Failures is how often the eviction failed, LastError the last failure.
	Failures  int
	LastError string
}

// snapshot is the state after a pass. It is immutable.
type snapshot struct {
	origin     time.Time
	nodes      map[string]eviction.NodeEvictions
	unreliable nodehealth.Delay
	// holds has unreliable for each Node with Pods that are due.
	holds    map[string]nodehealth.Delay
	attempts map[types.UID]attempt
	failed   error // the last failure
}

func (r *run) snapshot() *snapshot {
	s := &snapshot{
		origin: r.origin, unreliable: r.unreliable, nodes: maps.Clone(r.pending),
		holds: map[string]nodehealth.Delay{}, attempts: map[types.UID]attempt{}, failed: r.failed,
	}
	for _, node := range r.heldOn {
		s.holds[node] = r.unreliable
	}
	for uid, a := range r.attempts {
		if a.failures > 0 {
			s.attempts[uid] = a
		}
	}
	return s
}

func (s *snapshot) pending(node string) (pending []PendingEviction) {
	for _, p := range s.nodes[node].Pending {
		a, hold := s.attempts[p.Pod.UID], s.unreliable
		cause := p.CauseNow(hold.Active())
		if cause == nil {
			cause = &p.Cause
		} else {
			hold = nodehealth.Delay{}
		}
		e := PendingEviction{
			Namespace: p.Pod.Namespace, Name: p.Pod.Name, Taint: cause.Taint.ToString(),
			Due: s.origin.Add(cause.Due.Sub(0)).Round(0), Hold: hold, Failures: a.failures,
		}
		if a.err != nil {
			e.LastError = a.err.Error()
		}
		pending = append(pending, e)
	}
	return pending
}
