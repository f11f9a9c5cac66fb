package bootstrapsvc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/api"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiservers"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baselinecontroller"
)

// configured is the default configuration with a change.
func configured(edit func(*EndpointsConfig)) Config {
	cfg := DefaultConfig()
	edit(&cfg.Endpoints)
	return cfg
}

// wantFindings compares the reasons of what the last look at endpoints reports.
func (f *fixture) wantFindings(t *testing.T, want ...baseline.Reason) {
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
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestEndpoints_SilentServerIsOutInFifteenSecondsAndNotSooner(t *testing.T) {
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
	})
}

func TestEndpoints_FloorKeepsAServerThatIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.MinReady = 2 }))
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)
		f.prober.set(true)
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
		f.wantFindings(t, "APISERVER_KEPT")
		f.keys.put(readyPeer("10.1.0.3"))
		synctest.Wait()
		f.wantPublished(t, "10.1.0.2", "10.1.0.3")
	})
}

func TestEndpoints_CountKeepsWhoIsKilledAndLetsGoWhoStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.Reconciler, c.APIServerCount = "master-count", 3 }))
		f.start(t)
		for _, address := range []string{"10.1.0.2", "10.1.0.3"} {
			f.keys.put(readyPeer(address))
		}
		time.Sleep(moment)
		f.keys.drop("10.1.0.2") // its session has lapsed
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

func TestEndpoints_LastAddressIsKeptWhenToldTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.KeepLast = true }))
		f.start(t)
		time.Sleep(moment)
		f.end(t)
		f.wantPublished(t, "10.1.0.1")
	})
}

func TestEndpoints_NoneAreTouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.Reconciler = "none" }))
		f.start(t)
		time.Sleep(time.Minute)
		f.end(t)
		f.wantPublished(t)
		if service, _ := f.objects.Service(t.Context()); service == nil {
			t.Error("there is no service: the rest of the baseline is to be kept all the same")
		}
	})
}

func TestEndpoints_StaticNameIsFollowedAndItsFailureChangesNothing(t *testing.T) {
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
		f.wantPublished(t, "192.0.2.8", "192.0.2.9")

		f.resolver.set(errors.New("no such host"))
		time.Sleep(time.Minute)
		f.wantFindings(t, "STATIC_ADDRESS_UNRESOLVED")
		f.resolver.set(nil)
		time.Sleep(time.Minute)
		f.wantFindings(t, "STATIC_ADDRESS_UNRESOLVED")
		f.end(t)
		f.wantPublished(t, "192.0.2.8", "192.0.2.9") // a stop says nothing about a static address
	})
}

// A DNS that says nothing is no reason for a pass to fail, nor for a list to say nothing.
func TestEndpoints_DNSThatHangsIsReported(t *testing.T) {
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
				t.Errorf("look at endpoints within %v = %q, %v, time left %t; want what DNS does, and time left", timeout, found.Servers.Unresolved, err, ctx.Err() == nil)
			}
			cancel()
		}
		f.wantPublished(t, "192.0.2.7")
	})
}

func TestEndpoints_StaticAddressIsPublishedWhoeverReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureWith(t, configured(func(c *EndpointsConfig) { c.Reconciler, c.StaticAddress = "static", "192.0.2.7" }))
		f.prober.set(true)
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(time.Minute)
		f.wantPublished(t, "192.0.2.7")
		f.wantFindings(t)
	})
}

// renewed is a key as a kube-apiserver that lives keeps it.
func masterLease(address string) apiservers.MasterLease {
	return apiservers.MasterLease{
		Key: "/registry/masterleases/" + address, Address: netip.MustParseAddr(address), Leased: true, Alive: true, TTL: 15 * time.Second,
	}
}

func newAdoptingFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureWith(t, configured(func(c *EndpointsConfig) { c.AdoptMasterLeases = true }))
}

func TestAdoption_ServersWithoutASidecarAreKnownByTheirOwnKeys(t *testing.T) {
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
		f.wantFindings(t, "APISERVER_KEY_UNREADABLE", "APISERVER_KEY_UNLEASED", "APISERVER_KEY_DEAD")

		// A key that goes takes its address along, and a sidecar's word counts before it.
		f.masterLeases.set(masterLease("10.1.0.1"))
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1")
		f.masterLeases.set(masterLease("10.1.0.1"), masterLease("10.1.0.3"))
		f.keys.put(notReadyPeer("10.1.0.3"))
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1")
		f.keys.drop("10.1.0.3")
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.3")
	})
}

