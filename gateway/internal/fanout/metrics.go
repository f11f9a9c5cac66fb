package fanout

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	answers *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_gateway_answers_total",
			Help: "How asking a replica for its status went, by service and canonical gRPC code.",
		}, []string{"service", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "trivet_gateway_answer_seconds",
			Help:    "How long a replica took to answer, or to fail, by service.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 12),
		}, []string{"service"}),
	}
	for _, collector := range []prometheus.Collector{m.answers, m.seconds} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register the metrics of the fan-out: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) observe(service, code string, latency time.Duration) {
	m.answers.WithLabelValues(service, code).Inc()
	m.seconds.WithLabelValues(service).Observe(latency.Seconds())
}
