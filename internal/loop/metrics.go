package loop

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the runner's metrics. The label "loop" has one value for each loop.
type metrics struct {
	runs        *prometheus.CounterVec
	lastSuccess *prometheus.GaugeVec
}

// newMetrics registers the metrics unless registerer is nil.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_loop_runs_total",
			Help: "Finished passes of each loop, by result: success, error or panic.",
		}, []string{"loop", "result"}),
		lastSuccess: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_loop_last_success_timestamp_seconds",
			Help: "When a pass of the loop last succeeded, in seconds since 1970; 0 before it did.",
		}, []string{"loop"}),
	}
	if registerer == nil {
		return m, nil
	}
	if err := errors.Join(registerer.Register(m.runs), registerer.Register(m.lastSuccess)); err != nil {
		return nil, fmt.Errorf("register loop metrics: %w", err)
	}
	return m, nil
}

// expect creates the series of an enabled loop, so that a rate includes the first pass and a loop
// that never ran is visible.
func (m *metrics) expect(loop string) {
	for _, result := range []string{"success", "error", "panic"} {
		m.runs.WithLabelValues(loop, result)
	}
	m.lastSuccess.WithLabelValues(loop)
}

// observe counts a finished pass.
func (m *metrics) observe(loop string, now time.Time, err error) {
	m.runs.WithLabelValues(loop, result(err)).Inc()
	if err == nil {
		m.lastSuccess.WithLabelValues(loop).Set(float64(now.UnixMilli()) / 1000)
	}
}

func result(err error) string {
	switch {
	case err == nil:
		return "success"
	case isPanic(err):
		return "panic"
	default:
		return "error"
	}
}
