package nodehealthcontroller_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// marks is how many writes said of a pod that it is not ready.
func (f *fakeCluster) marks() (marks int) {
	for _, write := range f.written() {
		if write == "unready pod-n0" {
			marks++
		}
	}
	return marks
}

// A kubelet that says of itself that it is not ready lives, and says what its pods are: whatever anybody else writes there it
// takes back within a second. So nobody else writes.
func TestRun_PodsOfALivingKubeletAreNotMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		f.stubborn["n0"] = true
		run(t, f, func() {
			f.beat(20 * time.Second)
			f.report("n0", corev1.ConditionFalse)
			f.beat(10 * time.Minute)
		})
		if got := f.marks(); got != 0 {
			t.Errorf("its pod was marked %d times, want never", got)
		}
	})
}

// Once it is heard again, a declared node's kubelet speaks for its pods, even where it cannot write its Node.
func TestRun_PodsOfAKubeletThatRecoversAreNotMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		run(t, f, func() {
			f.beat(52*time.Second, "n0")
			if got := f.marks(); got != 1 {
				t.Errorf("the pod of a dead node was marked %d times, want once", got)
			}
			f.stubborn["n0"] = true
			f.beat(time.Second)
			f.change(func() {
				pod := f.live.pods["pod-n0"].DeepCopy()
				pod.Status.Conditions[0].Status = corev1.ConditionTrue
				f.putPod(pod)
			})
			f.beat(10 * time.Minute)
		})
		if got := f.marks(); got != 1 {
			t.Errorf("the pod was marked %d times, want once", got)
		}
	})
}

// Somebody who contradicts us although nothing is heard of the node is contradicted in turn, but ever more seldom.
func TestRun_PodThatAnotherWriterMarksReadyIsMarkedEverMoreSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		f.stubborn["n0"] = true
		run(t, f, func() { f.beat(time.Hour, "n0") })
		if got := f.marks(); got < 2 || got > 66 {
			t.Errorf("the pod was marked %d times in an hour, want 2 to 66", got)
		}
	})
}

// The pods of dead nodes get no traffic as soon as they are marked, so many are marked at a time.
func TestRun_ManyPodsAreMarkedWithinSeconds(t *testing.T) {
	const pods = 1000
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		f.change(func() {
			for i := range pods {
				pod := f.live.pods["pod-n0"].DeepCopy()
				pod.Name, pod.UID = fmt.Sprintf("more-%d", i), types.UID(fmt.Sprintf("uid-more-%d", i))
				f.putPod(pod)
			}
		})
		run(t, f, func() {
			f.beat(55*time.Second, "n0")
			marked := slices.DeleteFunc(f.written(), func(write string) bool { return write == "mark-unknown n0" || write == "add-no-execute n0" })
			if got := len(marked); got != pods+1 {
				t.Errorf("five seconds after its node was declared %d pods are marked, want %d", got, pods+1)
			}
		})
	})
}
