package scenario

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/cluster/internal/recording"
)

// A comparison lines steps up by their names, and a step without an expectation would end at once.
func TestSteps_HaveNamesOfTheirOwnAndExpectations(t *testing.T) {
	var names []string
	for _, step := range slices.Concat(Workloads("w1", 2), Nodes("w1", "w2"), APIServers("cp2", "10.0.0.2", 2)) {
		if slices.Contains(names, step.Name) {
			t.Errorf("two steps have the name %q", step.Name)
		}
		names = append(names, step.Name)
		if len(step.Until) == 0 {
			t.Errorf("step %q waits for nothing", step.Name)
		}
	}
}

func TestExpectation_CountsFieldsOfObjects(t *testing.T) {
	yes, no := true, false
	endpoint := func(address string, ready *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
	}
	var views []recording.View
	for _, object := range []any{
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "web-a"}, Endpoints: []discoveryv1.Endpoint{endpoint("10.0.0.1", &yes), endpoint("10.0.0.2", &no)},
		},
		&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web-b"}, Endpoints: []discoveryv1.Endpoint{endpoint("10.0.0.3", &yes)}},
		&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "db-a"}, Endpoints: []discoveryv1.Endpoint{endpoint("10.0.0.4", &yes)}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}},
	} {
		view, ok := recording.Of(object)
		if !ok {
			t.Fatalf("%T is not recorded", object)
		}
		views = append(views, view)
	}
	for _, c := range []struct {
		expectation Expectation
		met         bool
	}{
		{endpoints("ready*", 2), true},
		{endpoints("ready*", 3), false},
		{endpoints("not ready*", 1), true},
		{endpoints("*", 3), true},
		{Expectation{Object: "*", Field: "endpoint *", Value: "ready*", Count: 3}, true},
		{taint("w1", "*", 0), true},
	} {
		if err := c.expectation.check(views); (err == nil) != c.met {
			t.Errorf("%+v: %v, want met: %t", c.expectation, err, c.met)
		}
	}
	if err := endpoints("ready*", 3).check(views); err == nil || !strings.Contains(err.Error(), "web-a endpoint 10.0.0.2 is not ready") {
		t.Errorf("error = %v, want what is seen", err)
	}
}
