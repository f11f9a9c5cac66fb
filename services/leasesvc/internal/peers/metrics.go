package peers

import (
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts beats that are handed on.
type Metrics struct {
	offers *prometheus.CounterVec
	beats  *prometheus.CounterVec
	source atomic.Pointer[Forwarder]
}

// NewMetrics registers trivet_lease_forward_*; nil leaves them unregistered.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		offers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_forward_offered_total",
			Help: "Beats of holders that belong to other replicas, by whether they were taken to be handed on.",
		}, []string{"result"}),
		beats: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_forward_beats_total",
			Help: "Beats that were taken to be handed on and not replaced by newer ones, by what came of them.",
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
	for _, collector := range []prometheus.Collector{m.offers, m.beats, m.waiting(), m.peers()} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of forwarded beats: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) waiting() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_lease_forward_waiting", Help: "Beats that wait to be handed on.",
	}, func() float64 {
		_, waiting := m.count()
		return float64(waiting)
	})
}

func (m *Metrics) peers() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_lease_forward_peers", Help: "Replicas to which beats are, or a moment ago were, handed on.",
	}, func() float64 {
		peers, _ := m.count()
		return float64(peers)
	})
}

// follow has the gauges show the Forwarder.
func (m *Metrics) follow(f *Forwarder) { m.source.Store(f) }

func (m *Metrics) count() (peers, waiting int) {
	if f := m.source.Load(); f != nil {
		return f.count()
	}
	return 0, 0
}

func (m *Metrics) offered(n int, taken bool) {
	result := "taken"
	if !taken {
		result = "not_taken"
	}
	m.offers.WithLabelValues(result).Add(float64(n))
}

func (m *Metrics) delivered(forwarded, refused int) {
	m.beats.WithLabelValues("forwarded").Add(float64(forwarded))
	m.beats.WithLabelValues("refused").Add(float64(refused))
}

func (m *Metrics) dropped(n int) { m.beats.WithLabelValues("dropped").Add(float64(n)) }
