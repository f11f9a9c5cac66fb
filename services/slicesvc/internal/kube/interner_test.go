package kube

import (
	"fmt"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestInterner_ChangesNoValue(t *testing.T) {
	t.Parallel()
	shared := newInterner()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"", "a", "b", `a"`, `"a`, "a\"\"b"})
		pod := slicetest.Pod("web", "10.1.0.1", func(pod *corev1.Pod) {
			pod.Namespace, pod.Spec.NodeName = text.Draw(t, "namespace"), text.Draw(t, "node")
			pod.Labels = rapid.MapOfN(text, text, 0, 3).Draw(t, "labels")
			controller := rapid.Bool().Draw(t, "controller")
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: text.Draw(t, "kind"), Name: text.Draw(t, "owner"), Controller: &controller}}
			for range rapid.IntRange(0, 2).Draw(t, "containers") {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Ports: []corev1.ContainerPort{{
					Name:          text.Draw(t, "port"),
					ContainerPort: rapid.Int32Range(1, 3).Draw(t, "number"),
				}}})
			}
		})
		want := strippedPod(pod)
		got := strippedPod(pod)
		shared.internPod(got)
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Fatalf("(-stripped +interned):\n%s", diff)
		}
	})
}

func TestInterner_IsBounded(t *testing.T) {
	t.Parallel()
	shared := newInterner()
	for i := range 3 * maxInterned {
		shared.internPod(slicetest.Pod("web", "10.1.0.1", func(pod *corev1.Pod) { pod.Labels = map[string]string{"index": fmt.Sprint(i)} }))
	}
	if got := len(shared.labels); got > maxInterned {
		t.Errorf("%d label sets are kept, want at most %d", got, maxInterned)
	}
}
