package nodehealthcontroller

import (
	"context"
	"fmt"
	"log/slog"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

const (
	// Tick is the longest time between two passes. When a session expires, the next one comes
	// within a quarter of it.
	Tick = 200 * time.Millisecond
	// minTimeout bounds a self-check, and a write with the read before it, that kube-apiserver
	// answers promptly. The time is doubled with each failure, up to maxTimeout, so that a slow
	// kube-apiserver delays what it answers and forbids nothing. It answers no request later.
	minTimeout = 10 * time.Second
	maxTimeout = time.Minute
	// reportEvery is the time between two reports.
	reportEvery = time.Second
	// logHoldAfter is how long all marks may be suspended before that is logged.
	logHoldAfter = 5 * time.Second
	// relistAfter is how long the cache of Leases may be behind before everything is listed again.
	// client-go needs less between two attempts to watch. behindAfter is how long before the loop
	// reports that.
	relistAfter = time.Minute
	behindAfter = 5 * time.Second
)

var errBehind = fmt.Errorf("the cache of Leases has been behind for %v, so all objects are listed anew", relistAfter)

// ZoneShard is the shard whose leader sets the NoExecute taints of all Nodes, because the rate of a
// zone follows from all its Nodes.
const ZoneShard = 0

// Config is the configuration of a Controller. All fields except Tracer are required.
type Config struct {
	Rules   nodehealth.Rules
	Workers int
	// Shards is the number of shards. ShardOf returns the shard of a Node by its name.
	Shards  int
	ShardOf func(node string) int
	// Publisher gets the result of each pass.
	Publisher *Publisher
	Metrics   *Metrics
	Logger    *slog.Logger
	// Tracer starts the spans of verdicts and writes. The zero Tracer starts none.
	Tracer tracing.Tracer
}

// Cluster is what one Run works on. All fields except Decisions are required.
type Cluster struct {
	Cache    Cache
	Writer   Writer
	Events   Events
	Sessions Sessions
	// Decisions records what is written and suspended; nil records nothing.
	Decisions *decisions.Log
	// Evictions are those of this replica.
	Evictions Evictions
	// HeldShards are the terms that this replica holds.
	HeldShards *sessioncontroller.HeldShards
}

// Cache is a nodestore.Cache with Leases; *nodestore.Subscription is one.
type Cache interface {
	nodestore.Cache
	// Relist lists all objects again, because the cache is behind.
	Relist()
	// Lease returns the zero Lease if there is none.
	Lease(name string) nodehealth.Lease
}

// Writer writes to the cluster and reads past the cache; *nodestore.Writer is one. Its methods
// block until kube-apiserver answers or ctx, which carries the term, ends. They are called
// concurrently for different objects.
type Writer interface {
	// Write applies a step if the Node has not changed, and returns the Node after it.
	Write(ctx context.Context, step nodehealth.Step) (*corev1.Node, error)
	// MarkPodNotReady sets the Ready condition of a Pod to False if the Pod has not changed. A Pod
	// that does not exist is no error.
	MarkPodNotReady(ctx context.Context, pod *corev1.Pod, at metav1.Time) error
	// LiveNode reads a Node past the cache. It returns nil for a Node that does not exist.
	LiveNode(ctx context.Context, name string) (*corev1.Node, error)
	// NewerLeases returns the Leases that were renewed after their samples. It fails if no read of
	// a Lease was answered.
	NewerLeases(ctx context.Context, samples []nodehealth.Sample) ([]nodehealth.LiveLease, error)
	// RenewCheckLease writes the Lease of this service for a shard, as kubelets write theirs. It is
	// called by one goroutine at a time.
	RenewCheckLease(ctx context.Context, shard int) error
}

// Events sends Kubernetes Events; *nodestore.Events is one. Its methods never block.
type Events interface {
	NodeRegistered(*corev1.Node)
	NodeRemoved(*corev1.Node)
	// NodeNotReady is for a Node that was ready and is marked Unknown.
	NodeNotReady(*corev1.Node)
	PodNotReady(*corev1.Pod)
}

// Sessions are the sessions of nodes that this replica has. Its methods answer from memory and may
// be called concurrently.
type Sessions interface {
	// Changed returns the names of the nodes whose session changed its state, or whose Lease was
	// written, since the last call.
	Changed() map[string]struct{}
	// Expired has a value when a session has expired since the last receive.
	Expired() <-chan struct{}
	// Session returns the zero NodeSession for a node without a session.
	Session(node string) NodeSession
}

// NodeSession is the session of a node.
type NodeSession struct {
	State session.State
	// Observes says that the beats carry when the kubelet was observed last.
	Observes bool
	// AgentLives says that beats of the session still arrive, although it is expired.
	AgentLives bool
	// CutOff is since when the agent has seen all requests of its kubelet to kube-apiserver fail;
	// zero if they are served, or if the agent does not see them.
	CutOff time.Time
	// Agent registered it; the zero Handle if that is not known.
	Agent unique.Handle[session.Agent]
	// Written is the resourceVersion of the last write of the Lease by this replica; "" for none.
	Written string
}

// Evictions is taint eviction; *evictioncontroller.Controller is one.
type Evictions interface {
	// Holds returns why the due Pods of Nodes are not evicted, by the names of the Nodes. It
	// answers from memory. The map must not be changed.
	Holds() map[string]nodehealth.Delay
}

// Controller is node health on one replica.
type Controller struct{ cfg Config }

// New returns a Controller. It starts nothing.
func New(cfg Config) *Controller { return &Controller{cfg: cfg} }

// Run judges the Nodes of a cluster until ctx ends, and writes the Nodes whose shards this replica
// holds. Once the cache is synced it reports every second: an error if the last write failed and
// some write is to be retried, if the cache has been behind for behindAfter, or if kube-apiserver
// refuses to show Leases. An unreachable kube-apiserver is no error, because other replicas do no
// better. Run fails if the cache is behind for relistAfter.
func (c *Controller) Run(ctx context.Context, cluster Cluster, report func(error)) error {
	r := newRun(c.cfg, cluster, report)
	return nodestore.Loop{
		Name: "node health", Interval: Tick, Wake: cluster.Sessions.Expired(), Report: report, Start: r.start, Pass: r.pass, End: r.end,
	}.Run(ctx, cluster.Cache)
}
