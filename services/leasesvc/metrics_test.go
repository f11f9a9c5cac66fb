package leasesvc_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/services/leasesvc"
)

// sample returns all trivet_lease_* series that are not zero. A histogram is represented by its
// sample count.
func (f *fixture) sample() map[string]float64 {
	f.t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	series := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			series[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	maps.DeleteFunc(series, func(name string, value float64) bool { return value == 0 || !strings.HasPrefix(name, "trivet_lease_") })
	return series
}

func TestMetrics_CountHeartbeatsSessionsAndWrites(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{config: func(c *leasesvc.Config) { c.MaxSessions = 2 }})
	s := f.open()
	exchange(t, s, register(1, holder("n1", "1"), &leasev1.Holder{Class: "toaster", Name: "n2", BootId: "1"}))
	exchange(t, s, beats(2, 1, 1))
	f.beat(1, holder("n1", "2"), holder("n1", "2"), holder("n2", "1"), holder("n3", "1"))
	exchange(t, s, register(3, holder("n2", "1")))
	exchange(t, s, beats(4, 1))
	f.awaitWrite("n1", leasev1.Lease_Write_STATE_WRITTEN)
	f.awaitWrite("n2", leasev1.Lease_Write_STATE_WRITTEN)
	want := map[string]float64{
		"trivet_lease_heartbeats_total opened": 2, "trivet_lease_heartbeats_total unknown_class": 1,
		"trivet_lease_heartbeats_total renewed": 3, "trivet_lease_heartbeats_total took_over": 1,
		"trivet_lease_heartbeats_total repeated": 1, "trivet_lease_heartbeats_total too_many_holders": 1,
		"trivet_lease_heartbeats_total superseded": 1, "trivet_lease_sessions alive": 2, "trivet_lease_streams": 1,
		"trivet_lease_writes_total first success create": 2, "trivet_lease_write_duration_seconds": 2,
		"trivet_lease_writes_limit": 4,
	}
	got := f.sample()
	delete(got, "trivet_lease_late_seconds") // both depend on the machine
	delete(got, "trivet_lease_paused_seconds")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
