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

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// configured is the default configuration with a change.
func configured(edit func(*EndpointsConfig)) Config {
	cfg := DefaultConfig()
	edit(&cfg.Endpoints)
	return cfg
}

// wantReports compares the reasons of the reports of a new observation.
func (f *fixture) wantReports(t *testing.T, want ...baseline.Reason) {
	t.Helper()
	found, err := f.apiservers.ObserveEndpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []baseline.Reason
	for _, c := range found.Plan.Changes {
		if !c.IsWrite() {
			got = append(got, c.Reason)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
}

func TestEndpoints_SilentServerIsRemovedWithinFifteenSecondsAndNotAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)
		f.prober.hang(true)
		time.Sleep(8 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		time.Sleep(6 * time.Second)
		f.wantPublished(t, "10.1.0.2")
		f.prober.hang(false)
		time.Sleep(4 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		of := func(action decisions.Action) (own []string) {
			for _, text := range testkit.Decisions(f.decisions, action) {
				if strings.HasSuffix(text, " 10.1.0.1") {
					own = append(own, text)
				}
			}
			return own
		}
		if added, removed := of(decisions.APIServerAdded), of(decisions.APIServerRemoved); len(added) != 2 || len(removed) != 1 {
			t.Errorf("decisions %v and %v, want that the own address was added, removed and added", added, removed)
		}
		if written := testkit.Decisions(f.decisions, decisions.BaselineWritten); !slices.Contains(written, "BASELINE_WRITTEN kubernetes") {
			t.Errorf("written objects: %v", written)
		}
	})
}

func TestEndpoints_FloorKeepsAServerThatIsNotReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.MinReady = 2 }))
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)
		f.prober.set(true)
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		f.wantReports(t, "APISERVER_KEPT")
		f.keys.put(readyPeer("10.1.0.3"))
		synctest.Wait()
		f.wantPublished(t, "10.1.0.2", "10.1.0.3")
	})
}

// A key that is gone proves nothing about the server: probes decide.
func TestEndpoints_ServerWithoutAKeyStaysWhileItsProbesSucceed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)
		f.keys.drop("10.1.0.2")
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		f.wantReports(t, "APISERVER_KEPT")
		f.adopted.set(true)
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2") // it answered before, so one failure is not enough
		time.Sleep(3 * time.Second)
		f.wantPublished(t, "10.1.0.1")
		f.adopted.set(false)
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1") // an address that nothing reports does not come back
	})
}

// The first sidecar of a cluster finds the endpoints that kube-apiserver's own reconciler
// published.
func TestEndpoints_FirstSidecarDoesNotShrinkThemToItself(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		down bool
		want []string
	}{
		"the other servers answer":   {want: []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"}},
		"the other servers are gone": {down: true, want: []string{"10.1.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.publish("10.1.0.1", "10.1.0.2", "10.1.0.3")
				f.adopted.set(test.down)
				f.start(t)
				defer f.end(t)
				time.Sleep(time.Minute)
				f.wantPublished(t, test.want...)
			})
		})
	}
}

// Another program adds an address that is no server. It was not published when the term began.
func TestEndpoints_ForeignAddressIsRemovedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(time.Minute)
		f.publish("10.1.0.1", "10.1.0.9")
		time.Sleep(moment)
		f.wantPublished(t, "10.1.0.1")
	})
}

// Three servers are published, and only one key is left.
func TestEndpoints_FloorCountsServersWithoutAKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.MinReady = 3 }))
		f.start(t)
		defer f.end(t)
		for _, address := range []string{"10.1.0.2", "10.1.0.3"} {
			f.keys.put(readyPeer(address))
		}
		time.Sleep(moment)
		f.adopted.set(true)
		for _, address := range []string{"10.1.0.2", "10.1.0.3"} {
			f.keys.drop(address)
		}
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2", "10.1.0.3")
		stopped := readyPeer("10.1.0.3")
		stopped.Ready, stopped.Left = false, true
		f.keys.put(stopped)
		synctest.Wait()
		f.wantPublished(t, "10.1.0.1", "10.1.0.2") // a server that leaves in order is no failure
	})
}

