package mirrorcontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// Key names an Endpoints object and the Service of its name.
type Key = slicecontroller.Key

// Services are the Services that exist, with their slices of the other kind. It is called from
// several goroutines and must not block.
type Services interface {
	// Service returns false if there is no such Service.
	Service(key Key) (*corev1.Service, bool)
	// SliceCount returns how many slices a Service has that are not mirrored.
	SliceCount(service Key) int
	// Keys returns the keys of the Services of a shard.
	Keys(shard int) []Key
	// RecordChange makes readers of changes look at a Service again.
	RecordChange(key Key)
}

// EndpointsReader reads the current state of an Endpoints object; nil if there is none. It is
// called from several goroutines.
type EndpointsReader interface {
	Endpoints(ctx context.Context, key types.NamespacedName) (*corev1.Endpoints, error)
}

// Config configures a Controller.
type Config struct {
	// Shards is the number of shards into which Endpoints objects are divided.
	Shards int
	// Workers is how many objects are synced at the same time, over all shards.
	Workers int
	Limits  mirror.Limits
	// SliceEventDelay is how long the answer to a change of a slice by another writer waits.
	SliceEventDelay time.Duration
}

// Deps are the dependencies of a Controller. Writer, Services, Endpoints and Logger are required.
type Deps struct {
	Writer slicecontroller.Writer
	// Reader makes up for a late cache; see slicecontroller.Deps.
	Reader  slicecontroller.Reader
	Watches slicecontroller.Watches
	// Services must have each Service before ServiceChanged is called for it.
	Services  Services
	Endpoints EndpointsReader
	// Written is called when the mirrored slices of a Service are as planned, or there is nothing
	// to mirror, for a Service that has other slices and is to have none; nil for no call.
	Written func(key Key)
	// Tracer starts the spans of the syncs.
	Tracer  tracing.Tracer
	Logger  *slog.Logger
	Metrics prometheus.Registerer
	Events  record.EventSink
	// Decisions records what is written; nil records nothing.
	Decisions *decisions.Log
}

// Controller mirrors Endpoints objects. Its methods are safe for concurrent use.
type Controller struct {
	*slicecontroller.Syncer
	cfg      Config
	deps     Deps
	cache    *cache
	reports  *reports
	events   endpointsEvents
	upstream *upstreamMetrics
	logger   *slog.Logger
}

var _ slicecontroller.Source = &Controller{}

// New returns a Controller with an empty cache. It starts nothing.
func New(cfg Config, deps Deps) (*Controller, error) {
	c := &Controller{
		cfg:     cfg,
		deps:    deps,
		cache:   newCache(cfg.Shards),
		reports: newReports(cfg.Shards),
		events:  newEndpointsEvents(deps.Events),
		logger:  deps.Logger.With("loop", "endpointslice-mirroring"),
	}
	var err error
	c.Syncer, err = slicecontroller.NewSyncer(slicecontroller.SyncerConfig{
		ManagedBy:       mirror.ManagedBy,
		Shards:          cfg.Shards,
		Workers:         cfg.Workers,
		SliceEventDelay: cfg.SliceEventDelay,
		Subject:         "an Endpoints object",
		MetricNames: slicecontroller.MetricNames{
			Syncs:       "trivet_slice_mirror_syncs_total",
			Changes:     "trivet_slice_mirror_changes_total",
			Duration:    "trivet_slice_mirror_sync_duration_seconds",
			Contentions: "trivet_slice_mirror_contentions_total",
			QueueDepth:  "trivet_slice_mirror_queue_depth",
		},
	}, slicecontroller.Deps{
		Writer:  deps.Writer,
		Reader:  deps.Reader,
		Watches: deps.Watches,
		Tracer:  deps.Tracer,
		Logger:  c.logger,
		Metrics: deps.Metrics,

		Decisions: deps.Decisions,
	}, c)
	if err == nil {
		c.upstream, err = newUpstreamMetrics(deps.Metrics, c.heldCounts)
	}
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return c, nil
}

// Run syncs the objects of the held shards until ctx ends and its workers have returned. It must be
// called once, concurrently with RunShard.
func (c *Controller) Run(ctx context.Context) error {
	c.events.Start(ctx)
	defer c.events.Stop()
	return c.Syncer.Run(ctx)
}

// RunShard syncs the objects of a shard for one term; see slicecontroller.Syncer.
func (c *Controller) RunShard(ctx context.Context, shard int, report func(error)) error {
	defer c.reports.dropShard(shard)
	return c.Syncer.RunShard(ctx, shard, report)
}

// Limits returns the limits of mirrored slices.
func (c *Controller) Limits() mirror.Limits { return c.cfg.Limits }

// subject is what the slices under a key are made from. Equal subjects are the same versions.
type subject struct {
	entry
	service *corev1.Service // nil if there is none
}

// GetUID returns the UID of the Endpoints object.
func (s subject) GetUID() types.UID {
	if s.object == nil {
		return ""
	}
	return s.object.UID
}

