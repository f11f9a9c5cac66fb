package bootstrapsvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

func self() term.Member {
	return term.Member{ID: "self-1", Service: "bootstrapsvc", Cluster: "test", GRPCAddress: "127.0.0.1:7602"}
}

// house is a service in a world made of memory.
type house struct {
	*Service
	objects   *memoryObjects
	keys      *memoryKeys
	leases    *memoryLeases
	names     *memoryNames
	prober    *memoryProber
	others    *memoryProber // answers for every kube-apiserver without a sidecar
	candidate *termtest.Candidate
	stop      context.CancelFunc
	ended     chan error
}

// aMoment is enough for everything that happens at once, and falls on no tick.
const aMoment = 100 * time.Millisecond

// newHouse puts a service for the kube-apiserver at 10.1.0.1 together; start runs it.
func newHouse(t testing.TB, selection ...string) *house {
	t.Helper()
	return newHouseOf(t, DefaultConfig(), selection...)
}

// newHouseOf is newHouse with a configuration of its own.
func newHouseOf(t testing.TB, cfg Config, selection ...string) *house {
	t.Helper()
	h := &house{
		objects: newMemoryObjects(), keys: newMemoryKeys(), prober: &memoryProber{}, others: &memoryProber{},
		leases: &memoryLeases{}, names: &memoryNames{},
		candidate: termtest.NewCandidate(self(), 1),
		ended:     make(chan error, 1),
	}
	var err error
	h.Service, err = assemble(cfg, Deps{
		Member: self(), Leadership: h.candidate, Sessions: h.candidate,
		Logger:  slog.New(slog.NewTextHandler(t.Output(), nil)),
		Metrics: prometheus.NewRegistry(), LoopSelection: selection,
	}, parts{
		server:  apiServer{port: 6443, at: advertised{primary: netip.MustParseAddr("10.1.0.1")}},
		objects: h.objects, keys: h.keys, prober: h.prober, leases: h.leases, resolver: h.names,
		proberOf: func(netip.Addr) prober { return h.others },
		audit:    newMemoryAudit(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *house) start(t testing.TB) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	go func() { h.ended <- h.Run(ctx) }()
}

// end stops the service and waits for it.
func (h *house) end(t testing.TB) {
	t.Helper()
	h.stop()
	if err := <-h.ended; err != nil {
		t.Errorf("Run = %v", err)
	}
}

func (h *house) wantPublished(t testing.TB, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, h.objects.published()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

func (h *house) statusOf(t testing.TB, name string) loop.Status {
	t.Helper()
	for _, status := range h.Loops().Status() {
		if status.Name == name {
			return status
		}
	}
	t.Fatalf("there is no loop %s", name)
	return loop.Status{}
}

func neighbour(address string) apiserverscontroller.Entry {
	return apiserverscontroller.Entry{
		Address: netip.MustParseAddr(address), Port: 6443, Ready: true, Detail: "ok", ReplicaID: "other-1",
	}
}

func TestService_BuildsTheBaselineOfAnEmptyCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		time.Sleep(aMoment)

		h.wantPublished(t, "10.1.0.1")
		want := []string{
			"create EndpointSlice kubernetes", "create Endpoints kubernetes",
			"create Namespace default", "create Namespace kube-node-lease",
			"create Namespace kube-public", "create Namespace kube-system",
			"create Service kubernetes",
		}
		got := h.objects.writes()
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
		counts := map[string]int64{
			"namespaces": 4, "apiservers": 1, "ready_apiservers": 1, "endpoint_addresses": 1, "repairs": 7,
			"open_findings": 0, "pending_findings": 1, // there is no servicecidr
		}
		if diff := cmp.Diff(counts, h.Counts()); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}

		time.Sleep(10 * time.Minute)
		if got := len(h.objects.writes()); got != len(want) {
			t.Errorf("%d writes after ten quiet minutes, want still %d", got, len(want))
		}
	})
}

func TestService_DriftIsRepairedWithinTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		time.Sleep(aMoment)

		edit(h.objects, "Service kubernetes", func(s *corev1.Service) {
			s.Spec.Ports[0].TargetPort = intstr.FromInt32(1)
			s.Labels["team"] = "net"
		})
		h.objects.remove("EndpointSlice kubernetes")
		edit(h.objects, "Endpoints kubernetes", func(e *corev1.Endpoints) { e.Subsets[0].Addresses[0].IP = "192.0.2.1" })
		time.Sleep(10 * time.Second)

		h.wantPublished(t, "10.1.0.1")
		service, _ := h.objects.Service(t.Context())
		if service.Spec.Ports[0].TargetPort.IntValue() != 6443 || service.Labels["team"] != "net" {
			t.Errorf("service has target port %s and labels %v", service.Spec.Ports[0].TargetPort.String(), service.Labels)
		}
	})
}

func TestService_NamespaceIsBackWithinAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		time.Sleep(aMoment)
		h.objects.remove("Namespace kube-public")
		time.Sleep(time.Minute)
		if namespace, err := load[*corev1.Namespace](h.objects, "Namespace kube-public"); namespace == nil || err != nil {
			t.Errorf("kube-public = %v, %v, want it back", namespace, err)
		}
	})
}

func TestService_NeighboursComeAndGoAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		time.Sleep(aMoment)

		h.keys.put(neighbour("10.1.0.2"))
		synctest.Wait()
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")

		h.keys.drop("10.1.0.2")
		synctest.Wait()
		h.wantPublished(t, "10.1.0.1")
	})
}

func TestService_ServerThatFailsLeavesUnlessItIsTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		h.keys.put(neighbour("10.1.0.2"))
		time.Sleep(aMoment)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")

		h.prober.set(true)
		time.Sleep(2 * time.Second)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")
		time.Sleep(time.Second)
		h.wantPublished(t, "10.1.0.2")

		h.prober.set(false)
		time.Sleep(time.Second)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")

		h.keys.drop("10.1.0.2")
		h.prober.set(true)
		time.Sleep(time.Minute)
		h.wantPublished(t, "10.1.0.1")
		if status := h.statusOf(t, endpointsLoop); status.State != loop.Running {
			t.Errorf("loop = %+v, want it running: a server that is not ready is no failure of the loop", status)
		}
	})
}

func TestService_StopTakesTheOwnAddressOutUnderTheTerm(t *testing.T) {
	for name, test := range map[string]struct {
		neighbours []string
		want       []string
	}{
		"beside others":   {neighbours: []string{"10.1.0.2", "10.1.0.3"}, want: []string{"10.1.0.2", "10.1.0.3"}},
		"as the last one": {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t)
				h.start(t)
				for _, address := range test.neighbours {
					h.keys.put(neighbour(address))
				}
				time.Sleep(aMoment)
				h.wantPublished(t, append([]string{"10.1.0.1"}, test.want...)...)

				h.end(t)

				h.wantPublished(t, test.want...)
				if entry, found := h.keys.get("10.1.0.1"); found {
					t.Errorf("key is still there: %+v", entry)
				}
			})
		})
	}
}

func TestService_StopTakesTwentySecondsAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		time.Sleep(aMoment)
		h.keys.mu.Lock()
		h.keys.hang = true
		h.keys.mu.Unlock()
		time.Sleep(time.Minute)

		begun := time.Now()
		h.end(t)
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("stop took %s, want at most 20s", took)
		}
		h.wantPublished(t, "10.1.0.1")
	})
}

func TestService_StandbyProbesAndWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.candidate.Lose()
		h.keys.put(neighbour("10.1.0.2"))
		h.start(t)
		// A lost session writes no key either: it could not be bound to anything.
		time.Sleep(time.Minute)
		if got := h.objects.writes(); len(got) != 0 {
			t.Errorf("writes = %v, want none", got)
		}
		if status := h.statusOf(t, probeLoop); status.State != loop.Failing || status.LastError != errNoSession.Error() {
			t.Errorf("probe loop = %+v, want it failing for want of a session", status)
		}
		h.candidate.Regain()
		time.Sleep(2 * time.Second)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")

		repairs := h.Counts()["repairs"]
		h.candidate.Lose()
		synctest.Wait()
		if diff := cmp.Diff(map[string]int64{"repairs": repairs}, h.Counts()); diff != "" {
			t.Errorf("counts of a standby (-want +got):\n%s", diff)
		}
		h.end(t)
		// Without a term nothing was taken out; the next leader does it.
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")
	})
}

func TestService_FailedReadOfTheKeysTakesNothingAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		h.keys.put(neighbour("10.1.0.2"))
		time.Sleep(aMoment)

		h.keys.fail(fmt.Errorf("%w: no leader", apiserverscontroller.ErrUnavailable), nil)
		h.keys.drop("10.1.0.2")
		time.Sleep(time.Minute)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")
		if status := h.statusOf(t, endpointsLoop); status.State != loop.Failing {
			t.Errorf("loop = %+v, want it failing", status)
		}

		h.keys.fail(nil, nil)
		time.Sleep(10 * time.Second)
		h.wantPublished(t, "10.1.0.1")
		if status := h.statusOf(t, endpointsLoop); status.State != loop.Running {
			t.Errorf("loop = %+v, want it running", status)
		}
	})
}

func TestService_StaleKeyOfAnEarlierLifeIsRemovedBeforeTheFirstProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, "*", "-"+endpointsLoop)
		h.prober.set(true)
		h.keys.put(neighbour("10.1.0.1"))
		h.start(t)
		defer h.end(t)
		time.Sleep(aMoment)
		entry, _ := h.keys.get("10.1.0.1")
		if entry.Ready || entry.ReplicaID != self().ID {
			t.Errorf("key = %+v, want one of this life that is not ready", entry)
		}
	})
}

