package nodehealthcontroller

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// A kubelet chooses the zone of its Node. Neither many zones at once nor one Node that changes its
// zone for ever adds series without end, and the zones of other Nodes keep theirs.
func TestMetrics_SeriesOfZonesAreBounded(t *testing.T) {
	t.Parallel()
	m, err := NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	honest := nodehealth.Zone{Name: "honest", Size: 9, NotReady: 3}
	m.observe(&nodehealth.Plan{Zones: []nodehealth.Zone{honest}}, nodehealth.ClusterState{}, true, time.Millisecond)
	for i := range 1000 {
		zones := []nodehealth.Zone{{Name: fmt.Sprintf("a-%d", i), Size: 100}, honest}
		m.observe(&nodehealth.Plan{Zones: zones}, nodehealth.ClusterState{}, true, time.Millisecond)
	}
	if got := testutil.CollectAndCount(m.evictions); got != 2 {
		t.Errorf("after 1,000 changes of a zone there are %d series of evictions, want those of 2 zones", got)
	}
	zones := []nodehealth.Zone{honest}
	for i := range 5000 {
		zones = append(zones, nodehealth.Zone{Name: fmt.Sprintf("b-%d", i), Size: 1, NotReady: 1})
	}
	m.observe(&nodehealth.Plan{Zones: zones}, nodehealth.ClusterState{}, true, time.Millisecond)
	if got := testutil.CollectAndCount(m.zoneSize); got != maxZoneSeries+1 {
		t.Errorf("5,001 zones have %d series, want %d", got, maxZoneSeries+1)
	}
	for zone, want := range map[string]float64{"honest": 9, otherZones: 5001 - maxZoneSeries} {
		if got := testutil.ToFloat64(m.zoneSize.WithLabelValues(zone)); got != want {
			t.Errorf("the size of zone %s is %v, want %v", zone, got, want)
		}
	}
	m.written(result{job: job{step: &nodehealth.Step{Zone: "b-4999", RateLimited: true}}})
	if got := testutil.ToFloat64(m.evictions.WithLabelValues(otherZones)); got != 1 {
		t.Errorf("an eviction of a zone without series counts as %v of %s, want 1", got, otherZones)
	}
}
