package leasesvc

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// registerMetrics registers metrics of the current session controller and of the open streams; with
// a nil registerer nothing.
func registerMetrics(registerer prometheus.Registerer, state *state, openStreams func() int64) {
	register := promauto.With(registerer)
	for name, count := range map[string]func(session.Counts) int{
		"alive":   func(c session.Counts) int { return c.Alive },
		"suspect": func(c session.Counts) int { return c.Suspect },
		"expired": func(c session.Counts) int { return c.Expired },
	} {
		register.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "trivet_lease_sessions", Help: "Sessions of the held shards, by state.",
			ConstLabels: prometheus.Labels{"state": name},
		}, func() float64 { return float64(count(state.sessionCounts())) })
	}
	register.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_lease_streams", Help: "Open heartbeat streams.",
	}, func() float64 { return float64(openStreams()) })
	register.NewCounterFunc(prometheus.CounterOpts{
		Name: "trivet_lease_duplicate_holders_total",
		Help: "Holders of which two boots sent heartbeats at the same time, since the loop sessions started. The log names them.",
	}, state.ofSessions(func(c *sessioncontroller.Controller) float64 { return float64(c.Duplicates()) }))
	register.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_lease_paused_seconds",
		Help: "Time, since the loop sessions started, in which the process did not run and could receive no heartbeat. Deadlines move by this time.",
	}, state.ofSessions(func(c *sessioncontroller.Controller) float64 { return c.PausedTime().Seconds() }))
	register.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "trivet_lease_late_seconds",
		Help: "Time, since the loop sessions started, by which it ran later than it should each 25 ms. It includes pauses; the rest moves no deadline.",
	}, state.ofSessions(func(c *sessioncontroller.Controller) float64 { return c.LateTime().Seconds() }))
}

// ofSessions returns a metric of the session controller; it is 0 while its loop does not run.
func (s *state) ofSessions(read func(*sessioncontroller.Controller) float64) func() float64 {
	return func() float64 {
		if sessions := s.sessions.Load(); sessions != nil {
			return read(sessions)
		}
		return 0
	}
}
