package renewal

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/keeper"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/leaseobject"
)

// Metrics counts writes of Lease objects.
type Metrics struct {
	writes  *prometheus.CounterVec
	seconds prometheus.Histogram
	written atomic.Int64
}

// NewMetrics registers trivet_lease_writes_total and trivet_lease_write_duration_seconds; nil leaves them unregistered.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_writes_total",
			Help: "Writes of Lease objects by verb (none: none was tried) and by result.",
		}, []string{"verb", "result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "trivet_lease_write_duration_seconds",
			Help:    "How long it took to write one Lease object, reads before it included.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.writes, m.seconds} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of lease writes: %w", err)
		}
	}
	return m, nil
}

// Written is how many writes have succeeded.
func (m *Metrics) Written() int64 { return m.written.Load() }

// Deleted counts a delete that was tried.
func (m *Metrics) Deleted(err error) {
	m.writes.WithLabelValues(string(leaseobject.Delete), resultOf(err)).Inc()
}

func (m *Metrics) observe(verb leaseobject.Verb, err error, took time.Duration) {
	m.writes.WithLabelValues(string(verb), resultOf(err)).Inc()
	if verb != leaseobject.None {
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
	case errors.Is(err, keeper.ErrNoOwner):
		return "no_owner"
	case errors.Is(err, leaseobject.ErrForeignHolder):
		return "foreign_holder"
	case errors.Is(err, leaseobject.ErrTerminating):
		return "terminating"
	case apierrors.IsConflict(err):
		return "conflict"
	case apierrors.IsTooManyRequests(err):
		return "throttled"
	}
	return "error"
}