func TestEndpoints_CountKeepsAKilledServerAndRemovesAStoppedOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.Reconciler, c.APIServerCount = "master-count", 3 }))
		f.start(t)
		for _, address := range []string{"10.1.0.2", "10.1.0.3"} {
			f.keys.put(readyPeer(address))
		}
		time.Sleep(moment)
		f.keys.drop("10.1.0.2") // its session has expired
		stopped := readyPeer("10.1.0.3")
		stopped.Ready, stopped.Left = false, true
		f.keys.put(stopped)
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")

		f.end(t)
		if entry, found := f.keys.get("10.1.0.1"); !found || !entry.Left || entry.Ready {
			t.Errorf("key = %+v, %t, want one that says that the server left", entry, found)
		}
	})
}

func TestEndpoints_LastAddressStaysWithKeepLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.KeepLast = true }))
		f.start(t)
		time.Sleep(moment)
		f.end(t)
		f.wantPublished(t, "10.1.0.1")
	})
}

// With --keep-ready-address, a stop of bootstrapsvc is no stop of a kube-apiserver that is ready,
// or that does not answer in time. One that says that it is not ready leaves with bootstrapsvc.
func TestEndpoints_KeepReadyKeepsAServerThatMayServe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(*fixture)
		keep   bool
		stays  bool
	}{
		"ready":                    {before: func(*fixture) {}, keep: true, stays: true},
		"ready, without the flag":  {before: func(*fixture) {}},
		"does not answer any more": {before: func(f *fixture) { f.prober.hang(true) }, keep: true, stays: true},
		"stops at the same time":   {before: func(f *fixture) { f.prober.set(true) }, keep: true},
		"not ready for long": {before: func(f *fixture) {
			f.prober.set(true)
			time.Sleep(time.Minute)
			f.prober.set(false)
		}, keep: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixtureWith(t, configured(func(cfg *EndpointsConfig) { cfg.KeepReady = c.keep }))
				f.start(t)
				f.keys.put(readyPeer("10.1.0.2"))
				time.Sleep(moment)
				f.wantPublished(t, "10.1.0.1", "10.1.0.2")
				c.before(f)
				f.end(t)
				want := []string{"10.1.0.2"}
				if c.stays {
					want = []string{"10.1.0.1", "10.1.0.2"}
				}
				f.wantPublished(t, want...)
				if entry, found := f.keys.get("10.1.0.1"); !found || entry.Left == c.stays {
					t.Errorf("key = %+v, %t, want it marked as left: %t", entry, found, !c.stays)
				}
			})
		})
	}
}

// kube-apiserver stops: it says at once that it is not ready, and serves until its
// --shutdown-delay-duration ends. Its address leaves before that.
func TestEndpoints_AddressLeavesWithinTheShutdownDelay(t *testing.T) {
	t.Parallel()
	const shutdownDelay = 10 * time.Second // of static-pods/kube-apiserver
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(cfg *EndpointsConfig) { cfg.KeepReady = true }))
		f.start(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		f.prober.set(true)
		begun := time.Now()
		for len(f.objects.published()) == 2 {
			if time.Since(begun) > shutdownDelay {
				t.Fatalf("the address is still published %s after /readyz failed", shutdownDelay)
			}
			time.Sleep(moment)
		}
		f.wantPublished(t, "10.1.0.2")
		if took := time.Since(begun); took > shutdownDelay/2 {
			t.Errorf("the address left after %s, want half of the delay for a slow etcd and kube-apiserver", took)
		}
		f.end(t)
	})
}

// Both processes of a machine stop at once. The replica leaves its key to expire, and the leader on
// another machine removes the address before kube-apiserver refuses.
func TestEndpoints_LeaderRemovesAServerThatStopsAfterItsSidecar(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(cfg *EndpointsConfig) { cfg.KeepReady = true }))
		f.start(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		f.keys.drop("10.1.0.2") // as kept: without a mark
		time.Sleep(10 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2") // a restart of the sidecar takes seconds
		f.adopted.set(true)
		time.Sleep(5 * time.Second)
		f.wantPublished(t, "10.1.0.1")
		f.end(t)
	})
}

func TestEndpoints_ReconcilerNoneWritesNoEndpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.Reconciler = "none" }))
		f.start(t)
		time.Sleep(time.Minute)
		f.end(t)
		f.wantPublished(t)
		if service, _ := f.objects.Service(t.Context()); service == nil {
			t.Error("there is no service: the rest of the baseline must exist")
		}
	})
}

