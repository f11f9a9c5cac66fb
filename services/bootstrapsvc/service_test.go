package bootstrapsvc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

// refreshInterval is how often an unchanged key is written.
const refreshInterval = 10 * time.Second

func TestService_BuildsTheBaselineOfAnEmptyCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)

		f.wantPublished(t, "10.1.0.1")
		want := []string{
			"create EndpointSlice kubernetes", "create Endpoints kubernetes",
			"create Namespace default", "create Namespace kube-node-lease",
			"create Namespace kube-public", "create Namespace kube-system",
			"create Service kubernetes",
		}
		got := f.objects.writes()
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		counts := map[string]int64{
			"namespaces": 4, "apiservers": 1, "ready_apiservers": 1, "endpoint_addresses": 1, "baseline_writes": 7,
			"open_findings": 0, "ignored_findings": 0, "pending_findings": 0,
		}
		if diff := cmp.Diff(counts, f.Counts()); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}

		time.Sleep(10 * time.Minute)
		if got := len(f.objects.writes()); got != len(want) {
			t.Errorf("%d writes after ten quiet minutes, want still %d", got, len(want))
		}
	})
}

func TestService_DriftIsRepairedWithinTenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)

		edit(f.objects, "Service kubernetes", func(s *corev1.Service) {
			s.Spec.Ports[0].TargetPort = intstr.FromInt32(1)
			s.Labels["team"] = "net"
		})
		f.objects.remove("EndpointSlice kubernetes")
		edit(f.objects, "Endpoints kubernetes", func(e *corev1.Endpoints) { e.Subsets[0].Addresses[0].IP = "192.0.2.1" })
		time.Sleep(10 * time.Second)

		f.wantPublished(t, "10.1.0.1")
		service, _ := f.objects.Service(t.Context())
		if service.Spec.Ports[0].TargetPort.IntValue() != 6443 || service.Labels["team"] != "net" {
			t.Errorf("service has target port %s and labels %v", service.Spec.Ports[0].TargetPort.String(), service.Labels)
		}
	})
}

func TestService_NamespaceIsCreatedWithinAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		f.objects.remove("Namespace kube-public")
		time.Sleep(time.Minute)
		if namespace, err := load[*corev1.Namespace](f.objects, "Namespace kube-public"); namespace == nil || err != nil {
			t.Errorf("kube-public = %v, %v, want it created", namespace, err)
		}
	})
}

func TestService_PeersAreAddedAndRemovedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)

		f.keys.put(readyPeer("10.1.0.2"))
		synctest.Wait()
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")

		stopped := readyPeer("10.1.0.2")
		stopped.Ready, stopped.Left = false, true
		f.keys.put(stopped)
		synctest.Wait()
		f.wantPublished(t, "10.1.0.1")

		f.keys.put(readyPeer("10.1.0.2"))
		synctest.Wait()
		f.adopted.set(true) // its machine is lost
		f.keys.drop("10.1.0.2")
		time.Sleep(time.Second)
		f.wantPublished(t, "10.1.0.1")
	})
}

func TestService_FailedServerIsRemovedUnlessItIsTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")

		f.prober.set(true)
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		time.Sleep(time.Second)
		f.wantPublished(t, "10.1.0.2")

		f.prober.set(false)
		time.Sleep(time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")

		f.adopted.set(true)
		f.keys.drop("10.1.0.2")
		time.Sleep(time.Second)
		f.prober.set(true)
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1")
		if status := f.statusOf(t, apiserverscontroller.EndpointsLoop); status.State != loop.Running {
			t.Errorf("loop = %+v, want it running: a server that is not ready is no failure of the loop", status)
		}
	})
}

func TestService_StopRemovesTheOwnAddressUnderTheTerm(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		peers []string
		want  []string
	}{
		"beside peers":       {peers: []string{"10.1.0.2", "10.1.0.3"}, want: []string{"10.1.0.2", "10.1.0.3"}},
		"as the last server": {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.start(t)
				for _, address := range test.peers {
					f.keys.put(readyPeer(address))
				}
				time.Sleep(moment)
				f.wantPublished(t, append([]string{"10.1.0.1"}, test.want...)...)

				f.end(t)

				f.wantPublished(t, test.want...)
				if entry, found := f.keys.get("10.1.0.1"); !found || !entry.Left || entry.Ready {
					t.Errorf("key = %+v, %t, want one that says that the server left", entry, found)
				}
			})
		})
	}
}

func TestService_StopTakesTwentySecondsAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		time.Sleep(moment)
		f.keys.mu.Lock()
		f.keys.hang = true
		f.keys.mu.Unlock()
		time.Sleep(time.Minute)

		begun := time.Now()
		f.end(t)
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("stop took %s, want at most 20s", took)
		}
		f.wantPublished(t, "10.1.0.1")
	})
}

