package scenario

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/cluster/internal/recorder"
	"github.com/trivet-dev/trivet/test/cluster/internal/recording"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestRun_EachStepHasItsChangesAndItsFailureNamesIt(t *testing.T) {
	kube := testkit.Kube(t)
	if err := createNode(t, kube, "scenario-1"); err != nil {
		t.Fatal(err)
	}
	r := recorder.New(kube)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	stage := Stage{Kube: kube, Recorder: r, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	exists := func(count int) []Expectation {
		return []Expectation{{recording.KindNode, "scenario-*", recording.FieldExists, "yes", count}}
	}
	err := stage.Run(t.Context(), exists(1), []Step{
		{"label removed", RemoveLabel{"scenario-1", "kubernetes.io/os"}, []Expectation{{recording.KindNode, "scenario-1", "label *", "*", 0}}},
		{"Node deleted", DeleteNode{"scenario-1"}, exists(0)},
		{"Node deleted again", DeleteNode{"scenario-1"}, exists(0)},
	})
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `step "Node deleted again"`) {
		t.Errorf("error = %v, want that of the last step, with its name", err)
	}
	var got []string
	for _, c := range r.Finish().Changes {
		if c.After > 0 {
			got = append(got, fmt.Sprintf("%s: %s %s=%s", c.Step, c.Object, c.Field, c.Value))
		}
	}
	want := []string{"label removed: scenario-1 label kubernetes.io/os=", "Node deleted: scenario-1 exists="}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func createNode(t *testing.T, kube kubernetes.Interface, name string) error {
	t.Helper()
	_, err := kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
	}, metav1.CreateOptions{})
	return err
}

// A comparison lines steps up by their names, and a step without an expectation would end at once.
func TestSteps_HaveNamesOfTheirOwnAndExpectations(t *testing.T) {
	var names []string
	for _, step := range slices.Concat(Workloads("w1"), Nodes("w1", "w2"), APIServers("cp2", "10.0.0.2", 2)) {
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
