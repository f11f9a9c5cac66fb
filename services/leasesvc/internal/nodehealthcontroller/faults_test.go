package nodehealthcontroller_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// dead returns how many Nodes are marked Unknown.
func (f *fakeCluster) dead() (count int) {
	f.mu.Lock()
	names := len(f.live.nodes)
	f.mu.Unlock()
	for i := range names {
		if f.ready(fmt.Sprintf("n%d", i)) == corev1.ConditionUnknown {
			count++
		}
	}
	return count
}

// A kube-apiserver that needs long for each answer delays verdicts by about that, for any number of
// Nodes. An answer that needs longer than the first timeout is waited for the next time.
func TestRun_SlowAnswersDelayEachVerdictAndForbidNone(t *testing.T) {
	t.Parallel()
	for _, slowness := range []time.Duration{400 * time.Millisecond, 2 * time.Second, 7 * time.Second, 15 * time.Second} {
		t.Run(slowness.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster(40)
				var silent []string
				for i := range 8 {
					silent = append(silent, fmt.Sprintf("n%d", i))
				}
				run(t, f, func() {
					f.change(func() { f.slowRead = slowness })
					f.beat(3 * time.Minute)
					f.beat(50*time.Second, silent...)
					f.beat(8*slowness+2*time.Second, silent...)
					if got := f.dead(); got != len(silent) {
						t.Errorf("%d of %d dead nodes are marked %v after their grace period", got, len(silent), 8*slowness+2*time.Second)
					}
				})
			})
		})
	}
}

// A replica that cannot read Leases marks no Node. What was declared before goes on: Nodes are
// tainted at the rate of their zone, and their Pods are marked.
func TestRun_UnreadableLeasesStopNeitherTaintsNorMarksOfPods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(20)
		run(t, f, func() {
			f.beat(30 * time.Second)
			f.change(func() { f.unreadable = errDown })
			f.beat(10 * time.Second)
			f.report("n0", corev1.ConditionUnknown) // another replica has declared them
			f.report("n1", corev1.ConditionUnknown)
			f.change(func() {
				late := f.live.pods["pod-n2"].DeepCopy()
				late.Name, late.UID, late.Spec.NodeName = "late", "uid-late", "n0"
				f.putPod(late)
			})
			f.beat(2*time.Minute, "n0", "n1", "n2")
			for _, name := range []string{"n0", "n1"} {
				if writes := f.written(); !slices.Contains(writes, "add-no-execute "+name) {
					t.Errorf("%s is not tainted: %v", name, writes)
				}
			}
			if got := f.ready("n2"); got != corev1.ConditionTrue {
				t.Errorf("Ready of n2 is %s, although its Lease cannot be read", got)
			}
		})
	})
}

// The Pods of a Node that is dead are marked while Leases cannot be read.
func TestRun_PodsOfDeadNodesAreMarkedWhileLeasesAreUnreadable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(20)
		run(t, f, func() {
			f.beat(52*time.Second, "n0")
			f.change(func() { f.unreadable = errDown })
			f.beat(10*time.Second, "n0")
			f.change(func() {
				late := f.live.pods["pod-n1"].DeepCopy()
				late.Name, late.UID, late.Spec.NodeName = "late", "uid-late", "n0"
				f.putPod(late)
			})
			f.beat(time.Minute, "n0")
			if writes := f.written(); !slices.Contains(writes, "unready late") {
				t.Errorf("the pod is not marked: %v", writes)
			}
		})
	})
}

// kube-apiserver answers every read and takes no write of a Lease, so no kubelet can renew its own:
// none is marked. When it takes them again, each kubelet has a grace period to come back.
func TestRun_WhileOnlyWritesFailNoNodeIsMarked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(20)
		run(t, f, func() {
			f.beat(30 * time.Second)
			var all []string
			for i := range 20 {
				all = append(all, fmt.Sprintf("n%d", i))
			}
			f.change(func() {
				f.unwritable = apierrors.NewInternalError(errors.New("etcdserver: mvcc: database space exceeded"))
			})
			f.beat(2*time.Minute, all...)
			f.change(func() { f.unwritable = nil })
			f.beat(30*time.Second, all...)
			if got := f.dead(); got != 0 {
				t.Errorf("%d nodes are marked, though none could renew its Lease", got)
			}
			f.beat(2*time.Minute, "n0") // and this one is dead
			if got := f.dead(); got != 1 || f.ready("n0") != corev1.ConditionUnknown {
				t.Errorf("%d nodes are marked, want n0", got)
			}
		})
	})
}

