package mirrorcontroller

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// upstreamSubsystem is the prefix of the metrics of kube-controller-manager's
// endpointslice-mirroring controller. Dashboards and alerts for it work with slicesvc.
const upstreamSubsystem = "endpoint_slice_mirroring_controller"

// upstreamMetrics are the metrics of the upstream controller, for the shards held by this replica:
// sums over replicas are those of the cluster. Unlike upstream's, they count the deletion of the
// slices of an object that is not mirrored any more.
type upstreamMetrics struct {
	added, updated, removed, skipped, duration prometheus.Histogram
	changes                                    *prometheus.CounterVec
}

// newUpstreamMetrics registers the metrics. Each scrape calls counts.
func newUpstreamMetrics(registerer prometheus.Registerer, counts func() Counts) (*upstreamMetrics, error) {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: upstreamSubsystem, Name: name, Help: help, Buckets: buckets})
	}
	powers := prometheus.ExponentialBuckets(2, 2, 15)
	m := &upstreamMetrics{
		added:    histogram("endpoints_added_per_sync", "Endpoints added by a sync of an Endpoints object.", powers),
		updated:  histogram("endpoints_updated_per_sync", "Endpoints changed by a sync of an Endpoints object.", powers),
		removed:  histogram("endpoints_removed_per_sync", "Endpoints removed by a sync of an Endpoints object.", powers),
		skipped:  histogram("addresses_skipped_per_sync", "Addresses that a sync left out: invalid, or above the limit of a subset.", powers),
		duration: histogram("endpoints_sync_duration", "Duration of a sync of an Endpoints object, in seconds.", prometheus.ExponentialBuckets(0.001, 2, 15)),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: upstreamSubsystem,
			Name:      "changes",
			Help:      "Mirrored EndpointSlices written by operation: create, update, delete.",
		}, []string{"operation"}),
	}
	for _, verb := range []planned.Verb{planned.Create, planned.Update, planned.Delete} {
		m.changes.WithLabelValues(string(verb))
	}
	if registerer == nil {
		return m, nil
	}
	var problems []error
	for _, collector := range []prometheus.Collector{m.added, m.updated, m.removed, m.skipped, m.duration, m.changes, newSizeGauges(counts)} {
		problems = append(problems, registerer.Register(collector))
	}
	return m, errors.Join(problems...)
}

// observeSync counts the stored changes of a plan.
func (m *upstreamMetrics) observeSync(done slicecontroller.FinishedSync, resolved mirror.Resolved) {
	added, updated, removed := 0, 0, 0
	for i := range done.Outcomes {
		if !done.Outcomes[i].Stored() {
			continue
		}
		change := &done.Plan.Changes[i]
		added += change.Added
		updated += change.Changed
		removed += change.Removed
		m.changes.WithLabelValues(string(change.Verb)).Inc()
	}
	m.added.Observe(float64(added))
	m.updated.Observe(float64(updated))
	m.removed.Observe(float64(removed))
	m.skipped.Observe(float64(resolved.TooMany + resolved.InvalidCount))
	m.duration.Observe(done.Took.Seconds())
}

// sizeGauges computes its values at each scrape, so that they cannot drift.
type sizeGauges struct {
	counts                                          func() Counts
	endpoints, slices, minSlices, mirrored, dropped *prometheus.Desc
}

func newSizeGauges(counts func() Counts) *sizeGauges {
	describe := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return &sizeGauges{
		counts:    counts,
		endpoints: describe(upstreamSubsystem+"_endpoints_desired", "Endpoints that the Endpoints objects of the held shards should have in slices."),
		slices:    describe(upstreamSubsystem+"_num_endpoint_slices", "Mirrored EndpointSlices of the held shards."),
		minSlices: describe(upstreamSubsystem+"_desired_endpoint_slices", "Smallest number of mirrored EndpointSlices for the held shards."),
		mirrored:  describe("trivet_slice_mirrored_endpoints", "Hand-made Endpoints objects of the held shards, which are mirrored."),
		dropped:   describe("trivet_slice_mirror_dropped_addresses", "Addresses of hand-made Endpoints objects of the held shards that are in no slice."),
	}
}

func (g *sizeGauges) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{g.endpoints, g.slices, g.minSlices, g.mirrored, g.dropped} {
		to <- desc
	}
}

func (g *sizeGauges) Collect(to chan<- prometheus.Metric) {
	counts := g.counts()
	gauge := func(desc *prometheus.Desc, value int) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value))
	}
	gauge(g.endpoints, counts.Endpoints)
	gauge(g.slices, counts.EndpointSlices)
	gauge(g.minSlices, counts.minSlices)
	gauge(g.mirrored, counts.Mirrored)
	gauge(g.dropped, counts.DroppedAddresses)
}
