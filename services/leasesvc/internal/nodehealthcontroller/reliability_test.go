package nodehealthcontroller

import (
	"testing"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

func TestAllZonesDown_IgnoresZonesWithoutCountedNodes(t *testing.T) {
	down := nodehealth.Zone{Name: "down", Size: 2, NotReady: 2, State: nodehealth.FullDisruption}
	disrupted := nodehealth.Zone{Name: "disrupted", Size: 4, NotReady: 3, State: nodehealth.PartialDisruption}
	excluded := nodehealth.Zone{Name: "excluded"}
	for name, c := range map[string]struct {
		zones []nodehealth.Zone
		want  bool
	}{
		"no zones":                         {},
		"only zones without counted nodes": {zones: []nodehealth.Zone{excluded}},
		"one is down":                      {zones: []nodehealth.Zone{down}, want: true},
		"all with counted nodes are down":  {zones: []nodehealth.Zone{down, excluded}, want: true},
		"one has a ready node":             {zones: []nodehealth.Zone{down, disrupted}},
	} {
		if got := allZonesDown(c.zones); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
