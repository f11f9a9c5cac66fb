package leasesvc

import (
	"testing"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

func TestAllDown_OnlyWhenNoZoneThatCountsHasAReadyNode(t *testing.T) {
	dead := nodehealth.Zone{Name: "dead", Size: 2, NotReady: 2, State: nodehealth.FullDisruption}
	sick := nodehealth.Zone{Name: "sick", Size: 4, NotReady: 3, State: nodehealth.PartialDisruption}
	excluded := nodehealth.Zone{Name: "excluded"}
	for name, c := range map[string]struct {
		zones []nodehealth.Zone
		want  bool
	}{
		"no zones":                     {},
		"only zones that do not count": {zones: []nodehealth.Zone{excluded}},
		"one is dead":                  {zones: []nodehealth.Zone{dead}, want: true},
		"all that count are dead":      {zones: []nodehealth.Zone{dead, excluded}, want: true},
		"one still lives":              {zones: []nodehealth.Zone{dead, sick}},
	} {
		if got := allDown(c.zones); got != c.want {
			t.Errorf("%s: all down %v, want %v", name, got, c.want)
		}
	}
}
