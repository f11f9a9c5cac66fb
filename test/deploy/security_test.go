package deploy

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// system is the namespace that the trees make, with Pod Security's restricted standard enforced.
const system = "trivet-system"

// admit asks whether a pod would be let into the namespace.
func admit(t *testing.T, name string, spec corev1.PodSpec) error {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: system}, Spec: spec}
	_, err := testkit.Kube(t).CoreV1().Pods(system).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// makeSystem makes the namespace with its labels.
func makeSystem(t *testing.T) {
	t.Helper()
	newApplier(t, testkit.Cluster(t).RESTConfig()).applyNamespaces(t, render(t, "base"))
}

func TestPods_MeetTheRestrictedStandard(t *testing.T) {
	makeSystem(t)
	for name, spec := range pods(t, render(t, everything)) {
		t.Run(name, func(t *testing.T) {
			if err := admit(t, "admitted", spec); err != nil {
				t.Errorf("the pod is refused: %v", err)
			}
			loose := spec.DeepCopy()
			loose.Containers[0].SecurityContext.Capabilities = nil
			if err := admit(t, "admitted", *loose); !apierrors.IsForbidden(err) {
				t.Errorf("the same pod with capabilities: %v, want a refusal", err)
			}
			if !*spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem { // the one rule of ours beyond the standard
				t.Error("the root file system is writable")
			}
		})
	}
}
