package bootstrapsvc

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// metrics are those of this package; package cluster counts its writes itself.
type metrics struct {
	probes     *prometheus.CounterVec
	apiServers *prometheus.GaugeVec
	findings   *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_bootstrap_probes_total",
			Help: "Probes of the kube-apiserver beside this replica, by result (ok, failed).",
		}, []string{"result"}),
		apiServers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_bootstrap_apiservers",
			Help: "Kube-apiservers that are known, as the leader sees them, by state (ready, not_ready, unreadable).",
		}, []string{"state"}),
		findings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trivet_bootstrap_findings",
			Help: "What the leader's last pass found that needs a person or time, by loop and reason; 0 on other replicas.",
		}, []string{"loop", "reason"}),
	}
	m.probes.WithLabelValues("ok")
	m.probes.WithLabelValues("failed")
	m.clear()
	if registerer == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.probes, m.apiServers, m.findings} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) probed(ok bool) {
	result := "failed"
	if ok {
		result = "ok"
	}
	m.probes.WithLabelValues(result).Inc()
}

func (m *metrics) sawAPIServers(known []present) {
	states := map[string]int{"ready": 0, "not_ready": 0, "unreadable": 0}
	for _, each := range known {
		switch {
		case each.unreadable:
			states["unreadable"]++
		case each.server.Ready:
			states["ready"]++
		default:
			states["not_ready"]++
		}
	}
	for state, count := range states {
		m.apiServers.WithLabelValues(state).Set(float64(count))
	}
}

// findable are the findings that each loop may report. Their series exist before the first one, so that an alert sees it come.
func findable() map[string][]baseline.Reason {
	return map[string][]baseline.Reason{
		namespacesLoop: {baseline.NamespaceTerminating, baseline.NamespaceMislabelled},
		serviceLoop: {
			baseline.ServiceTerminating, baseline.ClusterIPDiffers, baseline.ClusterIPUnknown, baseline.SingleFamily,
			baseline.CIDRMissing, baseline.CIDRTerminating, baseline.CIDRNotReady, baseline.CIDRDiffers, baseline.CIDRUnreadable,
		},
		endpointsLoop: {
			apiservers.NoServerReports, apiservers.NoServerReady, apiservers.FamilyMismatch, apiservers.FamilyUnknown,
			apiservers.NotRoutable, apiservers.PortMismatch, apiservers.SliceForeign, apiservers.StaticUnresolved,
			apiservers.Kept, apiservers.CountExceeded, apiservers.LastServerKept,
			apiservers.KeyUnleased, apiservers.KeyDead, apiservers.Silent, apiservers.KeyUnreadable,
		},
	}
}

// found replaces what the loop's last pass found.
func (m *metrics) found(loop string, reports []baseline.Change) {
	counts := map[baseline.Reason]int{}
	for _, reason := range findable()[loop] {
		counts[reason] = 0
	}
	for _, report := range reports {
		counts[report.Reason]++
	}
	m.findings.DeletePartialMatch(prometheus.Labels{"loop": loop}) // also what no table knows
	for reason, count := range counts {
		m.findings.WithLabelValues(loop, string(reason)).Set(float64(count))
	}
}

// forget drops what only a leader knows.
func (m *metrics) forget() {
	m.apiServers.Reset()
	m.clear()
}

// clear is how a replica counts that has found nothing.
func (m *metrics) clear() {
	for loop := range findable() {
		m.found(loop, nil)
	}
}
