package slicecontroller

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

const subsystem = "endpoint_slice_controller"

// The results of a pass. Upstream's stale is a slice that is not as it was planned
// from: it finds out in its cache, before the write, and slicesvc by the answer.
const (
	success = "success"
	stale   = "stale"
	failed  = "error"
)

// Metrics are upstream's metrics.
type Metrics struct {
	added, removed prometheus.Histogram
	changed        *prometheus.HistogramVec
	changes        *prometheus.CounterVec
	syncs          *prometheus.CounterVec
}

// NewMetrics registers upstream's metrics; sizes is asked at each scrape.
func NewMetrics(registerer prometheus.Registerer, sizes func() Sizes) (*Metrics, error) {
	m := &Metrics{
		added:   histogram("endpoints_added_per_sync", "Endpoints added by a pass over a Service."),
		removed: histogram("endpoints_removed_per_sync", "Endpoints removed by a pass over a Service."),
		changed: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: subsystem,
			Name:      "endpointslices_changed_per_sync",
			Help:      "EndpointSlices written by a pass over a Service, by topology (Auto, Disabled) and trafficDistribution.",
			Buckets:   prometheus.DefBuckets,
		}, []string{"topology", "traffic_distribution"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: subsystem,
			Name:      "changes",
			Help:      "EndpointSlices written by operation: create, update, delete.",
		}, []string{"operation"}),
		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: subsystem,
			Name:      "syncs",
			Help:      "Passes over a Service by result: success; stale (a slice was not as planned from); error.",
		}, []string{"result"}),
	}
	for _, result := range []string{success, stale, failed} {
		m.syncs.WithLabelValues(result)
	}
	for _, verb := range []pack.Verb{pack.Create, pack.Update, pack.Delete} {
		m.changes.WithLabelValues(string(verb))
	}
	if registerer == nil {
		return m, nil
	}
	var problems []error
	for _, collector := range []prometheus.Collector{m.added, m.removed, m.changed, m.changes, m.syncs, newGauges(sizes)} {
		problems = append(problems, registerer.Register(collector))
	}
	return m, errors.Join(problems...)
}

func histogram(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Subsystem: subsystem,
		Name:      name,
		Help:      help,
		Buckets:   prometheus.ExponentialBuckets(2, 2, 15),
	})
}

// Passed counts a pass.
func (m *Metrics) Passed(pass Pass) {
	added, removed := 0, 0
	for _, change := range pass.Written {
		added += change.Added
		removed += change.Removed
		m.changes.WithLabelValues(string(change.Verb)).Inc()
	}
	m.added.Observe(float64(added))
	m.removed.Observe(float64(removed))
	topology, distribution := "Disabled", hints.Text(pass.Service)
	if hints.ModeOf(pass.Service) == hints.Auto {
		topology, distribution = distribution, ""
	}
	m.changed.WithLabelValues(topology, distribution).Observe(float64(len(pass.Written)))
	m.syncs.WithLabelValues(resultOf(pass.Err)).Inc()
}

func resultOf(err error) string {
	switch {
	case err == nil:
		return success
	case errors.Is(err, kube.ErrConflict):
		return stale
	default:
		return failed
	}
}

// gauges are made from the engine's sizes when they are asked for, so that they
// cannot drift from what there is.
type gauges struct {
	sizes                          func() Sizes
	endpoints, slices, ideal, near *prometheus.Desc
}

func newGauges(sizes func() Sizes) *gauges {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("", subsystem, name), help, labels, nil)
	}
	return &gauges{
		sizes:     sizes,
		endpoints: describe("endpoints_desired", "Endpoints of the Services of the shards held here, each family for itself."),
		slices:    describe("num_endpoint_slices", "EndpointSlices of the Services of the shards held here."),
		ideal:     describe("desired_endpoint_slices", "EndpointSlices that would do for the Services of the shards held here."),
		near:      describe("services_count_by_traffic_distribution", "Services with a trafficDistribution of the shards held here.", "traffic_distribution"),
	}
}

// Describe says which gauges there are.
func (g *gauges) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{g.endpoints, g.slices, g.ideal, g.near} {
		to <- desc
	}
}

// Collect gives their values.
func (g *gauges) Collect(to chan<- prometheus.Metric) {
	sizes := g.sizes()
	gauge := func(desc *prometheus.Desc, value int, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	gauge(g.endpoints, sizes.Endpoints)
	gauge(g.slices, sizes.Slices)
	gauge(g.ideal, sizes.Ideal)
	for text, count := range sizes.Topologies {
		if text != autoTopology { // which is no trafficDistribution
			gauge(g.near, count, text)
		}
	}
}

const autoTopology = "Auto"
