package kube

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	lagMetric = prometheus.NewDesc("trivet_slice_watch_lag_seconds",
		"Time since the watch of a kind was last heard; bookmarks come about once a minute. No value before the first list.",
		[]string{"kind"}, nil)
	reopensMetric = prometheus.NewDesc("trivet_slice_watch_reopens_total",
		"How often the watch of a kind was reopened by cause: silent (nothing came); late (a term waited for it).",
		[]string{"kind", "cause"}, nil)
)

var _ prometheus.Collector = &Watches{}

// Describe implements prometheus.Collector.
func (w *Watches) Describe(to chan<- *prometheus.Desc) {
	to <- lagMetric
	to <- reopensMetric
}

// Collect implements prometheus.Collector. It reads memory only.
func (w *Watches) Collect(to chan<- prometheus.Metric) {
	now := time.Now()
	for _, status := range w.Status() {
		if !status.Heard.IsZero() {
			to <- prometheus.MustNewConstMetric(lagMetric, prometheus.GaugeValue, now.Sub(status.Heard).Seconds(), status.Kind)
		}
		to <- prometheus.MustNewConstMetric(reopensMetric, prometheus.CounterValue, float64(status.SilentReopens), status.Kind, string(reopenedSilent))
		to <- prometheus.MustNewConstMetric(reopensMetric, prometheus.CounterValue, float64(status.LateReopens), status.Kind, string(reopenedLate))
	}
}

// Detail returns when each watch was last heard, which versions terms wait for, and failures, in
// one line.
func (w *Watches) Detail() string {
	now := time.Now()
	var kinds []string
	for _, status := range w.Status() {
		text := status.Kind + " not heard yet"
		if !status.Heard.IsZero() {
			text = fmt.Sprintf("%s heard %v ago", status.Kind, now.Sub(status.Heard).Round(time.Second))
		}
		if status.Wanted != "" {
			text += ", late: version " + status.Wanted + " is needed"
		}
		if status.Failure != nil {
			text += ", " + status.Failure.Error()
		}
		kinds = append(kinds, text)
	}
	return strings.Join(kinds, "; ")
}
