package term

import (
	"errors"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

// Reasons of trivet_term_releases_total, besides those of package sharding.
const (
	releaseStopped  = "stopped"  // the process stops
	releaseReturned = "returned" // the body returned during its term
)

// Reasons of trivet_term_losses_total, and without lossKey of trivet_session_losses_total.
const (
	lossLapsed  = "lapsed"       // no renewal was acknowledged in time
	lossLease   = "lease_gone"   // etcd expired or revoked the lease; the member key shows it first
	lossKey     = "key_gone"     // the term's own key was deleted
	lossSession = "session_lost" // anything else that ended the session
)

type metrics struct {
	takeovers prometheus.Counter
	losses    *prometheus.CounterVec
	sessions  *prometheus.CounterVec
	releases  *prometheus.CounterVec
	gaps      prometheus.Histogram
}

// newMetrics registers with r unless it is nil. The gauges call status when they are scraped.
func newMetrics(r prometheus.Registerer, id string, status func() Status) (*metrics, error) {
	m := &metrics{
		takeovers: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trivet_term_takeovers_total", Help: "Shards claimed by this replica.",
		}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_term_losses_total", Help: "Terms that ended although this replica did not release them, by reason.",
		}, []string{"reason"}),
		sessions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_session_losses_total",
			Help: "Sessions with etcd that ended although this replica did not stop, by reason. With each, all of its terms end.",
		}, []string{"reason"}),
		releases: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_term_releases_total", Help: "Terms released by this replica, by reason.",
		}, []string{"reason"}),
		gaps: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "trivet_term_gap_seconds",
			Help: "Time without a leader of a shard that this replica claimed, from when it learned of that to the start of its body.",
			// From a handover to several sessions that expire one after another.
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
	}
	held := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_terms_held", Help: "Shards held by this replica.",
	}, func() float64 { return float64(heldHere(status())) })
	remaining := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_session_remaining_seconds", Help: "Time for which this replica may act without an answer from etcd.",
	}, func() float64 { return status().Session.Remaining.Seconds() })
	ttl := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_session_ttl_seconds",
		Help: "How long etcd keeps the keys of this replica after it has vanished, as etcd granted it; 0 without a session.",
	}, func() float64 { return status().Session.TTL.Seconds() })
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_term_ready",
		Help: "1 while the other replicas count this replica as ready for shards, else 0.",
	}, func() float64 {
		if s := status(); s.Session.Alive && !slices.Contains(s.Unready, id) {
			return 1
		}
		return 0
	})
	for _, reason := range []string{lossLapsed, lossLease, lossKey, lossSession} {
		m.losses.WithLabelValues(reason) // a rate needs the initial 0
	}
	for _, reason := range []string{lossLapsed, lossLease, lossSession} {
		m.sessions.WithLabelValues(reason)
	}
	for _, reason := range []string{releaseStopped, releaseReturned, string(sharding.Moved), string(sharding.Unready), string(sharding.Divided)} {
		m.releases.WithLabelValues(reason)
	}
	if r == nil {
		return m, nil
	}
	var problems []error
	for _, collector := range []prometheus.Collector{m.takeovers, m.losses, m.sessions, m.releases, m.gaps, held, remaining, ttl, ready} {
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
