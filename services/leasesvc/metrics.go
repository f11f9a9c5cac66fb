package leasesvc

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// metrics are those of heartbeats and sessions; package renewal counts the writes.
type metrics struct {
	// heartbeats has a counter for every outcome, so that counting a beat looks up nothing.
	heartbeats   [session.Full + 1]prometheus.Counter
	unknownClass prometheus.Counter
	elsewhere    prometheus.Counter
	paced        prometheus.Counter
	// refusedStreams are counted by reason.
	refusedStreams *prometheus.CounterVec
}

// newMetrics registers what is counted here and what s knows anyway; nil leaves all of it unregistered.
func newMetrics(registerer prometheus.Registerer, s *Service) (*metrics, error) {
	heartbeats := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "trivet_lease_heartbeats_total",
		Help: "Heartbeats received, one for each holder in a message, by what came of them.",
	}, []string{"result"})
	m := &metrics{
		unknownClass: heartbeats.WithLabelValues("unknown_class"), elsewhere: heartbeats.WithLabelValues("not_leader"),
		paced: heartbeats.WithLabelValues("paced"),
		refusedStreams: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_lease_refused_streams_total", Help: "Heartbeat streams that were refused or ended for the sake of the others, by reason.",
		}, []string{"reason"}),
	}
	for outcome := range m.heartbeats {
		m.heartbeats[outcome] = heartbeats.WithLabelValues(resultOf(session.Outcome(outcome)))
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range append(s.gauges(), heartbeats, m.refusedStreams) {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of sessions: %w", err)
		}
	}
	return m, nil
}

func resultOf(outcome session.Outcome) string {
	switch outcome {
	case session.Opened:
		return "opened"
	case session.TookOver:
		return "took_over"
	case session.Recovered:
		return "recovered"
	case session.Renewed:
		return "renewed"
	case session.Repeated:
		return "repeated"
	case session.Superseded:
		return "superseded"
	case session.Full:
		return "too_many_holders"
	}
	return "unknown_handle"
}

func (m *metrics) count(outcome session.Outcome, n int) { m.heartbeats[outcome].Add(float64(n)) }

// gauges read what others count.
func (s *Service) gauges() []prometheus.Collector {
	state := func(name string, read func(session.Counts) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "trivet_lease_sessions", Help: "Sessions of the shards that are held here, by state.",
			ConstLabels: prometheus.Labels{"state": name},
		}, func() float64 { return float64(read(s.sessionCounts())) })
	}
	return []prometheus.Collector{
		state("alive", func(c session.Counts) int { return c.Alive }),
		state("suspect", func(c session.Counts) int { return c.Suspect }),
		state("expired", func(c session.Counts) int { return c.Expired }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "trivet_lease_streams", Help: "Open heartbeat streams.",
		}, func() float64 { return float64(s.server.streams.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "trivet_lease_duplicate_holders_total",
			Help: "How often it was found, since the sessions loop started, that two boots of one holder beat. The log names them.",
		}, func() float64 { return s.duplicates() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "trivet_lease_blind_seconds",
			Help: "How long, since the sessions loop started, nothing could be received because the process did not run; deadlines are put off by as much.",
		}, func() float64 { return s.blindSeconds() }),
	}
}

func (s *Service) sessionCounts() session.Counts {
	if k := s.keeper.Load(); k != nil {
		return k.Counts()
	}
	return session.Counts{}
}

func (s *Service) duplicates() float64 {
	if k := s.keeper.Load(); k != nil {
		return float64(k.Duplicates())
	}
	return 0
}

func (s *Service) blindSeconds() float64 {
	if k := s.keeper.Load(); k != nil {
		return k.PausedTime().Seconds()
	}
	return 0
}