func TestService_StandbyProbesAndWritesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.candidate.Lose()
		f.keys.put(readyPeer("10.1.0.2"))
		f.start(t)
		// Without a session no key is written either: it could not be bound to one.
		time.Sleep(time.Minute)
		if got := f.objects.writes(); len(got) != 0 {
			t.Errorf("writes = %v, want none", got)
		}
		if status := f.statusOf(t, apiserverscontroller.ProbeLoop); status.State != loop.Failing || status.LastError != apiserverscontroller.ErrNoSession.Error() {
			t.Errorf("probe loop = %+v, want it failing without a session", status)
		}
		f.candidate.Regain()
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")

		writes := f.Counts()["baseline_writes"]
		f.candidate.Lose()
		synctest.Wait()
		if diff := cmp.Diff(map[string]int64{"baseline_writes": writes}, f.Counts()); diff != "" {
			t.Errorf("counts of a standby (-want +got):\n%s", diff)
		}
		f.end(t)
		// Without a term, no address was removed. The next leader does it.
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
	})
}

func TestService_FailedReadOfTheKeysRemovesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)

		f.keys.fail(fmt.Errorf("%w: no leader", apiserverscontroller.ErrUnavailable), nil)
		f.keys.drop("10.1.0.2")
		f.adopted.set(true)
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		if status := f.statusOf(t, apiserverscontroller.EndpointsLoop); status.State != loop.Failing {
			t.Errorf("loop = %+v, want it failing", status)
		}

		f.keys.fail(nil, nil)
		time.Sleep(12 * time.Second)
		f.wantPublished(t, "10.1.0.1")
		if status := f.statusOf(t, apiserverscontroller.EndpointsLoop); status.State != loop.Running {
			t.Errorf("loop = %+v, want it running", status)
		}
	})
}

func TestService_StaleKeyIsDeletedBeforeTheFirstProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, "*", "-"+apiserverscontroller.EndpointsLoop)
		f.prober.set(true)
		f.keys.put(readyPeer("10.1.0.1"))
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		entry, _ := f.keys.get("10.1.0.1")
		if entry.Ready || entry.ReplicaID != self().ID {
			t.Errorf("key = %+v, want one of this replica that is not ready", entry)
		}
	})
}

func TestService_AddressOfAnotherReplicaStaysAndIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		f.keys.put(readyPeer("10.1.0.1"))
		time.Sleep(refreshInterval)
		if entry, _ := f.keys.get("10.1.0.1"); entry.ReplicaID != "other-1" {
			t.Errorf("key = %+v, want that of the other replica", entry)
		}
		if status := f.statusOf(t, apiserverscontroller.ProbeLoop); status.State != loop.Failing {
			t.Errorf("probe loop = %+v, want it failing", status)
		}
	})
}

func TestService_UnchangedKeyIsWrittenOncePerRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(10*refreshInterval + moment)
		f.keys.mu.Lock()
		puts := f.keys.puts
		f.keys.mu.Unlock()
		if puts != 11 {
			t.Errorf("%d writes of the key in %s, want 11", puts, 10*refreshInterval)
		}
	})
}

func TestService_ConflictIsPlannedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		interfered := false
		f.objects.beforeApply(func(_ context.Context, step baseline.Change) error {
			if step.Kind().Kind == "EndpointSlice" && step.Verb == planned.Update && !interfered {
				interfered = true
				edit(f.objects, "EndpointSlice kubernetes", func(s *discoveryv1.EndpointSlice) { s.Labels["team"] = "net" })
			}
			return nil
		})
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		f.keys.put(readyPeer("10.1.0.2"))
		synctest.Wait()
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		slice, _ := load[*discoveryv1.EndpointSlice](f.objects, "EndpointSlice kubernetes")
		if !interfered || slice.Labels["team"] != "net" {
			t.Errorf("interfered = %t, labels = %v: the change of the other writer must stay", interfered, slice.Labels)
		}
	})
}

func TestService_ContentionEndsThePass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		attempts := 0
		f.objects.beforeApply(func(_ context.Context, step baseline.Change) error {
			if step.Kind().Kind == "Service" {
				attempts++
				return guarded.ErrConflict
			}
			return nil
		})
		f.start(t)
		defer f.end(t)
		synctest.Wait()
		const maxRounds = 4
		if attempts != maxRounds {
			t.Errorf("%d attempts in the first pass, want %d", attempts, maxRounds)
		}
		if status := f.statusOf(t, baselinecontroller.ServiceLoop); status.State != loop.Failing {
			t.Errorf("loop = %+v, want it failing", status)
		}
	})
}

