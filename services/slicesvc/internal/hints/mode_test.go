package hints_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

func TestModeOf_Precedence(t *testing.T) {
	for name, c := range map[string]struct {
		older, newer, distribution string
		want                       hints.Mode
		text                       string
	}{
		"nothing":                              {},
		"newer key":                            {newer: "Auto", want: hints.Auto, text: "Auto"},
		"small letters":                        {newer: "auto", want: hints.Auto, text: "Auto"},
		"other letters":                        {newer: "AUTO"},
		"disabled":                             {newer: "Disabled"},
		"older key":                            {older: "Auto", want: hints.Auto, text: "Auto"},
		"older key wins":                       {older: "Disabled", newer: "Auto"},
		"close":                                {distribution: "PreferClose", want: hints.SameZone, text: "PreferClose"},
		"zone":                                 {distribution: "PreferSameZone", want: hints.SameZone, text: "PreferSameZone"},
		"node":                                 {distribution: "PreferSameNode", want: hints.SameNode, text: "PreferSameNode"},
		"unknown distribution":                 {distribution: "PreferFar"},
		"annotation beats distribution":        {newer: "Auto", distribution: "PreferSameNode", want: hints.Auto, text: "Auto"},
		"annotation that says no does not":     {newer: "Disabled", distribution: "PreferClose", want: hints.SameZone, text: "PreferClose"},
		"older annotation, newer distribution": {older: "auto", distribution: "PreferClose", want: hints.Auto, text: "Auto"},
	} {
		t.Run(name, func(t *testing.T) {
			service := &corev1.Service{}
			service.Annotations = map[string]string{}
			if c.older != "" {
				service.Annotations["service.kubernetes.io/topology-aware-hints"] = c.older
			}
			if c.newer != "" {
				service.Annotations["service.kubernetes.io/topology-mode"] = c.newer
			}
			if c.distribution != "" {
				service.Spec.TrafficDistribution = &c.distribution
			}
			if got, text := hints.ModeOf(service), hints.ModeName(service); got != c.want || text != c.text {
				t.Errorf("mode is %d, %q, want %d, %q", got, text, c.want, c.text)
			}
		})
	}
}

func TestNear_DependsOnModeAlone(t *testing.T) {
	for mode, want := range map[hints.Mode][2]string{
		hints.Off:      {"", ""},
		hints.Auto:     {"", ""},
		hints.SameZone: {"z", ""},
		hints.SameNode: {"z", "n"},
	} {
		if zone, node := mode.Near("z", "n"); [2]string{zone, node} != want {
			t.Errorf("mode %d: hints are %q and %q, want %q", mode, zone, node, want)
		}
	}
	if zone, node := hints.SameNode.Near("", "n"); zone != "" || node != "n" {
		t.Errorf("without a zone: hints are %q and %q, want the node's alone", zone, node)
	}
}
