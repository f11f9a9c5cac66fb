package identity_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

func TestRegister_MetricsTellTheExpiryInUseAndABrokenFile(t *testing.T) {
	authority := identitytest.NewAuthority(t, "authority")
	files := authority.Files(t, "first", authority)
	synctest.Test(t, func(t *testing.T) {
		server, err := files.Server(quiet())
		if err != nil {
			t.Fatal(err)
		}
		registry := prometheus.NewRegistry()
		if err := server.Register(registry, "server"); err != nil {
			t.Fatal(err)
		}
		wantFailing := func(failing float64) {
			t.Helper()
			time.Sleep(pause)
			want := map[string]float64{
				"trivet_tls_expiry_timestamp_seconds authorities": 7226582400, // 2199-01-01
				"trivet_tls_expiry_timestamp_seconds certificate": 7226582400,
				"trivet_tls_reload_failing":                       failing,
			}
			if diff := cmp.Diff(want, gathered(t, registry)); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		}
		wantFailing(0)
		identitytest.Replace(t, files.KeyFile, nil)
		wantFailing(1)
		if err := server.Check(); err == nil || !strings.Contains(err.Error(), "in use expire at 2199-01-01") {
			t.Errorf("Check() = %v, want the expiry of the certificates in use", err)
		}
	})
}

// gathered returns the value of each gauge by its name and its part.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			if metric.GetGauge() == nil {
				continue // a counter
			}
			for _, label := range metric.GetLabel() {
				if label.GetName() == "part" {
					name += " " + label.GetValue()
				}
			}
			values[name] = metric.GetGauge().GetValue()
		}
	}
	return values
}
