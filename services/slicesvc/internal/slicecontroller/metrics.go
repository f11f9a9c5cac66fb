package slicecontroller

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// Results of a sync. Upstream finds a stale slice in its cache, before the write; slicesvc finds it
// by the conflict of the write.
const (
	resultSuccess  = "success"
	resultConflict = "conflict"
	resultStale    = "stale"
	resultError    = "error"
)

// metrics are slicesvc's own metrics.
type metrics struct {
	syncs       *prometheus.CounterVec
	writes      *prometheus.CounterVec
	duration    prometheus.Histogram
	contentions prometheus.Counter
}

// newMetrics registers the metrics.
func newMetrics(registerer prometheus.Registerer, cfg SyncerConfig, queueLength func() int) (*metrics, error) {
	m := &metrics{
		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: cfg.MetricNames.Syncs,
			Help: "Syncs of " + cfg.Subject + " by result: success; conflict (a slice changed after it was planned); error.",
		}, []string{"result"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: cfg.MetricNames.Changes,
			Help: "EndpointSlices written by operation: create, update, delete.",
		}, []string{"operation"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    cfg.MetricNames.Duration,
			Help:    "Duration of a sync of " + cfg.Subject + ", including its writes.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}),
		contentions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: cfg.MetricNames.Contentions,
			Help: "How often it was found, or was still so after ten minutes, that another writer keeps reverting slices of " + cfg.Subject + ".",
		}),
	}
	initialize(m.syncs, resultSuccess, resultConflict, resultError)
	initialize(m.writes, string(planned.Create), string(planned.Update), string(planned.Delete))
	depth := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: cfg.MetricNames.QueueDepth,
		Help: "How many wait for a sync of " + cfg.Subject + "; 0 on a replica that holds no shard.",
	}, func() float64 { return float64(queueLength()) })
	return m, register(registerer, m.syncs, m.writes, m.duration, m.contentions, depth)
}

func (m *metrics) observeSync(result string, took time.Duration) {
	m.syncs.WithLabelValues(result).Inc()
	m.duration.Observe(took.Seconds())
}

// upstreamSubsystem is the prefix of the metrics of kube-controller-manager's endpointslice
// controller. Dashboards and alerts for it work with slicesvc.
const upstreamSubsystem = "endpoint_slice_controller"

// upstreamMetrics are the metrics of the upstream controller, for the shards held by this replica:
// sums over replicas are those of the cluster. Gauges count every address family; upstream counts
// one.
type upstreamMetrics struct {
	added, removed prometheus.Histogram
	changed        *prometheus.HistogramVec
	writes         *prometheus.CounterVec
	syncs          *prometheus.CounterVec
}

// newUpstreamMetrics registers the metrics. Each scrape calls sizes.
func newUpstreamMetrics(registerer prometheus.Registerer, sizes func() serviceSizes) (*upstreamMetrics, error) {
	m := &upstreamMetrics{
		added:   endpointsHistogram("endpoints_added_per_sync", "Endpoints added by a sync of a Service."),
		removed: endpointsHistogram("endpoints_removed_per_sync", "Endpoints removed by a sync of a Service."),
		changed: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: upstreamSubsystem,
			Name:      "endpointslices_changed_per_sync",
			Help:      "EndpointSlices written by a sync of a Service, by topology (Auto, Disabled) and trafficDistribution.",
			Buckets:   prometheus.DefBuckets,
		}, []string{"topology", "traffic_distribution"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: upstreamSubsystem,
			Name:      "changes",
			Help:      "EndpointSlices written by operation: create, update, delete.",
		}, []string{"operation"}),
		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: upstreamSubsystem,
			Name:      "syncs",
			Help:      "Syncs of a Service by result: success; stale (a slice changed after it was planned); error.",
		}, []string{"result"}),
	}
	initialize(m.syncs, resultSuccess, resultStale, resultError)
	initialize(m.writes, string(planned.Create), string(planned.Update), string(planned.Delete))
	return m, register(registerer, m.added, m.removed, m.changed, m.writes, m.syncs, newSizeGauges(sizes))
}

