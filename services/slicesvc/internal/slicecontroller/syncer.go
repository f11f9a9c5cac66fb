package slicecontroller

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// Key names a Service, a Pod or a slice.
type Key = index.Key

func keyOf(namespace, name string) Key { return Key{Namespace: namespace, Name: name} }

// Writer stores planned changes. It is called from several goroutines.
//
// Write blocks until the change is stored or rejected. It returns the stored slice, for a deletion
// the deleted slice, or nil if that was gone already; the result must not be changed afterwards. A
// change that was planned from an older state fails with an error that wraps kube.ErrConflict.
type Writer interface {
	Write(ctx context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error)
}

// Reader reads the current state of slices, not that of the cache. It is called from several
// goroutines.
type Reader interface {
	// Get returns nil if there is no such slice.
	Get(ctx context.Context, slice Key) (*discoveryv1.EndpointSlice, error)
	// List returns the metadata of all slices with our managed-by label.
	List(ctx context.Context) (slices []metav1.ObjectMeta, resourceVersion string, err error)
}

// Watches says whether the cache is as new as the cluster. It is called from several goroutines.
type Watches interface {
	// CurrentVersions reads the versions that the cluster has at some moment of the call.
	CurrentVersions(ctx context.Context) (kube.Versions, error)
	// Await blocks until the cache has everything up to the versions. It calls late every few
	// seconds, and returns false if ctx ends first.
	Await(ctx context.Context, versions kube.Versions, late func(error)) bool
}

// SyncerConfig configures a Syncer.
type SyncerConfig struct {
	// ManagedBy is the managed-by label of the slices that are written.
	ManagedBy string
	// Shards is the number of shards into which keys are divided.
	Shards int
	// Workers is how many keys are synced at the same time, over all shards.
	Workers int
	// SliceEventDelay is how long the answer to a change of a slice by another writer waits.
	SliceEventDelay time.Duration
	// Subject says in the help of the metrics what a sync is of, for example "a Service".
	Subject     string
	MetricNames MetricNames
}

// MetricNames are the names of the metrics of a Syncer.
type MetricNames struct {
	Syncs, Changes, Duration, Contentions, QueueDepth string
}

// Deps are the dependencies of a Controller, or of a Syncer. Writer and Logger are required.
type Deps struct {
	Writer Writer
	// Reader makes up for a late cache. Without it a term begins with the state of the cache, and a
	// conflict is resolved when the watch shows the slice.
	Reader Reader
	// Watches, with a Reader, keep a term from planning with a cache that is older than the term.
	Watches Watches
	// Batcher delays syncs after changes of Pods and Nodes. Without it they start at once.
	Batcher Batcher
	// Tracer starts the spans of the syncs.
	Tracer  tracing.Tracer
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	Events  record.EventSink
	// Decisions records what is written; nil records nothing.
	Decisions *decisions.Log
}

// Syncer keeps the slices of the held shards as its source plans them. Its methods are safe for
// concurrent use.
type Syncer struct {
	cfg     SyncerConfig
	deps    Deps
	source  source
	logger  *slog.Logger
	metrics *metrics
	// index is the cache: what the watches showed, and what was written here.
	index  *index.Index
	shards *shardTracker
	lists  *sliceLister
	budget *compactionBudget
	// ownSlicesOnly leaves slices of other managers out of the cache.
	ownSlicesOnly bool
	reads         liveReads
	// orphans has the slices to read after their term has ended. Run sets it.
	orphans workqueue.TypedRateLimitingInterface[Key]
	running chan struct{} // closed by Run
}

// NewSyncer returns a Syncer of a Source. It starts nothing. Deps.Events is not used.
func NewSyncer(cfg SyncerConfig, deps Deps, of Source) (*Syncer, error) {
	s := newSyncer(cfg, deps, wholePlans{of})
	s.ownSlicesOnly = true
	var err error
	s.metrics, err = newMetrics(deps.Metrics, cfg, s.QueueLength)
	return s, err
}

func newSyncer(cfg SyncerConfig, deps Deps, of source) *Syncer {
	s := &Syncer{
		cfg:     cfg,
		deps:    deps,
		source:  of,
		logger:  deps.Logger,
		index:   index.New(cfg.ManagedBy, cfg.Shards),
		shards:  newShardTracker(cfg.Shards),
		budget:  newCompactionBudget(),
		running: make(chan struct{}),
	}
	if deps.Reader != nil {
		s.lists = newSliceLister(deps.Reader, deps.Watches, cfg.Shards)
	}
	return s
}

// Index is the cache of slices: what the watches showed, and what was written here.
func (c *Syncer) Index() *index.Index { return c.index }

// Request requests a sync of a key because of a change.
func (c *Syncer) Request(key Key, trigger Trigger, urgency index.Urgency) {
	c.requestSync(key, syncCause{trigger: trigger, urgency: urgency})
}

// CatchingUp returns whether the shard of a key is held and its cache may lack writes of the last
// leader.
func (c *Syncer) CatchingUp(key Key) bool {
	owned := c.shards.ownerOf(key)
	return owned != nil && owned.catchingUp()
}

// CaughtUp returns whether the shard of a key is held and its cache has the writes of the last
// leader.
func (c *Syncer) CaughtUp(key Key) bool {
	owned := c.shards.ownerOf(key)
	return owned != nil && !owned.catchingUp()
}

// WithoutRecycling returns whether no slice of a key is to be rewritten for another set of ports:
// kube-apiserver did not accept such a slice, and must not thereby keep its old endpoints.
func (c *Syncer) WithoutRecycling(key Key) bool {
	owned := c.shards.ownerOf(key)
	return owned != nil && owned.withoutRecycling(key)
}

// Pending returns whether a sync of a key is due or running.
func (c *Syncer) Pending(key Key) bool {
	owned := c.shards.ownerOf(key)
	return owned != nil && owned.pending(key)
}

// Held returns the shards held here.
func (c *Syncer) Held() []int {
	var shards []int
	for _, owned := range c.shards.held() {
		shards = append(shards, owned.shard)
	}
	return shards
}

// QueueLength returns how many keys wait for a sync.
func (c *Syncer) QueueLength() int { return c.shards.queueLength() }
