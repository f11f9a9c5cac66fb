package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// collector reads a Status at each scrape, so that an Agent without one pays nothing.
type collector struct {
	agent *Agent

	holders, beats, registrations, answers, lost, unacknowledged, lastAnswer, lastSeen *prometheus.Desc
}

// NewCollector returns the metrics of an Agent. They have no label with the name of a holder.
func NewCollector(a *Agent) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("trivet_agent_"+name, help, labels, nil)
	}
	return &collector{
		agent:         a,
		holders:       desc("holders", "Holders by state: registered, superseded by another boot, rejected, or pending.", "state"),
		beats:         desc("beats_total", "Beats that were sent, without registrations."),
		registrations: desc("registrations_total", "Registrations that were sent; each is a beat too."),
		answers:       desc("answers_total", "Answers of leasesvc by directive.", "directive"),
		lost:          desc("lost_streams_total", "Heartbeat streams that broke."),
		unacknowledged: desc("unacknowledged_total",
			"Renewals of holders in another way, because no leader acknowledged their beats in time, by result: renewed or failed. trivet-agent has none.", "result"),
		lastAnswer: desc("last_answer_timestamp_seconds", "When leasesvc last answered, in seconds since 1970; 0 before the first answer."),
		lastSeen: desc("last_seen_timestamp_seconds",
			"When the holder was last reported to be seen, for a Node its kubelet, in seconds since 1970; of several holders the oldest; 0 without a report."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.holders, c.beats, c.registrations, c.answers, c.lost, c.unacknowledged, c.lastAnswer, c.lastSeen} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	s := c.agent.Status()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counter := func(d *prometheus.Desc, value uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	gauge(c.holders, float64(s.Registered), "registered")
	gauge(c.holders, float64(len(s.Superseded)), "superseded")
	gauge(c.holders, float64(len(s.Rejected)), "rejected")
	gauge(c.holders, float64(s.Holders-s.Registered-len(s.Superseded)-len(s.Rejected)), "pending")
	counter(c.beats, s.Beats)
	counter(c.registrations, s.Registrations)
	for _, directive := range []string{"none", "move", "slow_down", "resync", "reauth", "unknown"} {
		counter(c.answers, s.Answers[directive], directive)
	}
	counter(c.lost, s.LostStreams)
	if c.agent.cfg.Unacknowledged != nil {
		counter(c.unacknowledged, s.Unacknowledged-s.UnacknowledgedFailed, "renewed")
		counter(c.unacknowledged, s.UnacknowledgedFailed, "failed")
	}
	gauge(c.lastAnswer, seconds(s.LastAnswer))
	gauge(c.lastSeen, seconds(s.LastSeen))
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