func TestService_AddressThatAnotherReplicaPublishesIsLeftToItAndReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		time.Sleep(aMoment)
		h.keys.put(neighbour("10.1.0.1"))
		time.Sleep(refreshInterval)
		if entry, _ := h.keys.get("10.1.0.1"); entry.ReplicaID != "other-1" {
			t.Errorf("key = %+v, want that of the other replica", entry)
		}
		if status := h.statusOf(t, probeLoop); status.State != loop.Failing {
			t.Errorf("probe loop = %+v, want it failing", status)
		}
	})
}

func TestService_QuietKeyIsWrittenOncePerRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		time.Sleep(10*refreshInterval + aMoment)
		h.keys.mu.Lock()
		puts := h.keys.puts
		h.keys.mu.Unlock()
		if puts != 11 {
			t.Errorf("%d writes of the key in %s, want 11", puts, 10*refreshInterval)
		}
	})
}

func TestService_ConflictIsPlannedAgainFromWhatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		interfered := false
		h.objects.before = func(_ context.Context, step baseline.Change) error {
			if step.Kind().Kind == "EndpointSlice" && step.Verb == baseline.Update && !interfered {
				interfered = true
				edit(h.objects, "EndpointSlice kubernetes", func(s *discoveryv1.EndpointSlice) { s.Labels["team"] = "net" })
			}
			return nil
		}
		h.start(t)
		defer h.end(t)
		time.Sleep(aMoment)
		h.keys.put(neighbour("10.1.0.2"))
		synctest.Wait()
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")
		slice, _ := load[*discoveryv1.EndpointSlice](h.objects, "EndpointSlice kubernetes")
		if !interfered || slice.Labels["team"] != "net" {
			t.Errorf("interfered = %t, labels = %v: what the other writer wrote must stay", interfered, slice.Labels)
		}
	})
}

func TestService_FightIsGivenUpUntilTheNextPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		attempts := 0
		h.objects.before = func(_ context.Context, step baseline.Change) error {
			if step.Kind().Kind == "Service" {
				attempts++
				return baselinecontroller.ErrConflict
			}
			return nil
		}
		h.start(t)
		defer h.end(t)
		synctest.Wait()
		if attempts != maxRounds {
			t.Errorf("%d attempts in the first pass, want %d", attempts, maxRounds)
		}
		if status := h.statusOf(t, serviceLoop); status.State != loop.Failing {
			t.Errorf("loop = %+v, want it failing", status)
		}
	})
}

func TestService_OneNamespaceThatIsRefusedHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.objects.before = func(_ context.Context, step baseline.Change) error {
			if step.Object.GetName() == "default" {
				return errors.New("forbidden")
			}
			return nil
		}
		h.start(t)
		defer h.end(t)
		synctest.Wait()
		existing, _ := h.objects.Namespaces(t.Context(), []string{"kube-node-lease", "kube-public", "kube-system"})
		if len(existing) != 3 {
			t.Errorf("%d of the other namespaces exist, want 3", len(existing))
		}
	})
}

func TestService_PanicCostsOnePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		panicked := false
		h.objects.before = func(_ context.Context, step baseline.Change) error {
			if step.Kind().Kind == "Service" && !panicked {
				panicked = true
				panic("out of order")
			}
			return nil
		}
		h.start(t)
		defer h.end(t)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if service, _ := h.objects.Service(t.Context()); !panicked || service == nil {
			t.Errorf("panicked = %t, service = %v, want the next pass to create it", panicked, service)
		}
	})
}

func TestDuty_BurstOfNudgesMakesOnePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passes := 0
		d := newDuty(time.Hour, func(context.Context, netip.Addr) ([]baseline.Change, error) {
			passes++
			return nil, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = d.run(ctx, func(error) {}) }()
		synctest.Wait()
		for range 100 {
			d.nudge()
		}
		synctest.Wait()
		if passes < 2 || passes > 3 {
			t.Errorf("%d passes, want the first and one or two for the burst", passes)
		}
	})
}

func TestDuty_AskOfAPassThatPanicsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDuty(time.Hour, func(context.Context, netip.Addr) ([]baseline.Change, error) { panic("out of order") })
		go func() {
			defer func() { _ = recover() }()
			_ = d.pass(t.Context(), <-d.requests)
		}()
		if _, err := d.ask(t.Context(), netip.Addr{}); !errors.Is(err, errAbandoned) {
			t.Errorf("ask = %v, want %v", err, errAbandoned)
		}
	})
}

func TestWait(t *testing.T) {
	for failures, want := range []time.Duration{
		10 * time.Second, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second,
	} {
		if got := wait(10*time.Second, failures); got != want {
			t.Errorf("wait after %d failures = %s, want %s", failures, got, want)
		}
	}
	if got := wait(time.Minute, 1000); got != time.Minute {
		t.Errorf("wait after 1000 failures = %s, want %s", got, time.Minute)
	}
}