func (s subject) reason() mirror.Reason { return mirror.ReasonOf(s.object, s.service) }

func (c *Controller) subject(key Key) subject {
	service, _ := c.deps.Services.Service(key)
	return subject{entry: c.cache.get(key), service: service}
}

// Object implements slicecontroller.Source. An object without mirrored slices that is not to be
// mirrored needs no sync.
func (c *Controller) Object(key Key) (slicecontroller.Object, error) {
	of := c.subject(key)
	if of.reason() == "" || len(c.Index().SlicesOf(key)) > 0 {
		return of, nil
	}
	if of.object == nil {
		return nil, slicecontroller.ErrServiceNotFound
	}
	return nil, slicecontroller.ErrUnmanaged
}

// ShardKeys implements slicecontroller.Source. It includes slices without an Endpoints object.
func (c *Controller) ShardKeys(number int) []Key {
	keys := c.Index().SliceOwners(number)
	for _, key := range c.cache.keys(number) {
		if c.subject(key).reason() == "" {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, index.CompareKeys)
	return slices.Compact(keys)
}

// Managed implements slicecontroller.Source.
func (c *Controller) Managed([]int) int { return c.reports.size() }

// errContentUnknown is returned for an object that changed while it was read.
var errContentUnknown = errors.New("the content of the Endpoints object is not known yet")

// Plan implements slicecontroller.Source. It reads the Endpoints object if the cache has only its
// name.
func (c *Controller) Plan(ctx context.Context, key Key, _ slicecontroller.Object, repeat int) (pack.Plan, error) {
	of := c.subject(key)
	if of.reason() == "" && !of.whole {
		if err := c.readEndpoints(ctx, key, of.object); err != nil {
			return pack.Plan{}, err
		}
		of = c.subject(key)
	}
	plan, resolved, err := c.plan(key, of, repeat)
	if err == nil {
		c.reports.planned(key, of, resolved)
	}
	return plan, err
}

func (c *Controller) readEndpoints(ctx context.Context, key Key, known *corev1.Endpoints) error {
	current, err := c.deps.Endpoints.Endpoints(ctx, key)
	switch {
	case err != nil:
		return err
	case current == nil:
		c.cache.remove(&known.ObjectMeta)
	default:
		c.cache.fill(current)
	}
	return nil
}

// plan plans all slices of a key. What was resolved is the zero value if nothing is mirrored.
func (c *Controller) plan(key Key, of subject, repeat int) (pack.Plan, mirror.Resolved, error) {
	snapshot := c.Index().SnapshotOfSlices(key)
	switch {
	case of.reason() != "":
		return pack.ClearMirrored(snapshot.Slices), mirror.Resolved{}, nil
	case !of.whole:
		return pack.Plan{}, mirror.Resolved{}, errContentUnknown
	}
	resolved := mirror.Resolve(of.object, c.cfg.Limits)
	in := pack.Input{
		Snapshot:  snapshot,
		Owner:     mirror.Owner(of.object),
		Endpoints: desired.Endpoints{Families: resolved.Families},
		Limit:     c.cfg.Limits.PerSlice(),
		ManagedBy: mirror.ManagedBy,

		WithoutRecycling: c.WithoutRecycling(key),
	}
	plan := pack.Make(in)
	if repeat > 0 {
		plan = plan.With(pack.Repeat(in, repeat))
	}
	return plan, resolved, nil
}

// Fingerprint implements slicecontroller.Source.
func (c *Controller) Fingerprint(object slicecontroller.Object, plan pack.Plan) string {
	of, _ := object.(subject)
	if of.object == nil {
		return plan.Fingerprint(pack.Owner{Object: &metav1.ObjectMeta{}})
	}
	return plan.Fingerprint(mirror.Owner(of.object))
}

// TermBegan implements slicecontroller.Source.
func (c *Controller) TermBegan(shard int) {
	for _, key := range c.deps.Services.Keys(shard) {
		c.callWritten(key)
	}
}

// callWritten calls Written for a Service that has other slices and is to have none.
func (c *Controller) callWritten(key Key) {
	service, ok := c.deps.Services.Service(key)
	if ok && !index.Managed(service) && c.deps.Written != nil && c.deps.Services.SliceCount(key) > 0 {
		c.deps.Written(key)
	}
}

// Changed implements slicecontroller.Source.
func (c *Controller) Changed(key Key) { c.deps.Services.RecordChange(key) }

// AnnotationsEdited implements slicecontroller.Source.
func (c *Controller) AnnotationsEdited(key Key, before, after *discoveryv1.EndpointSlice) bool {
	object := c.cache.get(key).object
	return object != nil && mirror.AnnotationsDiffer(object, before, after)
}

// Contended implements slicecontroller.Source.
func (c *Controller) Contended(object slicecontroller.Object, writer string) {
	if of, _ := object.(subject); of.object != nil {
		c.events.contended(of.object, writer)
	}
}
