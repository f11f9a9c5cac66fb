package bootstrapsvc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// findings are the series of trivet_bootstrap_findings as loop/reason.
func findings(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "trivet_bootstrap_findings" {
			continue
		}
		for _, series := range family.GetMetric() {
			found[series.GetLabel()[0].GetValue()+"/"+series.GetLabel()[1].GetValue()] = series.GetGauge().GetValue()
		}
	}
	return found
}

func TestMetrics_FindingsAreThereBeforeTheFirst(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{}
	for loop, reasons := range findable() {
		for _, reason := range reasons {
			want[loop+"/"+string(reason)] = 0
		}
	}
	check := func(when string) {
		t.Helper()
		if diff := cmp.Diff(want, findings(t, registry)); diff != "" {
			t.Errorf("findings %s (-want +got):\n%s", when, diff)
		}
	}
	check("before a term")
	foreign := baseline.Change{Verb: baseline.Report, Reason: apiservers.SliceForeign}
	m.found(endpointsLoop, []baseline.Change{foreign, foreign})
	want["kubernetes-endpoints/ENDPOINT_SLICE_FOREIGN"] = 2
	check("of a pass")
	m.found(endpointsLoop, nil)
	want["kubernetes-endpoints/ENDPOINT_SLICE_FOREIGN"] = 0
	check("of a pass that found nothing more")
	m.found(endpointsLoop, []baseline.Change{foreign})
	m.forget()
	check("after a term")
}
