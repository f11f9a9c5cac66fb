package nodehealthcontroller_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// marks is how many writes marked the Pod of n0.
func (f *fakeCluster) marks() (marks int) {
	for _, write := range f.written() {
		if write == "unready pod-n0" {
			marks++
		}
	}
	return marks
}

// A kubelet that reports its node not ready lives, and reports on its Pods itself. A virtual one
// may report a Pod once only, so nothing would restore what is marked. A restart marks nothing
// either, until the kubelet is silent.
func TestRun_PodsOfANodeThatIsNotReadyAreLeftToItsKubelet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		restart := func() {
			f.synced = make(chan struct{})
			f.thaw() // the cache of the next process lists everything
		}
		for range 2 { // the second process finds the node as the first one left it
			run(t, f, func() {
				f.beat(20 * time.Second)
				f.report("n0", corev1.ConditionFalse)
				f.beat(10 * time.Minute)
				if got := f.marks(); got != 0 {
					t.Errorf("the pod was marked %d times while its kubelet lives, want never", got)
				}
			})
			restart()
		}
		run(t, f, func() { f.beat(2*time.Minute, "n0") })
		if got := f.marks(); got != 1 {
			t.Errorf("the pod of a silent node that was not ready before was marked %d times, want once", got)
		}
	})
}

// With the option, a Pod is marked once: the kubelet may be unable to report on its Pods, because
// its runtime is down. A kubelet that is able is not contradicted again.
func TestRun_PodsOfANodeThatIsNotReadyAreMarkedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		f.stubborn["n0"] = true
		rules := nodehealth.DefaultRules()
		rules.MarkPodsOfUnreadyNodes = true
		runWith(t, f, rules, func() {
			f.beat(20 * time.Second)
			f.report("n0", corev1.ConditionFalse)
			f.beat(2 * time.Second)
			if got := f.marks(); got != 1 {
				t.Errorf("within two seconds its pod was marked %d times, want once", got)
			}
			f.change(func() {
				starting := f.live.pods["pod-n1"].DeepCopy()
				starting.Name, starting.UID, starting.Spec.NodeName = "starting", "uid-starting", "n0"
				starting.Status.Conditions[0].Status = corev1.ConditionFalse
				f.putPod(starting)
			})
			f.beat(time.Minute)
			f.change(func() { // the kubelet reports it
				started := f.live.pods["starting"].DeepCopy()
				started.Status.Conditions[0].Status = corev1.ConditionTrue
				f.putPod(started)
			})
			f.beat(10 * time.Minute)
			if got := f.marks(); got != 1 {
				t.Errorf("its pod was marked %d times, want once", got)
			}
			f.report("n0", corev1.ConditionTrue)
			f.beat(time.Minute)
			f.report("n0", corev1.ConditionFalse)
			f.beat(2 * time.Second)
		})
		if got := f.marks(); got != 2 {
			t.Errorf("when its node is not ready again its pod was marked %d times, want twice", got)
		}
	})
}

// The kubelet of a marked node that gives signs of life again reports on its Pods, even if it
// cannot write its Node.
func TestRun_PodsOfAKubeletThatRecoversAreNotMarked(t *testing.T) {
	t.Parallel()
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

// If another writer marks a Pod ready while its node is silent, the Pod is marked again, ever more
// seldom.
func TestRun_PodThatAnotherWriterMarksReadyIsMarkedEverMoreSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		f.stubborn["n0"] = true
		run(t, f, func() { f.beat(time.Hour, "n0") })
		if got := f.marks(); got < 2 || got > 66 {
			t.Errorf("the pod was marked %d times in an hour, want 2 to 66", got)
		}
	})
}

// The Pods of dead nodes get no traffic once they are marked, so many are marked at a time.
func TestRun_ManyPodsAreMarkedWithinSeconds(t *testing.T) {
	t.Parallel()
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
