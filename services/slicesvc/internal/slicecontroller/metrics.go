package slicecontroller

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

const (
	resultSuccess  = "success"
	resultConflict = "conflict"
	resultError    = "error"
)

type metrics struct {
	passes   *prometheus.CounterVec
	changes  *prometheus.CounterVec
	duration prometheus.Histogram
	// contended counts how often a Service began to be left alone.
	contended prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer, queueLength func() int) (*metrics, error) {
	m := &metrics{
		passes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_slice_syncs_total",
			Help: "Passes over a Service by result: success; conflict (a slice changed under the plan); error.",
		}, []string{"result"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_slice_changes_total",
			Help: "EndpointSlices written by operation: create, update, delete.",
		}, []string{"operation"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "trivet_slice_sync_duration_seconds",
			Help:    "How long a pass over a Service takes, its writes included.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}),
		contended: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trivet_slice_contentions_total",
			Help: "How often a Service began to be left alone because somebody else kept undoing what was written for it.",
		}),
	}
	for _, result := range []string{resultSuccess, resultConflict, resultError} {
		m.passes.WithLabelValues(result)
	}
	for _, verb := range []pack.Verb{pack.Create, pack.Update, pack.Delete} {
		m.changes.WithLabelValues(string(verb))
	}
	depth := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_slice_queue_depth",
		Help: "Services that wait for a pass; 0 on a replica that holds no shard.",
	}, func() float64 { return float64(queueLength()) })
	return m, register(registerer, m.passes, m.changes, m.duration, m.contended, depth)
}

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

func (m *metrics) pass(result string, took time.Duration) {
	m.passes.WithLabelValues(result).Inc()
	m.duration.Observe(took.Seconds())
}

func (m *metrics) change(verb pack.Verb) { m.changes.WithLabelValues(string(verb)).Inc() }