func TestAdoption_ServerThatRenewsAndDoesNotAnswerIsOut(t *testing.T) {
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
		f.wantFindings(t, "APISERVER_SILENT")
		f.adopted.hang(false)
		time.Sleep(5 * time.Second)
		f.wantPublished(t, "10.1.0.1", "10.1.0.2")
	})
}

// The last reconciler of kube-apiserver's own empties the endpoints when it stops.
func TestEndpoints_WhatAnotherReconcilerTakesOutIsBackAtOnce(t *testing.T) {
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

		// Whoever never gives in is not fought at full speed.
		before := len(f.objects.writes())
		for range 100 {
			empty()
			time.Sleep(moment)
		}
		time.Sleep(2 * time.Second)
		f.wantPublished(t, "10.1.0.1")
		if wrote := len(f.objects.writes()) - before; wrote > 40 {
			t.Errorf("%d writes in twelve seconds of a fight, want two objects each second or so", wrote)
		}
	})
}

func TestAdoption_FailedReadTakesNothingAway(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		f.keys.strip("10.1.0.2")
		time.Sleep(time.Minute)
		f.wantPublished(t, "10.1.0.1")
		f.wantFindings(t, "APISERVER_KEY_UNLEASED")
	})
}

// wantConceded looks a second after what was done.
func (f *fixture) wantConceded(t *testing.T, when string, want bool) {
	t.Helper()
	time.Sleep(time.Second)
	if got := f.candidate.Conceded(); (got != nil) != want {
		t.Errorf("%s: conceded = %v, want %t", when, got, want)
	}
}

// sick is a neighbour that is not ready.
func notReadyPeer(address string) apiserverscontroller.Entry {
	entry := readyPeer(address)
	entry.Ready = false
	return entry
}

func TestGiveWay_WhileTheOwnServerIsDownAndAnotherIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		f.prober.set(true)
		time.Sleep(4 * time.Second)
		f.wantConceded(t, "nobody else is ready", false)
		f.keys.put(readyPeer("10.1.0.2"))
		f.wantConceded(t, "another is ready", true)
		f.keys.put(notReadyPeer("10.1.0.2"))
		f.wantConceded(t, "the other is not ready any more", false)
		f.keys.put(readyPeer("10.1.0.2"))
		f.wantConceded(t, "the other is back", true)
		f.keys.fail(errors.New("etcd: no leader"), nil)
		f.wantConceded(t, "nothing is known of the other", true)
		f.keys.fail(nil, nil)
		f.prober.set(false)
		f.wantConceded(t, "the own one is back for a moment", true)
		time.Sleep(30 * time.Second)
		f.wantConceded(t, "the own one is back", false)
	})
}

func TestGiveWay_ServerThatComesAndGoesDoesNotTakeTheTermAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		time.Sleep(moment)
		f.prober.set(true)
		time.Sleep(4 * time.Second)
		for range 20 {
			f.wantConceded(t, "down", true)
			f.prober.set(false)
			time.Sleep(4 * time.Second)
			f.wantConceded(t, "up", true)
			f.prober.set(true)
			time.Sleep(4 * time.Second)
		}
		f.prober.set(false)
		f.wantConceded(t, "up, while another is ready", true)
		f.keys.put(notReadyPeer("10.1.0.2"))
		f.wantConceded(t, "up, while no other is ready", false)
	})
}

// What a restore left behind is nobody to give way to.
func TestGiveWay_NotToAKeyWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		f.keys.put(readyPeer("10.1.0.2"))
		f.keys.strip("10.1.0.2")
		time.Sleep(moment)
		f.prober.set(true)
		time.Sleep(10 * time.Second)
		f.wantConceded(t, "nobody lives beside", false)
	})
}

func TestGiveWay_WithoutAnAddressOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.start(t)
		defer f.end(t)
		time.Sleep(moment)
		f.keys.put(readyPeer("10.1.0.1")) // another sidecar was given the same address
		f.prober.set(true)
		time.Sleep(10 * time.Second)
		f.wantConceded(t, "the address is taken by one that is ready", true)
	})
}

// A port of the Service leads somewhere only if the endpoints have one of its name: there it is the target port.
func TestService_ExtraPortsAreThoseOfTheEndpointsToo(t *testing.T) {
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
