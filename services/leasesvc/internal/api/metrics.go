package api

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// metrics counts heartbeats and rejected streams. It is safe for concurrent use.
type metrics struct {
	// heartbeats has a counter for each outcome, so that counting a beat needs no lookup.
	heartbeats      [session.Full + 1]prometheus.Counter
	unknownClass    prometheus.Counter
	notLeader       prometheus.Counter
	noLeader        prometheus.Counter
	deferred        prometheus.Counter
	notAuthorized   prometheus.Counter
	tooManyOfOwner  prometheus.Counter
	rejectedStreams *prometheus.CounterVec // by reason
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	register := promauto.With(registerer)
	heartbeats := register.NewCounterVec(prometheus.CounterOpts{
		Name: "trivet_lease_heartbeats_total",
		Help: "Received heartbeats, one for each holder in a message, by result.",
	}, []string{"result"})
	m := &metrics{
		unknownClass: heartbeats.WithLabelValues("unknown_class"),
		notLeader:    heartbeats.WithLabelValues("not_leader"),
		noLeader:     heartbeats.WithLabelValues("no_leader"),
		deferred:     heartbeats.WithLabelValues("registration_rate_limited"),
		// Also those that kube-apiserver could not decide about.
		notAuthorized:  heartbeats.WithLabelValues("not_authorized"),
		tooManyOfOwner: heartbeats.WithLabelValues("too_many_holders_of_identity"),
		rejectedStreams: register.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_rejected_streams_total", Help: "Heartbeat streams and calls that a rate limit rejected or ended, by reason.",
		}, []string{"reason"}),
	}
	for outcome := range m.heartbeats {
		m.heartbeats[outcome] = heartbeats.WithLabelValues(resultOf(session.Outcome(outcome)))
	}
	return m
}

func resultOf(outcome session.Outcome) string {
	return [...]string{
		session.Unknown: "lease_not_found", session.Opened: "opened", session.TookOver: "took_over", session.Recovered: "recovered",
		session.Renewed: "renewed", session.Repeated: "repeated", session.Superseded: "superseded", session.Full: "too_many_holders",
	}[outcome]
}

func (m *metrics) count(outcome session.Outcome, n int) { m.heartbeats[outcome].Add(float64(n)) }
