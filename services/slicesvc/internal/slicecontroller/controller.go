package slicecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
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

// Config configures a Controller.
type Config struct {
	// ManagedBy is the managed-by label of the slices that are written.
	ManagedBy string
	// Shards is the number of shards into which Services are divided.
	Shards               int
	MaxEndpointsPerSlice int
	// Workers is how many Services are synced at the same time, over all shards.
	Workers int
	// DeleteUnmanagedSlices deletes the slices of a Service that is no longer managed.
	DeleteUnmanagedSlices bool
	// CompactAfter is the time without writes after which a Service is compacted; 0 for never.
	CompactAfter time.Duration
}

// Deps are the dependencies of a Controller. Writer and Logger are required.
type Deps struct {
	Writer Writer
	// Reader makes up for a late cache. Without it a term begins with the state of the cache, and a
	// conflict is resolved when the watch shows the slice.
	Reader Reader
	// Watches, with a Reader, keep a term from planning with a cache that is older than the term.
	Watches Watches
	// Batcher delays syncs after changes of Pods and Nodes. Without it they start at once.
	Batcher Batcher
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	Events  record.EventSink
}

// Controller syncs the slices of all Services. Its methods are safe for concurrent use.
type Controller struct {
	cfg      Config
	deps     Deps
	logger   *slog.Logger
	metrics  *metrics
	upstream *upstreamMetrics
	events   *serviceEvents
	// index is the cache: what the watches showed, and what was written here.
	index   *index.Index
	shards  *shardTracker
	changes *changeLog
	lists   *sliceLister
	budget  *compactionBudget
	// orphans has the slices to read after their term has ended. Run sets it.
	orphans workqueue.TypedRateLimitingInterface[Key]
	running chan struct{} // closed by Run
}

// New returns a Controller with an empty cache. It starts nothing.
func New(cfg Config, deps Deps) (*Controller, error) {
	c := &Controller{
		cfg:     cfg,
		deps:    deps,
		logger:  deps.Logger,
		events:  newServiceEvents(deps.Events),
		index:   index.New(cfg.ManagedBy, cfg.Shards),
		shards:  newShardTracker(cfg.Shards),
		changes: newChangeLog(),
		budget:  newCompactionBudget(),
		running: make(chan struct{}),
	}
	if deps.Reader != nil {
		c.lists = newSliceLister(deps.Reader, deps.Watches, cfg.Shards)
	}
	var err, upstreamErr error
	c.metrics, err = newMetrics(deps.Metrics, c.QueueLength)
	c.upstream, upstreamErr = newUpstreamMetrics(deps.Metrics, c.sizes)
	if err := errors.Join(err, upstreamErr); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return c, nil
}

// Counts returns the sizes of some shards, held or not.
func (c *Controller) Counts(shards []int) index.Counts { return c.index.Counts(shards) }

// QueueLength returns how many Services wait for a sync.
func (c *Controller) QueueLength() int { return c.shards.queueLength() }

// handles returns whether a sync of the Service may have anything to write.
func (c *Controller) handles(service *corev1.Service) bool {
	return c.cfg.DeleteUnmanagedSlices || index.Managed(service)
}

// sizes adds up the cached slices of the held shards. It locks the cache only for one Service at a
// time.
func (c *Controller) sizes() serviceSizes {
	sizes := serviceSizes{topologies: map[string]int{}}
	for _, owned := range c.shards.held() {
		for _, key := range c.index.ShardKeys(owned.shard) {
			service, slices, ok := c.index.Slices(key)
			if !ok || !index.Managed(service) {
				continue
			}
			sizes.slices += len(slices)
			sizes.minSlices += pack.MinSlices(slices, len(service.Spec.IPFamilies), c.cfg.MaxEndpointsPerSlice)
			for _, slice := range slices {
				sizes.endpoints += len(slice.Endpoints)
			}
			if topology := hints.ModeName(service); topology != "" {
				sizes.topologies[topology]++
			}
		}
	}
	return sizes
}