func TestRun_RefusedReadsAreReportedWithVerbAndResource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(2)
		f.unreadable = apierrors.NewForbidden(corev1.Resource("leases"), "n0", errors.New(`User "leasesvc" cannot get resource "leases"`))
		if got := fmt.Sprint(lastReport(t, f, 10*time.Second)); !strings.Contains(got, `cannot get resource "leases"`) {
			t.Errorf("last report is %q", got)
		}
	})
}

// All nodes of a replica die. They are marked at once.
func TestRun_SessionsThatExpireTogetherAreMarkedAsFastAsOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(100)
		all, end := replicas(t, f, 1, "a")
		defer end()
		defer all[0].hold(t.Context(), 0)()
		set := func(state session.State) {
			for i := range 100 {
				all[0].session(fmt.Sprintf("n%d", i), state)
			}
		}
		expect := func(when string, suspect, dead float64) {
			t.Helper()
			got := sample(t, all[0].registry)
			for name, want := range map[string]float64{
				"trivet_node_health suspect": suspect, "trivet_node_health dead": dead,
			} {
				if got[name] != want {
					t.Errorf("%s %s is %v, want %v", when, name, got[name], want)
				}
			}
		}
		set(session.Alive)
		time.Sleep(time.Minute)
		expect("while all agents beat", 0, 0)
		set(session.Suspect)
		time.Sleep(7 * time.Second)
		expect("while beats are missing", 100, 0)
		set(session.Expired)
		time.Sleep(2 * time.Second)
		if got := f.dead(); got != 100 {
			t.Errorf("%d nodes are marked two seconds after all sessions expired, want all", got)
		}
		expect("after all sessions expired", 0, 100)
	})
}

// Another writer annotates the Lease of a dead node faster than the watch delivers it.
func TestRun_AnnotationsOfALeaseForbidNoVerdict(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		run(t, f, func() {
			f.beat(10 * time.Second)
			annotated := make(chan struct{})
			go func() {
				defer close(annotated)
				for range 700 {
					f.change(func() { // not delivered to the cache
						lease := f.live.leases["n0"]
						lease.Version = f.next()
						f.live.leases = maps.Clone(f.live.leases)
						f.live.leases["n0"] = lease
					})
					time.Sleep(100 * time.Millisecond)
				}
			}()
			f.beat(60*time.Second, "n0", "n1")
			for _, name := range []string{"n0", "n1"} {
				if got := f.ready(name); got != corev1.ConditionUnknown {
					t.Errorf("Ready of %s is %s, a minute after its last renewal", name, got)
				}
			}
			<-annotated
		})
	})
}

// The sessions of all nodes expire, because no beat reaches the replica. kube-apiserver answers
// nothing for a while around that time, no watch delivers, and a kubelet that writes its Lease 3.6
// s before, at the latest, tries again a second after the end.
func TestRun_HangOfKubeAPIServerAroundTheExpiryMarksNoLivingNode(t *testing.T) {
	t.Parallel()
	for _, hang := range []struct{ begin, end time.Duration }{
		{-3700 * time.Millisecond, 500 * time.Millisecond}, {-3700 * time.Millisecond, 3 * time.Second}, {-2500 * time.Millisecond, 2500 * time.Millisecond},
		{-1500 * time.Millisecond, 5 * time.Second},
	} {
		for phase := range 10 {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster(10)
				all, end := replicas(t, f, 1, "a")
				defer end()
				defer all[0].hold(t.Context(), 0)()
				each := func(do func(name string)) {
					for i := range 10 {
						do(fmt.Sprintf("n%d", i))
					}
				}
				each(func(name string) { all[0].session(name, session.Alive) })
				time.Sleep(time.Minute + time.Duration(phase)*213*time.Millisecond)
				f.change(func() { f.frozen = true })
				expiry := time.Now().Add(10 * time.Second)
				written := expiry.Add(-3600 * time.Millisecond)
				if hang.begin < -3600*time.Millisecond {
					written = expiry.Add(hang.end + time.Second)
				}
				time.AfterFunc(time.Until(written), func() { f.change(func() { each(f.renew) }) })
				time.Sleep(10*time.Second + hang.begin)
				f.change(func() { f.hangs = expiry.Add(hang.end) })
				time.Sleep(-hang.begin)
				each(func(name string) { all[0].session(name, session.Expired) })
				time.Sleep(30 * time.Second)
				if dead := f.dead(); dead > 0 {
					t.Errorf("kube-apiserver hangs from %v to %v, phase %d: %d of 10 living nodes are marked", hang.begin, hang.end, phase, dead)
				}
			})
		}
	}
}
