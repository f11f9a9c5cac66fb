package writebackcontroller

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// Metrics counts writes of Lease objects.
type Metrics struct {
	writes  *prometheus.CounterVec
	seconds prometheus.Histogram
	limit   prometheus.Gauge
	pending *prometheus.GaugeVec
	oldest  prometheus.Gauge
	written atomic.Int64
}

// NewMetrics registers trivet_lease_write*; nil leaves them unregistered.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_writes_total",
			Help: "Writes of Lease objects by reason, by verb (none: none was tried) and by result.",
		}, []string{"reason", "verb", "result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "trivet_lease_write_duration_seconds",
			Help:    "How long it took to write one Lease object, reads before it included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
	}
	m.limit = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "trivet_lease_writes_limit",
		Help: "How many Lease objects may be written at a time now, after how the last writes went; 0 during a pause.",
	})
	m.pending = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "trivet_lease_writes_pending",
		Help: "Lease objects that are due and not being written, by priority: transition, create, renewal.",
	}, []string{"priority"})
	m.oldest = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "trivet_lease_writes_oldest_pending_seconds",
		Help: "How long the Lease object has been due that is to be written next.",
	})
	if registerer == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.writes, m.seconds, m.limit, m.pending, m.oldest} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of lease writes: %w", err)
		}
	}
	return m, nil
}

// Written is how many writes have succeeded.
func (m *Metrics) Written() int64 { return m.written.Load() }

// Reasons of deletes; those of other writes are writeback's.
const (
	// Released Leases were those of holders that said farewell.
	Released = "released"
	// Swept Leases were made here for holders that have been gone for long.
	Orphaned = "swept"
)

// Deleted counts a delete that was tried, for Released or Swept.
func (m *Metrics) Deleted(reason string, err error) {
	m.writes.WithLabelValues(reason, string(VerbDelete), resultOf(err)).Inc()
}

// show tells how the writing stands.
func (m *Metrics) show(limit int, b writeback.Backlog) {
	m.limit.Set(float64(limit))
	m.pending.WithLabelValues("transition").Set(float64(b.Transitions))
	m.pending.WithLabelValues("create").Set(float64(b.Firsts))
	m.pending.WithLabelValues("renewal").Set(float64(b.Renewals))
	m.oldest.Set(b.Oldest.Seconds())
}

func (m *Metrics) observe(reason writeback.Reason, verb Verb, err error, took time.Duration) {
	m.writes.WithLabelValues(reason.String(), string(verb), resultOf(err)).Inc()
	if verb != VerbNone {
		m.seconds.Observe(took.Seconds())
	}
	if err == nil {
		m.written.Add(1)
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
