package deploy

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/testkit"
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

// A static pod shares its machine's network and reads its files; the sidecar takes nothing more
// than these.
func TestSidecar_NeedsOnlyItsMachinesNetworkAndOneFolder(t *testing.T) {
	makeSystem(t)
	pods := ofKind[corev1.Pod](t, render(t, "overlays/sidecar/static-pod"), "Pod")
	if len(pods) != 1 {
		t.Fatalf("%d pods, want one: a manifest of the kubelet's holds one", len(pods))
	}
	sidecar := pods[0].Spec.InitContainers[0]
	if mounts := sidecar.VolumeMounts; len(mounts) != 1 || !mounts[0].ReadOnly || mounts[0].MountPath != "/etc/kubernetes/trivet" {
		t.Errorf("mounts %v, want its own folder, read-only", mounts)
	}
	if sidecar.RestartPolicy == nil || *sidecar.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Error("restartPolicy is not Always, so kube-apiserver would wait for its end")
	}
	sidecar.VolumeMounts, sidecar.LivenessProbe.HTTPGet.Host = nil, "" // by host the probe finds the machine's loopback
	spec := corev1.PodSpec{SecurityContext: pods[0].Spec.SecurityContext, Containers: []corev1.Container{sidecar}}
	spec.Containers[0].RestartPolicy = nil
	if err := admit(t, "sidecar", spec); err != nil {
		t.Errorf("without network and folder the sidecar is still refused: %v", err)
	}
}

// Static pods may not refer to objects of the API; the kubelet would refuse the manifest, and no
// apiserver says so.
func TestSidecar_RefersToNoObject(t *testing.T) {
	for _, pod := range render(t, "overlays/sidecar/static-pod") {
		text, err := pod.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		for _, reference := range []string{"configMap", "secret", "serviceAccount", "persistentVolumeClaim", "resourceClaim"} {
			if strings.Contains(string(text), `"`+reference) {
				t.Errorf("%s refers to a %s", pod.GetName(), reference)
			}
		}
	}
}
