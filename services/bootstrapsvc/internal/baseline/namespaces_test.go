package baseline

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
)

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid", Labels: map[string]string{corev1.LabelMetadataName: name}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
}

func terminating(name string) *corev1.Namespace {
	going := namespace(name)
	going.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	going.Status.Phase = corev1.NamespaceTerminating
	return going
}

// step is a change without its object.
type step struct {
	Verb   planned.Verb
	Name   string
	Reason Reason
}

func steps(changes []Change) []step {
	var taken []step
	for _, c := range changes {
		taken = append(taken, step{Verb: c.Verb, Name: c.Object.GetName(), Reason: c.Reason})
	}
	return taken
}

func TestPlanNamespaces(t *testing.T) {
	cases := map[string]struct {
		existing []*corev1.Namespace
		want     []step
	}{
		"an empty cluster gets all four, by name": {
			want: []step{
				{Verb: planned.Create, Name: "default", Reason: NamespaceMissing},
				{Verb: planned.Create, Name: "kube-node-lease", Reason: NamespaceMissing},
				{Verb: planned.Create, Name: "kube-public", Reason: NamespaceMissing},
				{Verb: planned.Create, Name: "kube-system", Reason: NamespaceMissing},
			},
		},
		"a complete cluster gets nothing, whatever else it has": {
			existing: []*corev1.Namespace{
				namespace("shop"), namespace("kube-system"), namespace("kube-public"),
				namespace("kube-node-lease"), namespace("default"),
			},
		},
		"one that goes away is reported and the others are not held up": {
			existing: []*corev1.Namespace{
				namespace("default"), terminating("kube-public"), namespace("kube-system"),
			},
			want: []step{
				{Verb: planned.Create, Name: "kube-node-lease", Reason: NamespaceMissing},
				{Verb: planned.Report, Name: "kube-public", Reason: NamespaceTerminating},
			},
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, steps(PlanNamespaces(test.existing))); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanNamespaces_AppliedLeavesNothing(t *testing.T) {
	var existing []*corev1.Namespace
	for _, c := range PlanNamespaces(nil) {
		existing = append(existing, c.Object.(*corev1.Namespace))
	}
	if changes := Writes(PlanNamespaces(existing)); len(changes) != 0 {
		t.Errorf("second plan writes %v", steps(changes))
	}
}

func TestPlanNamespaces_ReportsSayWhatIsWrong(t *testing.T) {
	stuck := terminating("default")
	stuck.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
	stuck.Finalizers = []string{"example.com/hold"}
	stuck.Status.Conditions = []corev1.NamespaceCondition{
		{Type: corev1.NamespaceFinalizersRemaining, Status: corev1.ConditionTrue, Message: "Some content has finalizers: " + strings.Repeat("ü", 200)},
		{Type: corev1.NamespaceDeletionDiscoveryFailure, Status: corev1.ConditionTrue, Message: "metrics.k8s.io/v1beta1: stale"},
		{Type: corev1.NamespaceDeletionContentFailure, Status: corev1.ConditionFalse, Message: "All content successfully deleted"},
	}
	renamed := namespace("kube-public")
	renamed.Labels = map[string]string{corev1.LabelMetadataName: "public"}
	bare := namespace("kube-system")
	bare.Labels = nil
	before := stuck.DeepCopy()

	var got []string
	for _, c := range PlanNamespaces([]*corev1.Namespace{stuck, namespace("kube-node-lease"), renamed, bare}) {
		got = append(got, string(c.Verb)+" "+string(c.Reason)+" "+c.Detail)
	}
	want := []string{
		"report NAMESPACE_TERMINATING system namespace default is being deleted since 2026-01-02T03:04:05Z; it is created again " +
			"afterwards; it waits for: finalizers example.com/hold, kubernetes; " +
			"NamespaceDeletionDiscoveryFailure: metrics.k8s.io/v1beta1: stale; " +
			"NamespaceFinalizersRemaining: Some content has finalizers: " + strings.Repeat("ü", 135) + "…",
		`report NAMESPACE_MISLABELLED system namespace kube-public has label kubernetes.io/metadata.name "public", want "kube-public"; ` +
			"policies that select it by this label do not match",
		`report NAMESPACE_MISLABELLED system namespace kube-system has label kubernetes.io/metadata.name "", want "kube-system"; ` +
			"policies that select it by this label do not match",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, stuck); diff != "" {
		t.Errorf("the plan changed its input (-before +after):\n%s", diff)
	}
}
