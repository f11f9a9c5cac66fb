package term

import (
	"errors"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

// Why this replica gave a term up, as the label of a metric, beside the reasons of package sharding.
const (
	releaseStopped  = "stopped"  // the process stops
	releaseReturned = "returned" // the body returned by itself
)

// Why a term that this replica did not mean to end was lost, as the label of a metric.
const (
	lossLapsed  = "lapsed"       // no renewal was acknowledged in time
	lossLease   = "lease_gone"   // etcd expired or revoked the lease, which shows first in the member key
	lossKey     = "key_gone"     // the term's own key was deleted
	lossSession = "session_lost" // anything else that ended the session
)

type metrics struct {
	takeovers prometheus.Counter
	losses    *prometheus.CounterVec
	releases  *prometheus.CounterVec
	gaps      prometheus.Histogram
}

// newMetrics registers with r unless it is nil. What can be read from a snapshot is read when it is scraped.
func newMetrics(r prometheus.Registerer, c *Candidate) (*metrics, error) {
	m := &metrics{
		takeovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trivet_term_takeovers_total", Help: "Shards claimed by this replica.",
		}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_term_losses_total", Help: "Terms that ended although this replica did not give them up, by reason.",
		}, []string{"reason"}),
		releases: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_term_releases_total", Help: "Terms given up by this replica, by reason.",
		}, []string{"reason"}),
		gaps: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "trivet_term_gap_seconds",
			Help: "How long a shard claimed by this replica had no holder: from when this replica learnt of that to the start of its body.",
			// From a handover to sessions that ran out one after the other.
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
	}
	held := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_terms_held", Help: "Shards held by this replica.",
	}, func() float64 { return float64(heldHere(c.Status())) })
	remaining := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_session_remaining_seconds", Help: "How long this replica may act without hearing from etcd.",
	}, func() float64 { return c.Status().Session.Remaining.Seconds() })
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_term_ready",
		Help: "1 while the others count this replica among those who can do the work of a shard, else 0.",
	}, func() float64 {
		if s := c.Status(); s.Session.Alive && !slices.Contains(s.Unready, c.cfg.Member.ID) {
			return 1
		}
		return 0
	})
	for _, reason := range []string{lossLapsed, lossLease, lossKey, lossSession} {
		m.losses.WithLabelValues(reason) // so that a rate sees the first one
	}
	for _, reason := range []string{releaseStopped, releaseReturned, string(sharding.Moved), string(sharding.Unready), string(sharding.Divided)} {
		m.releases.WithLabelValues(reason)
	}
	if r == nil {
		return m, nil
	}
	var problems []error
	for _, collector := range []prometheus.Collector{m.takeovers, m.losses, m.releases, m.gaps, held, remaining, ready} {
		problems = append(problems, r.Register(collector))
	}
	return m, errors.Join(problems...)
}

func heldHere(s Status) int {
	held := 0
	for _, h := range s.Shards {
		if h.Here {
			held++
		}
	}
	return held
}