func TestEndpoints_StaticNameIsResolvedAgainAndAFailureChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) {
			c.Reconciler, c.StaticAddress, c.StaticPort = "static", "api.example", 443
		}))
		f.resolver.set(nil, "192.0.2.7", "2001:db8::7")
		f.start(t)
		time.Sleep(moment)
		f.wantPublished(t, "192.0.2.7")
		if slice, _ := load[*discoveryv1.EndpointSlice](f.objects, "EndpointSlice kubernetes"); *slice.Ports[0].Port != 443 {
			t.Errorf("port = %d, want that of the static address", *slice.Ports[0].Port)
		}

		f.resolver.set(nil, "192.0.2.8", "192.0.2.9")
		time.Sleep(10 * time.Second)
		f.wantPublished(t, "192.0.2.7", "192.0.2.8", "192.0.2.9") // the old one may come again
		time.Sleep(time.Minute)
		f.wantPublished(t, "192.0.2.8", "192.0.2.9")

		f.resolver.set(errors.New("no such host"))
		time.Sleep(time.Minute)
		f.wantReports(t, "STATIC_ADDRESS_UNRESOLVED")
		f.resolver.set(nil)
		time.Sleep(time.Minute)
		f.wantReports(t, "STATIC_ADDRESS_UNRESOLVED")
		f.end(t)
		f.wantPublished(t, "192.0.2.8", "192.0.2.9") // a static address stays at a stop
	})
}

// Each answer has another part of the addresses.
func TestEndpoints_NameWithRotatingAnswersChangesNoEndpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.Reconciler, c.StaticAddress = "static", "api.example" }))
		answers := [][]string{{"192.0.2.7"}, {"192.0.2.8", "192.0.2.9"}, {"192.0.2.7", "192.0.2.9"}}
		f.resolver.set(nil, answers[0]...)
		f.start(t)
		defer f.end(t)
		turn := func(n int) {
			time.Sleep(10 * time.Second)
			f.resolver.set(nil, answers[n%len(answers)]...)
		}
		for n := range 4 {
			turn(n)
		}
		f.wantPublished(t, "192.0.2.7", "192.0.2.8", "192.0.2.9")
		before := f.objects.writes()
		for n := range 30 {
			turn(n)
			for range 10 { // requests between the regular lookups
				if _, err := f.apiservers.ListServers(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
		if after := f.objects.writes(); !slices.Equal(before, after) {
			t.Errorf("written %v", after[len(before):])
		}
		f.wantPublished(t, "192.0.2.7", "192.0.2.8", "192.0.2.9")
	})
}

// A DNS that does not answer must not fail a pass or a list.
func TestEndpoints_DNSThatHangsIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.Reconciler, c.StaticAddress = "static", "api.example" }))
		f.resolver.set(nil, "192.0.2.7")
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		f.resolver.hang()
		for _, timeout := range []time.Duration{api.ReadTimeout, baselinecontroller.PassTimeout} {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			found, err := f.apiservers.ObserveEndpoints(ctx)
			if err != nil || ctx.Err() != nil || found.Servers.Unresolved == "" {
				t.Errorf("observation within %v = %q, %v, time left %t; want the failure of DNS, and time left", timeout, found.Servers.Unresolved, err, ctx.Err() == nil)
			}
			cancel()
		}
		f.wantPublished(t, "192.0.2.7")
	})
}

func TestEndpoints_StaticAddressIsPublishedInsteadOfServersThatReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.Reconciler, c.StaticAddress = "static", "192.0.2.7" }))
		f.prober.set(true)
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(time.Minute)
		f.wantPublished(t, "192.0.2.7")
		f.wantReports(t)
	})
}

// masterLease is the master lease of a live kube-apiserver.
func masterLease(address string) apiservers.MasterLease {
	return apiservers.MasterLease{
		Key: "/registry/masterleases/" + address, Address: netip.MustParseAddr(address), Leased: true, Alive: true, TTL: 15 * time.Second,
	}
}

func newAdoptingFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureWith(t, configured(func(c *EndpointsConfig) { c.AdoptMasterLeases = true }))
}

