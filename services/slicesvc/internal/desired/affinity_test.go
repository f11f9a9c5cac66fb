package desired_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

func TestAffinityOf_RevisionBeforeController(t *testing.T) {
	yes := true
	labelled := func(key, value string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Labels[key] = value }
	}
	ownedBy := func(uid types.UID) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.OwnerReferences = []metav1.OwnerReference{{UID: "somebody"}, {UID: uid, Controller: &yes}}
		}
	}
	affinity := func(changes ...func(*corev1.Pod)) uint32 {
		return desired.AffinityOf(slicetest.Pod("web-0", "10.1.0.1", changes...))
	}
	if affinity() != 0 {
		t.Error("a pod of nobody has an affinity")
	}
	if a, b := affinity(labelled("pod-template-hash", "a")), affinity(labelled("pod-template-hash", "b")); a == b || a == 0 {
		t.Errorf("two revisions have affinities %d and %d", a, b)
	}
	if a, b := affinity(labelled("controller-revision-hash", "a")), affinity(labelled("pod-template-hash", "a"), labelled("controller-revision-hash", "b")); a != b {
		t.Errorf("the hash of the template does not win: %d and %d", a, b)
	}
	if a, b := affinity(ownedBy("x")), affinity(ownedBy("y")); a == 0 || a == b {
		t.Errorf("pods of two controllers have affinities %d and %d", a, b)
	}
}
