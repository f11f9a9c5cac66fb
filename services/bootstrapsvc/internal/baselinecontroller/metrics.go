package baselinecontroller

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// Metrics shows the reports of the reconcile loops.
type Metrics struct {
	reports *prometheus.GaugeVec
}

// NewMetrics registers the metrics; a nil registerer leaves them unregistered.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{reports: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "trivet_bootstrap_findings",
		Help: "Problems that the last pass of a loop could not repair, by loop and reason; 0 on replicas that do not lead.",
	}, []string{"loop", "reason"})}
	if registerer == nil {
		return m, nil
	}
	if err := registerer.Register(m.reports); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return m, nil
}

// setReports replaces the reports of a loop. The series of reasons exist before the first report,
// so that an alert sees the change.
func (m *Metrics) setReports(loop string, reasons []baseline.Reason, reports []baseline.Change) {
	counts := map[baseline.Reason]int{}
	for _, reason := range reasons {
		counts[reason] = 0
	}
	for _, report := range reports {
		counts[report.Reason]++
	}
	m.reports.DeletePartialMatch(prometheus.Labels{"loop": loop}) // also reasons that are not listed
	for reason, count := range counts {
		m.reports.WithLabelValues(loop, string(reason)).Set(float64(count))
	}
}