func TestAdoption_ServersWithoutASidecarAreKnownFromMasterLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newAdoptingFixture(t)
		unleased, dead := masterLease("10.1.0.8"), masterLease("10.1.0.9")
		unleased.Leased, unleased.Alive, dead.Alive = false, false, false
		unreadable := apiservers.MasterLease{Key: "/registry/masterleases/x", Leased: true, Alive: true, Unreadable: "the value names no address"}
		f.masterLeases.set(unreadable, masterLease("10.1.0.1"), masterLease("10.1.0.2"), unleased, dead)
		f.start(t)
		defer f.end(t)
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		f.wantReports(t, "APISERVER_KEY_UNREADABLE", "APISERVER_KEY_UNLEASED", "APISERVER_KEY_DEAD")

		// The address leaves after its key once its probes fail, and the key of a sidecar counts
		// before the master lease.
		f.masterLeases.set(masterLease("10.1.0.1"))
		f.adopted.set(true)
		time.Sleep(12 * time.Second)
		f.wantPublished(t, "10.1.0.1")
		f.adopted.set(false)
		f.masterLeases.set(masterLease("10.1.0.1"), masterLease("10.1.0.3"))
		f.keys.put(notReadyPeer("10.1.0.3"))
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1")
		f.keys.drop("10.1.0.3")
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.3")
	})
}

func TestAdoption_SilentServerWithALiveLeaseIsRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newAdoptingFixture(t)
		f.masterLeases.set(masterLease("10.1.0.2"))
		f.start(t)
		defer f.end(t)
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		f.adopted.hang(true)
		time.Sleep(15 * time.Second)
		f.wantPublished(t, "10.1.0.1")
		f.wantReports(t, "APISERVER_SILENT")
		f.adopted.hang(false)
		time.Sleep(5 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
	})
}

// kube-apiserver's own reconciler empties the endpoints when the last server stops.
func TestEndpoints_RemovedAddressesAreRestoredAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(15 * time.Second)
		empty := func() {
			edit(f.objects, "Endpoints kubernetes", func(e *corev1.Endpoints) { e.Subsets = nil })
			edit(f.objects, "EndpointSlice kubernetes", func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil })
		}
		empty()
		synctest.Wait()
		f.wantPublished(t, "10.1.0.1")

		// A writer that never stops is answered at a limited rate.
		before := len(f.objects.writes())
		for range 100 {
			empty()
			time.Sleep(moment)
		}
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1")
		if wrote := len(f.objects.writes()) - before; wrote > 40 {
			t.Errorf("%d writes in twelve seconds of contention, want about two objects each second", wrote)
		}
	})
}

func TestAdoption_FailedReadRemovesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newAdoptingFixture(t)
		f.masterLeases.set(masterLease("10.1.0.2"))
		f.start(t)
		defer f.end(t)
		time.Sleep(2 * time.Second)
		f.masterLeases.mu.Lock()
		f.masterLeases.keys, f.masterLeases.err = nil, fmt.Errorf("%w: no leader", apiserverscontroller.ErrUnavailable)
		f.masterLeases.mu.Unlock()
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
	})
}

func TestEndpoints_KeyWithoutALeaseIsReportedAndLeftOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		f.keys.strip("10.1.0.2")
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1")
		f.wantReports(t, "APISERVER_KEY_UNLEASED")
	})
}

// wantRank waits a second and compares: whether the replica yields leadership, and whether it
// prefers other replicas.
func (f *fixture) wantRank(t *testing.T, when string, yields, prefers bool) {
	t.Helper()
	time.Sleep(time.Second)
	yield, prefer := f.candidate.YieldReason(), f.candidate.PreferOthersReason()
	if (yield != nil) != yields || (prefer != nil) != prefers {
		t.Errorf("%s: yields for %v, want one: %t; prefers others for %v, want one: %t", when, yield, yields, prefer, prefers)
	}
}

// notReadyPeer is the key of a kube-apiserver beside another replica that is not ready.
func notReadyPeer(address string) apiserverscontroller.Entry {
	entry := readyPeer(address)
	entry.Ready = false
	return entry
}

func TestRank_YieldsWhileTheOwnServerIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		f.wantRank(t, "the own server is ready from the start", false, false)
		f.prober.set(true)
		time.Sleep(4 * time.Second)
		f.wantRank(t, "the own server is down", true, false)
		f.keys.fail(errors.New("etcd: no leader"), errors.New("etcd: no leader"))
		f.prober.set(false)
		time.Sleep(4 * time.Second)
		f.wantRank(t, "the own server is back for a moment, and etcd does not answer", false, true)
		f.keys.fail(nil, nil)
		time.Sleep(30 * time.Second)
		f.wantRank(t, "the own server is back", false, false)
	})
}

