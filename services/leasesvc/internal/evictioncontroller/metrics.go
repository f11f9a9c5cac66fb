package evictioncontroller

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
)

// Metrics are those of the taint-eviction controller of Kubernetes under their names, and a few
// more.
type Metrics struct {
	deletions prometheus.Counter
	latency   prometheus.Histogram

	pending *prometheus.GaugeVec
	results *prometheus.CounterVec
}

// NewMetrics registers the metrics; nil leaves them unregistered.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		deletions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "taint_eviction_controller_pod_deletions_total", Help: "Pods deleted for a taint of their node.",
		}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "taint_eviction_controller_pod_deletion_duration_seconds",
			Help:    "Seconds from when a pod had to leave to its deletion.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240}, // as in Kubernetes
		}),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_taint_eviction_pods", Help: "Pods that must leave their node: waiting until they are due, due, or due and held while node health is unreliable.",
		}, []string{"state"}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_taint_eviction_tries_total", Help: "Evictions tried, by result, and evictions cancelled before they were due.",
		}, []string{"result"}),
	}
	for _, result := range []string{"ok", "gone", "withdrawn", "conflict", "dry_run", "error", "cancelled"} {
		m.results.WithLabelValues(result)
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.deletions, m.latency, m.pending, m.results} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of taint eviction: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) observe(plan *eviction.Plan) {
	m.pending.WithLabelValues("waiting").Set(float64(plan.Waiting))
	m.pending.WithLabelValues("due").Set(float64(plan.Due - plan.Held))
	m.pending.WithLabelValues("held").Set(float64(plan.Held))
}

// reset removes what only the leader knows.
func (m *Metrics) reset() { m.pending.Reset() }

func (m *Metrics) ended(err error, late time.Duration) {
	m.results.WithLabelValues(outcomeOf(err)).Inc()
	if err == nil {
		m.deletions.Inc()
		m.latency.Observe(late.Seconds())
	}
}

func (m *Metrics) cancelled() { m.results.WithLabelValues("cancelled").Inc() }

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case apierrors.IsNotFound(err), errors.Is(err, errGone):
		return "gone"
	case apierrors.IsConflict(err):
		return "conflict"
	case errors.Is(err, errWithdrawn):
		return "withdrawn"
	case errors.Is(err, ErrDryRun):
		return "dry_run"
	}
	return "error"
}
