package writebackcontroller

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// Reasons of deletions, values of a metric's label. Reasons of other writes are those of package
// writeback.
const (
	// Released Leases were deleted because their holders were released.
	Released = "released"
	// Orphaned Leases were deleted because their holders have been gone for long.
	Orphaned = "orphaned"
)

// Metrics are the metrics of Lease writes.
type Metrics struct {
	writes    *prometheus.CounterVec
	seconds   prometheus.Histogram
	limit     prometheus.Gauge
	pending   *prometheus.GaugeVec
	oldest    prometheus.Gauge
	succeeded atomic.Int64
}

// NewMetrics registers trivet_lease_write*. With nil they stay unregistered.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	register := promauto.With(registerer)
	return &Metrics{
		writes: register.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_writes_total",
			Help: "Writes of Lease objects by reason, verb (none: no write was tried) and result.",
		}, []string{"reason", "verb", "result"}),
		seconds: register.NewHistogram(prometheus.HistogramOpts{
			Name:    "trivet_lease_write_duration_seconds",
			Help:    "Duration of one Lease write, including reads before it.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		limit: register.NewGauge(prometheus.GaugeOpts{
			Name: "trivet_lease_writes_limit",
			Help: "Current limit of concurrent Lease writes; 0 during a pause. It adapts to the kube-apiserver.",
		}),
		pending: register.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_lease_writes_pending",
			Help: "Lease writes that are due and not in flight, by priority: transition, create, renewal.",
		}, []string{"priority"}),
		oldest: register.NewGauge(prometheus.GaugeOpts{
			Name: "trivet_lease_writes_oldest_pending_seconds",
			Help: "How long the next Lease write has been due.",
		}),
	}
}

// Written returns the number of successful writes, without deletions.
func (m *Metrics) Written() int64 { return m.succeeded.Load() }

// Deleted counts a deletion that was tried. The reason is Released or Orphaned.
func (m *Metrics) Deleted(reason string, err error) {
	m.writes.WithLabelValues(reason, string(planned.Delete), resultOf(err)).Inc()
}

func (m *Metrics) setBacklog(limit int, b writeback.Backlog) {
	m.limit.Set(float64(limit))
	m.pending.WithLabelValues("transition").Set(float64(b.Transitions))
	m.pending.WithLabelValues("create").Set(float64(b.Firsts))
	m.pending.WithLabelValues("renewal").Set(float64(b.Renewals))
	m.oldest.Set(b.Oldest.Seconds())
}

func (m *Metrics) observe(reason writeback.Reason, verb planned.Verb, err error, took time.Duration) {
	m.writes.WithLabelValues(reason.String(), string(verb), resultOf(err)).Inc()
	if verb != planned.None {
		m.seconds.Observe(took.Seconds())
	}
	if err == nil {
		m.succeeded.Add(1)
	}
}

func resultOf(err error) string {
	switch {
	case err == nil:
		return "success"
	case errors.Is(err, sessioncontroller.ErrNoOwner):
		return "no_owner"
	case errors.Is(err, writeback.ErrForeignHolder):
		return "foreign_holder"
	case errors.Is(err, writeback.ErrTerminating):
		return "terminating"
	case apierrors.IsConflict(err):
		return "conflict"
	case apierrors.IsTooManyRequests(err):
		return "throttled"
	}
	return "error"
}
