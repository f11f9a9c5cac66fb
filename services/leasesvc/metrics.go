package leasesvc

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// registerMetrics registers gauges that read the current session controller and the open streams.
func registerMetrics(registerer prometheus.Registerer, s *Service) error {
	if registerer == nil {
		return nil
	}
	sessions := func(state string, read func(session.Counts) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "trivet_lease_sessions", Help: "Sessions of the held shards, by state.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 { return float64(read(s.sessionCounts())) })
	}
	for _, collector := range []prometheus.Collector{
		sessions("alive", func(c session.Counts) int { return c.Alive }),
		sessions("suspect", func(c session.Counts) int { return c.Suspect }),
		sessions("expired", func(c session.Counts) int { return c.Expired }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "trivet_lease_streams", Help: "Open heartbeat streams.",
		}, func() float64 { return float64(s.leaseAPI.OpenStreams()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "trivet_lease_duplicate_holders_total",
			Help: "Holders of which two boots sent heartbeats at the same time, since the loop sessions started. The log names them.",
		}, s.duplicates),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "trivet_lease_blind_seconds",
			Help: "Time, since the loop sessions started, in which the process did not run and could receive no heartbeat. Deadlines move by this time.",
		}, s.pausedSeconds),
	} {
		if err := registerer.Register(collector); err != nil {
			return fmt.Errorf("register metrics of sessions: %w", err)
		}
	}
	return nil
}

func (s *Service) sessionCounts() session.Counts {
	if sessions := s.sessions.Load(); sessions != nil {
		return sessions.Counts()
	}
	return session.Counts{}
}

func (s *Service) duplicates() float64 {
	if sessions := s.sessions.Load(); sessions != nil {
		return float64(sessions.Duplicates())
	}
	return 0
}

func (s *Service) pausedSeconds() float64 {
	if sessions := s.sessions.Load(); sessions != nil {
		return sessions.PausedTime().Seconds()
	}
	return 0
}