func endpointsHistogram(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Subsystem: upstreamSubsystem,
		Name:      name,
		Help:      help,
		Buckets:   prometheus.ExponentialBuckets(2, 2, 15),
	})
}

// observeSync counts the stored changes of a plan.
func (m *upstreamMetrics) observeSync(service *corev1.Service, changes []pack.Change, outcomes []Outcome, err error) {
	count, added, removed := 0, 0, 0
	for i := range outcomes {
		if !outcomes[i].Stored() {
			continue
		}
		change := &changes[i]
		count++
		added += change.Added
		removed += change.Removed
		m.writes.WithLabelValues(string(change.Verb)).Inc()
	}
	m.added.Observe(float64(added))
	m.removed.Observe(float64(removed))
	topology, distribution := "Disabled", hints.ModeName(service)
	if hints.ModeOf(service) == hints.Auto {
		topology, distribution = distribution, ""
	}
	m.changed.WithLabelValues(topology, distribution).Observe(float64(count))
	switch {
	case err == nil:
		m.syncs.WithLabelValues(resultSuccess).Inc()
	case errors.Is(err, kube.ErrConflict):
		m.syncs.WithLabelValues(resultStale).Inc()
	default:
		m.syncs.WithLabelValues(resultError).Inc()
	}
}

// serviceSizes are sums over managed Services. Families and ports count separately: an endpoint of
// a dual-stack Service counts twice.
type serviceSizes struct {
	endpoints, slices int
	// minSlices is the smallest number of slices that holds the endpoints.
	minSlices int
	// topologies counts Services with hints, by ServiceState.Topology.
	topologies map[string]int
}

// autoTopology is a value of the topology annotation, not of trafficDistribution.
const autoTopology = "Auto"

// sizeGauges computes its values at each scrape, so that they cannot drift.
type sizeGauges struct {
	sizes                                    func() serviceSizes
	endpoints, slices, minSlices, topologies *prometheus.Desc
}

func newSizeGauges(sizes func() serviceSizes) *sizeGauges {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("", upstreamSubsystem, name), help, labels, nil)
	}
	return &sizeGauges{
		sizes:      sizes,
		endpoints:  describe("endpoints_desired", "Endpoints of the Services of the held shards, counted for each family."),
		slices:     describe("num_endpoint_slices", "EndpointSlices of the Services of the held shards."),
		minSlices:  describe("desired_endpoint_slices", "Smallest number of EndpointSlices for the Services of the held shards."),
		topologies: describe("services_count_by_traffic_distribution", "Services of the held shards by trafficDistribution.", "traffic_distribution"),
	}
}

func (g *sizeGauges) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{g.endpoints, g.slices, g.minSlices, g.topologies} {
		to <- desc
	}
}

func (g *sizeGauges) Collect(to chan<- prometheus.Metric) {
	sizes := g.sizes()
	gauge := func(desc *prometheus.Desc, value int, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	gauge(g.endpoints, sizes.endpoints)
	gauge(g.slices, sizes.slices)
	gauge(g.minSlices, sizes.minSlices)
	for topology, count := range sizes.topologies {
		if topology != autoTopology {
			gauge(g.topologies, count, topology)
		}
	}
}

// initialize makes a counter appear with all its label values before the first increment.
func initialize(counter *prometheus.CounterVec, values ...string) {
	for _, value := range values {
		counter.WithLabelValues(value)
	}
}

// register does nothing without a registerer.
func register(registerer prometheus.Registerer, collectors ...prometheus.Collector) error {
	if registerer == nil {
		return nil
	}
	var problems []error
	for _, collector := range collectors {
		problems = append(problems, registerer.Register(collector))
	}
	return errors.Join(problems...)
}