func TestService_RejectedWriteDoesNotStopTheRemainingOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.objects.beforeApply(func(_ context.Context, step baseline.Change) error {
			if step.Object.GetName() == "default" {
				return errors.New("forbidden")
			}
			return nil
		})
		f.start(t)
		defer f.end(t)
		synctest.Wait()
		existing, _ := f.objects.Namespaces(t.Context(), []string{"kube-node-lease", "kube-public", "kube-system"})
		if len(existing) != 3 {
			t.Errorf("%d of the other namespaces exist, want 3", len(existing))
		}
	})
}

func TestService_PanicCostsOnePass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		panicked := false
		f.objects.beforeApply(func(_ context.Context, step baseline.Change) error {
			if step.Kind().Kind == "Service" && !panicked {
				panicked = true
				panic("out of order")
			}
			return nil
		})
		f.start(t)
		defer f.end(t)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if service, _ := f.objects.Service(t.Context()); !panicked || service == nil {
			t.Errorf("panicked = %t, service = %v, want the next pass to create it", panicked, service)
		}
	})
}

// A Service that was exposed by hand keeps its node port until an operator applies the plan.
func TestService_ExposedServiceKeepsItsNodePort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		edit(f.objects, "Service kubernetes", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30443
			s.Labels = nil
		})
		time.Sleep(time.Minute)
		service, err := f.objects.Service(t.Context())
		if err != nil || service.Spec.Type != corev1.ServiceTypeNodePort || service.Spec.Ports[0].NodePort != 30443 {
			t.Errorf("service = %+v, %v, want its type and node port kept", service.Spec, err)
		}
		if service.Labels["provider"] != "kubernetes" {
			t.Errorf("labels = %v, want them repaired", service.Labels)
		}
		found, err := f.baseline.ObserveService(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.baseline.Reconcilers()[1].ReconcilePlan(t.Context(), baseline.Writes(found.Changes)); err != nil {
			t.Fatal(err)
		}
		if service, err = f.objects.Service(t.Context()); err != nil || service.Spec.Type != corev1.ServiceTypeClusterIP {
			t.Errorf("after the plan was applied, service = %+v, %v", service.Spec, err)
		}
	})
}

// Without a flag, a default ServiceCIDR that is being replaced says nothing about its successor.
func TestService_GetsNoAddressOfARangeThatIsBeingReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.objects.keepCIDR(func(c *baseline.ServiceCIDR) { c.Object.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
		f.start(t)
		defer f.end(t)
		time.Sleep(time.Minute)
		if service, err := f.objects.Service(t.Context()); service != nil || err != nil {
			t.Errorf("service = %v, %v, want none with an address of the old range", service, err)
		}
		reported := func(reason baseline.Reason) bool {
			return slices.ContainsFunc(f.baseline.Reconcilers()[1].State().Reports, func(c baseline.Change) bool { return c.Reason == reason })
		}
		if !reported(baseline.ClusterIPUnknown) {
			t.Error("it is not reported that the address is unknown")
		}
		next := baseline.Service{ClusterIP: netip.MustParseAddr("10.2.0.1"), TargetPort: 6443}
		f.objects.put(baseline.PlanService(next, nil)[0].Object) // as kube-apiserver creates it
		time.Sleep(time.Minute)
		if reported(baseline.ClusterIPDiffers) {
			t.Error("the new address is reported, and the old one wanted")
		}
		f.wantPublished(t, "10.1.0.1")
	})
}

// A right that is missing for one object stops nothing else.
func TestService_ForbiddenReadStopsNothingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.objects.failReadsOf("Namespace kube-public", errForbidden)
		f.objects.failReadsOf("ServiceCIDR kubernetes", errForbidden)
		cfg := baseline.Service{ClusterIP: netip.MustParseAddr("10.0.0.1"), TargetPort: 6443}
		f.objects.put(baseline.PlanService(cfg, nil)[0].Object)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		f.wantPublished(t, "10.1.0.1")
		for _, name := range []string{"default", "kube-node-lease", "kube-system"} {
			if found, err := f.objects.Namespaces(t.Context(), []string{name}); err != nil || len(found) != 1 {
				t.Errorf("namespace %s = %v, %v, want it created", name, found, err)
			}
		}
		state := f.baseline.Reconcilers()[1].State()
		if len(state.Reports) != 1 || state.Reports[0].Reason != baseline.CIDRUnreadable || !strings.Contains(state.Reports[0].Detail, errForbidden.Error()) {
			t.Errorf("reports = %+v, want one with the cause", state.Reports)
		}

		f.objects.failReadsOf("Service kubernetes", errForbidden)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
	})
}

var errForbidden = errors.New("services is forbidden: User cannot get resource")
