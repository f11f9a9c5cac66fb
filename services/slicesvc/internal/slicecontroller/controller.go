package slicecontroller

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

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
	// MayDeleteUnmanaged returns whether the slices of a Service may be deleted now that it is no
	// longer managed; nil for always.
	MayDeleteUnmanaged func(service Key) bool
	// CompactAfter is the time without writes after which a Service is compacted; 0 for never.
	CompactAfter time.Duration
}

// Controller syncs the slices of all Services. Its methods are safe for concurrent use.
type Controller struct {
	*Syncer
	cfg      Config
	upstream *upstreamMetrics
	events   *serviceEvents
	changes  *changeLog
}

// New returns a Controller with an empty cache. It starts nothing.
func New(cfg Config, deps Deps) (*Controller, error) {
	c := &Controller{
		cfg:     cfg,
		events:  newServiceEvents(deps.Events),
		changes: newChangeLog(),
	}
	c.Syncer = newSyncer(SyncerConfig{
		ManagedBy: cfg.ManagedBy,
		Shards:    cfg.Shards,
		Workers:   cfg.Workers,
		Subject:   "a Service",
		MetricNames: MetricNames{
			Syncs:       "trivet_slice_syncs_total",
			Changes:     "trivet_slice_changes_total",
			Duration:    "trivet_slice_sync_duration_seconds",
			Contentions: "trivet_slice_contentions_total",
			QueueDepth:  "trivet_slice_queue_depth",
		},
	}, deps, c)
	var err, upstreamErr error
	c.metrics, err = newMetrics(deps.Metrics, c.Syncer.cfg, c.QueueLength)
	c.upstream, upstreamErr = newUpstreamMetrics(deps.Metrics, c.sizes)
	if err := errors.Join(err, upstreamErr); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return c, nil
}

// Counts returns the sizes of some shards, held or not.
func (c *Controller) Counts(shards []int) index.Counts { return c.index.Counts(shards) }

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
