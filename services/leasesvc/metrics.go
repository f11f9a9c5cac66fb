package leasesvc

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// registerMetrics registers metrics of the current session controller and of the open streams.
func registerMetrics(registerer prometheus.Registerer, state *state, openStreams func() int64) error {
	if registerer == nil {
		return nil
	}
	sessions := func(name string, read func(session.Counts) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "trivet_lease_sessions", Help: "Sessions of the held shards, by state.",
			ConstLabels: prometheus.Labels{"state": name},
		}, func() float64 { return float64(read(state.sessionCounts())) })
	}
	for _, collector := range []prometheus.Collector{
		sessions("alive", func(c session.Counts) int { return c.Alive }),
		sessions("suspect", func(c session.Counts) int { return c.Suspect }),
		sessions("expired", func(c session.Counts) int { return c.Expired }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "trivet_lease_streams", Help: "Open heartbeat streams.",
		}, func() float64 { return float64(openStreams()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "trivet_lease_duplicate_holders_total",
			Help: "Holders of which two boots sent heartbeats at the same time, since the loop sessions started. The log names them.",
		}, state.duplicates),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "trivet_lease_blind_seconds",
			Help: "Time, since the loop sessions started, in which the process did not run and could receive no heartbeat. Deadlines move by this time.",
		}, state.pausedSeconds),
	} {
		if err := registerer.Register(collector); err != nil {
			return fmt.Errorf("register metrics of sessions: %w", err)
		}
	}
	return nil
}
