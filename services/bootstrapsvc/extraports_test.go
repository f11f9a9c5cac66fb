package bootstrapsvc

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

func TestConfig_ExtraPorts(t *testing.T) {
	cfg := Config{ExtraPorts: []string{"konnectivity:8132:8091", "dns:53/UDP", "dns-tcp:53/TCP:5353"}}
	want := []baseline.Port{
		{Name: "konnectivity", Protocol: "TCP", Port: 8132, TargetPort: 8091},
		{Name: "dns", Protocol: "UDP", Port: 53, TargetPort: 53},
		{Name: "dns-tcp", Protocol: "TCP", Port: 53, TargetPort: 5353},
	}
	got, err := cfg.extraPorts()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

func TestConfig_ExtraPortsThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"8132":                         "want name:port",
		"a:1:2:3":                      "want name:port",
		"K8:1":                         "not the name of a port",
		":1":                           "not the name of a port",
		"a:0":                          "not a port",
		"a:65536":                      "not a port",
		"a:-1":                         "not a port",
		"a:http":                       "not a port",
		"a:1:0":                        "not a port",
		"a:1/tcp":                      "must be TCP",
		"a:1/":                         "must be TCP",
		"https:8443":                   "own port",
		"more:443":                     "own port",
		"a:1,a:2":                      "given twice",
		"a:1,b:1/TCP":                  "given twice",
		strings.Repeat("n", 64) + ":1": "not the name of a port",
	} {
		cfg := Config{ExtraPorts: strings.Split(text, ",")}
		if _, err := cfg.extraPorts(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want one with %q", text, err, want)
		}
	}
}

// A port of the Service leads somewhere only if the endpoints have one of its name: there it is the target port.
func TestService_ExtraPortsAreThoseOfTheEndpointsToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.ExtraPorts = []string{"konnectivity:8132:8091"}
		h := newHouseOf(t, cfg)
		h.start(t)
		defer h.end(t)
		time.Sleep(aMoment)

		service, err := h.objects.Service(t.Context())
		if err != nil || service == nil {
			t.Fatalf("service = %v, %v", service, err)
		}
		endpoints, err := h.objects.Endpoints(t.Context())
		if err != nil || endpoints == nil {
			t.Fatalf("endpoints = %v, %v", endpoints, err)
		}
		published, err := h.objects.EndpointSlices(t.Context())
		if err != nil || len(published) != 1 {
			t.Fatalf("slices = %v, %v", published, err)
		}
		want := []string{"https 6443/TCP", "konnectivity 8091/TCP"}
		var targets, subsets, slices []string
		for _, port := range service.Spec.Ports {
			targets = append(targets, fmt.Sprintf("%s %s/%s", port.Name, port.TargetPort.String(), port.Protocol))
		}
		for _, port := range endpoints.Subsets[0].Ports {
			subsets = append(subsets, fmt.Sprintf("%s %d/%s", port.Name, port.Port, port.Protocol))
		}
		for _, port := range published[0].Ports {
			slices = append(slices, fmt.Sprintf("%s %d/%s", *port.Name, *port.Port, *port.Protocol))
		}
		for what, got := range map[string][]string{"service": targets, "endpoints": subsets, "slice": slices} {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("ports of the %s (-want +got):\n%s", what, diff)
			}
		}
		written := len(h.objects.writes())
		time.Sleep(10 * servicePeriod)
		if again := len(h.objects.writes()); again != written {
			t.Errorf("%d writes after nothing changed", again-written)
		}
	})
}
