package nodehealthcontroller

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// Metrics are those of the node-lifecycle controller of Kubernetes under their names, and a few
// more.
type Metrics struct {
	zoneHealth, zoneSize, unhealthy *prometheus.GaugeVec
	evictions                       *prometheus.CounterVec
	write, pass                     prometheus.Histogram

	health           *prometheus.GaugeVec
	held             prometheus.Gauge
	cutOff           *prometheus.GaugeVec
	markingSuspended *prometheus.GaugeVec
	writes           *prometheus.CounterVec

	mu sync.Mutex // guards zones
	// zones are those with series of their own.
	zones map[string]struct{}
}

const (
	// maxZoneSeries bounds the zones with series of their own. A kubelet may choose its zone.
	maxZoneSeries = 50
	// otherZones is the name of all further zones in metrics. It is no value of a label of a Node.
	otherZones = "(other)"
)

// NewMetrics registers the metrics; nil leaves them unregistered.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	zoned := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"zone"})
	}
	took := func(name, help string, first float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(first, 4, 8)})
	}
	m := &Metrics{
		zoneHealth: zoned("node_collector_zone_health", "Percentage of the zone's nodes that are ready."),
		zoneSize:   zoned("node_collector_zone_size", "Nodes of the zone, without those excluded from disruption."),
		unhealthy:  zoned("node_collector_unhealthy_nodes_in_zone", "Nodes of the zone that are not ready."),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "node_collector_evictions_total", Help: "Nodes that got a NoExecute taint at the rate of their zone.",
		}, []string{"zone"}),
		write: took("node_collector_update_node_health_duration_seconds", "Duration of one write of a node, with the read before it.", 0.001),
		pass:  took("node_collector_update_all_nodes_health_duration_seconds", "Duration of one pass over all nodes, without writes.", 0.0001),
		health: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_node_health", Help: "Nodes of the held shards by assessed health.",
		}, []string{"health"}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "trivet_node_held", Help: "Silent nodes that are not marked Unknown, because something delays that.",
		}),
		cutOff: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_node_cut_off",
			Help: "Nodes of the held shards whose kubelet reaches no kube-apiserver while the agent beats, or whose agent reaches no leasesvc while the kubelet lives.",
		}, []string{"from"}),
		markingSuspended: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_node_marking_suspended", Help: "1 while no node may be marked Unknown, by cause.",
		}, []string{"cause"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_node_writes_total", Help: "Writes for node health, by step and result.",
		}, []string{"what", "result"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{
		m.zoneHealth, m.zoneSize, m.unhealthy, m.evictions, m.write, m.pass, m.health, m.held, m.cutOff,
		m.markingSuspended, m.writes,
	} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of node health: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) observe(plan *nodehealth.Plan, cluster nodehealth.ClusterState, zones bool, took time.Duration) {
	m.pass.Observe(took.Seconds())
	m.observeZones(plan, zones)
	for health, count := range plan.Counts {
		m.health.WithLabelValues(nodehealth.Health(health).String()).Set(float64(count))
	}
	m.held.Set(float64(plan.Held))
	m.markingSuspended.Reset()
	if suspension := cluster.Suspension(); suspension.Active() {
		m.markingSuspended.WithLabelValues(suspension.Reason).Set(1)
	}
}

func (m *Metrics) observeCutOff(s *Snapshot) {
	m.cutOff.WithLabelValues("kube-apiserver").Set(float64(s.KubeletsCutOff().Count))
	m.cutOff.WithLabelValues("leasesvc").Set(float64(s.AgentsCutOff().Count))
}

// observeZones sets the metrics of zones on the leader of ZoneShard only, so that a sum over
// replicas counts each zone once.
func (m *Metrics) observeZones(plan *nodehealth.Plan, holdsZones bool) {
	m.zoneHealth.Reset()
	m.zoneSize.Reset()
	m.unhealthy.Reset()
	if !holdsZones {
		return
	}
	for _, zone := range m.shownZones(plan.Zones) {
		m.zoneSize.WithLabelValues(zone.Name).Set(float64(zone.Size))
		m.unhealthy.WithLabelValues(zone.Name).Set(float64(zone.NotReady))
		healthy := 100.0
		if zone.Size > 0 {
			healthy = 100 * float64(zone.Size-zone.NotReady) / float64(zone.Size)
		}
		m.zoneHealth.WithLabelValues(zone.Name).Set(healthy)
		m.evictions.WithLabelValues(zone.Name).Add(0)
	}
}

// shownZones returns the zones as the metrics show them. A zone with series keeps them while it has
// Nodes. The largest of the remaining zones follow, and the rest is one zone.
func (m *Metrics) shownZones(zones []nodehealth.Zone) []nodehealth.Zone {
	m.mu.Lock()
	defer m.mu.Unlock()
	rank := func(zone nodehealth.Zone) int {
		if _, shown := m.zones[zone.Name]; shown {
			return 0
		}
		return 1
	}
	ranked := slices.SortedStableFunc(slices.Values(zones), func(a, b nodehealth.Zone) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Size, a.Size))
	})
	shown := ranked[:min(len(ranked), maxZoneSeries)]
	kept := make(map[string]struct{}, len(shown))
	for _, zone := range shown {
		kept[zone.Name] = struct{}{}
	}
	for name := range m.zones {
		if _, still := kept[name]; !still {
			m.evictions.DeleteLabelValues(name)
		}
	}
	m.zones = kept
	if len(ranked) == len(shown) {
		return shown
	}
	rest := nodehealth.Zone{Name: otherZones}
	for _, zone := range ranked[len(shown):] {
		rest.Size += zone.Size
		rest.NotReady += zone.NotReady
	}
	return append(shown[:len(shown):len(shown)], rest)
}

// shownZone returns the name of a zone in metrics.
func (m *Metrics) shownZone(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, shown := m.zones[name]; shown {
		return name
	}
	return otherZones
}

// reset removes what a stopped controller does not know.
func (m *Metrics) reset() {
	for _, gauge := range []*prometheus.GaugeVec{m.zoneHealth, m.zoneSize, m.unhealthy, m.health, m.cutOff, m.markingSuspended} {
		gauge.Reset()
	}
	m.held.Set(0)
}

func (m *Metrics) written(r result) {
	m.write.Observe(r.took.Seconds())
	outcome := outcomeOf(r.err)
	if len(r.newer) > 0 || errors.Is(r.err, errHeard) {
		outcome = "contradicted"
	}
	m.writes.WithLabelValues(r.step.Kind.String(), outcome).Inc()
	if r.step.RateLimited && r.err == nil {
		m.evictions.WithLabelValues(m.shownZone(r.step.Zone)).Inc()
	}
}

func (m *Metrics) podMarked(err error) { m.writes.WithLabelValues("pod-unready", outcomeOf(err)).Inc() }

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case apierrors.IsConflict(err):
		return "conflict"
	case errors.Is(err, errTermOver):
		return "term-over"
	case errors.Is(err, ErrDryRun):
		return "dry-run"
	}
	return "error"
}