// A server that flaps does not take the term back each time.
func TestRank_FlappingServerPrefersOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		f.prober.set(true)
		time.Sleep(4 * time.Second)
		for range 20 {
			f.wantRank(t, "down", true, false)
			f.prober.set(false)
			time.Sleep(4 * time.Second)
			f.wantRank(t, "up", false, true)
			f.prober.set(true)
			time.Sleep(4 * time.Second)
		}
	})
}

func TestRank_WithATakenAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		f.keys.put(readyPeer("10.1.0.1")) // another sidecar was given the same address
		f.prober.set(true)
		time.Sleep(10 * time.Second)
		f.wantRank(t, "a ready server has the address", true, false)
	})
}

// A port of the Service works only if the endpoints have a port of the same name, with the target
// port.
func TestService_ExtraPortsAreInTheEndpointsToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.ExtraPorts = []string{"konnectivity:8132:8091"}
		f := newFixtureWith(t, cfg)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)

		service, err := f.objects.Service(t.Context())
		if err != nil || service == nil {
			t.Fatalf("service = %v, %v", service, err)
		}
		endpoints, err := f.objects.Endpoints(t.Context())
		if err != nil || endpoints == nil {
			t.Fatalf("endpoints = %v, %v", endpoints, err)
		}
		published, err := f.objects.EndpointSlices(t.Context())
		if err != nil || len(published) != 1 {
			t.Fatalf("slices = %v, %v", published, err)
		}
		want := []string{"https 6443/TCP", "konnectivity 8091/TCP"}
		var targets, subsets, slices []string
		for _, port := range service.Spec.Ports {
			targets = append(targets, fmt.Sprintf("%s %s/%s", port.Name, port.TargetPort.String(), port.Protocol))
		}
		for _, port := range endpoints.Subsets[0].Ports {
			subsets = append(subsets, fmt.Sprintf("%s %d/%s", port.Name, port.Port, port.Protocol))
		}
		for _, port := range published[0].Ports {
			slices = append(slices, fmt.Sprintf("%s %d/%s", *port.Name, *port.Port, *port.Protocol))
		}
		for what, got := range map[string][]string{"service": targets, "endpoints": subsets, "slice": slices} {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("ports of the %s (-want +got):\n%s", what, diff)
			}
		}
		written := len(f.objects.writes())
		time.Sleep(100 * time.Second)
		if again := len(f.objects.writes()); again != written {
			t.Errorf("%d writes after nothing changed", again-written)
		}
	})
}

// A right that is missing for one of the two objects, or a read of it that hangs, does not stop the
// other one.
func TestEndpoints_OneObjectDoesNotStopTheOther(t *testing.T) {
	t.Parallel()
	for unread, object := range map[string]string{
		"Endpoints kubernetes": "EndpointSlice kubernetes", "EndpointSlice kubernetes": "Endpoints kubernetes",
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			f.start(t)
			defer f.end(t)
			time.Sleep(moment)
			f.objects.failReadsOf(unread, errForbidden)
			f.keys.put(readyPeer("10.1.0.2"))
			time.Sleep(moment)
			if got, want := f.objects.publishedIn(object), []string{"10.1.0.1", "10.1.0.2"}; !slices.Equal(got, want) {
				t.Errorf("%s has %v while %s cannot be read, want %v", object, got, unread, want)
			}
			if status := f.statusOf(t, "kubernetes-endpoints"); !strings.Contains(fmt.Sprintf("%+v", status), errForbidden.Error()) {
				t.Errorf("loop = %+v, want the cause", status)
			}
			f.objects.failReadsOf(unread, nil)
			time.Sleep(20 * time.Second)
			f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		})
	}
}

// Each write of the slice hangs for the whole pass.
func TestEndpoints_WriteThatHangsDoesNotStopTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		f.objects.beforeApply(func(ctx context.Context, step baseline.Change) error {
			if step.Kind().Kind == "EndpointSlice" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)
		if got, want := f.objects.publishedIn("Endpoints kubernetes"), []string{"10.1.0.1", "10.1.0.2"}; !slices.Equal(got, want) {
			t.Errorf("the Endpoints object has %v while the slice cannot be written, want %v", got, want)
		}
		f.objects.beforeApply(nil)
		time.Sleep(20 * time.Second)
	})
}
