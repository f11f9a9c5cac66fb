package peers

import (
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts forwarded beats. It is safe for concurrent use.
type Metrics struct {
	offers    *prometheus.CounterVec
	beats     *prometheus.CounterVec
	forwarder atomic.Pointer[Forwarder] // what the gauges show; nil shows 0
}

// NewMetrics registers trivet_lease_forward_*. A nil registerer leaves the metrics unregistered.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		offers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_forward_offered_total",
			Help: "Beats of holders whose shard is held by another replica, by whether they were accepted for forwarding.",
		}, []string{"result"}),
		beats: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_forward_beats_total",
			Help: "Beats that were accepted for forwarding and not replaced by newer ones, by result.",
		}, []string{"result"}),
	}
	for _, result := range []string{"taken", "not_taken"} {
		m.offers.WithLabelValues(result)
	}
	for _, result := range []string{"forwarded", "refused", "dropped"} {
		m.beats.WithLabelValues(result)
	}
	if registerer == nil {
		return m, nil
	}
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_lease_forward_waiting", Help: "Beats that wait for forwarding.",
	}, func() float64 {
		_, waiting := m.count()
		return float64(waiting)
	})
	peers := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_lease_forward_peers", Help: "Replicas to which beats were forwarded recently.",
	}, func() float64 {
		peers, _ := m.count()
		return float64(peers)
	})
	for _, collector := range []prometheus.Collector{m.offers, m.beats, waiting, peers} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of forwarded beats: %w", err)
		}
	}
	return m, nil
}

// observe makes the gauges show f.
func (m *Metrics) observe(f *Forwarder) { m.forwarder.Store(f) }

func (m *Metrics) count() (peers, waiting int) {
	if f := m.forwarder.Load(); f != nil {
		return f.count()
	}
	return 0, 0
}

func (m *Metrics) offered(n int, accepted bool) {
	result := "taken"
	if !accepted {
		result = "not_taken"
	}
	m.offers.WithLabelValues(result).Add(float64(n))
}

func (m *Metrics) sent(accepted, refused int) {
	m.beats.WithLabelValues("forwarded").Add(float64(accepted))
	m.beats.WithLabelValues("refused").Add(float64(refused))
}

func (m *Metrics) dropped(n int) { m.beats.WithLabelValues("dropped").Add(float64(n)) }
