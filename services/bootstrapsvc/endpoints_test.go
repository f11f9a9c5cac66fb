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

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

// configured is the default configuration with a change.
func configured(edit func(*EndpointsConfig)) Config {
	cfg := DefaultConfig()
	edit(&cfg.Endpoints)
	return cfg
}

// wantFindings compares the reasons of what the last look at endpoints reports.
func (h *house) wantFindings(t *testing.T, want ...baseline.Reason) {
	t.Helper()
	found, err := h.surveyor.endpoints(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []baseline.Reason
	for _, c := range found.plan.Changes {
		if !c.Writes() {
			got = append(got, c.Reason)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestEndpoints_SilentServerIsOutInFifteenSecondsAndNotSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		h.keys.put(neighbour("10.1.0.2"))
		time.Sleep(aMoment)
		h.prober.hang(true)
		time.Sleep(8 * time.Second)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")
		time.Sleep(6 * time.Second)
		h.wantPublished(t, "10.1.0.2")
		h.prober.hang(false)
		time.Sleep(4 * time.Second)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")
	})
}

func TestEndpoints_FloorKeepsAServerThatIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouseOf(t, configured(func(c *EndpointsConfig) { c.MinReady = 2 }))
		h.start(t)
		defer h.end(t)
		h.keys.put(neighbour("10.1.0.2"))
		time.Sleep(aMoment)
		h.prober.set(true)
		time.Sleep(time.Minute)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")
		h.wantFindings(t, "APISERVER_KEPT")
		h.keys.put(neighbour("10.1.0.3"))
		synctest.Wait()
		h.wantPublished(t, "10.1.0.2", "10.1.0.3")
	})
}

func TestEndpoints_CountKeepsWhoIsKilledAndLetsGoWhoStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouseOf(t, configured(func(c *EndpointsConfig) { c.Reconciler, c.APIServerCount = "master-count", 3 }))
		h.start(t)
		for _, address := range []string{"10.1.0.2", "10.1.0.3"} {
			h.keys.put(neighbour(address))
		}
		time.Sleep(aMoment)
		h.keys.drop("10.1.0.2") // its session has lapsed
		stopped := neighbour("10.1.0.3")
		stopped.Ready, stopped.Left = false, true
		h.keys.put(stopped)
		time.Sleep(time.Minute)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")

		h.end(t)
		if entry, found := h.keys.get("10.1.0.1"); !found || !entry.Left || entry.Ready {
			t.Errorf("key = %+v, %t, want one that says that the server left", entry, found)
		}
	})
}

func TestEndpoints_LastAddressIsKeptWhenToldTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouseOf(t, configured(func(c *EndpointsConfig) { c.KeepLast = true }))
		h.start(t)
		time.Sleep(aMoment)
		h.end(t)
		h.wantPublished(t, "10.1.0.1")
	})
}

func TestEndpoints_NoneAreTouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouseOf(t, configured(func(c *EndpointsConfig) { c.Reconciler = "none" }))
		h.start(t)
		time.Sleep(time.Minute)
		h.end(t)
		h.wantPublished(t)
		if service, _ := h.objects.Service(t.Context()); service == nil {
			t.Error("there is no service: the rest of the baseline is to be kept all the same")
		}
	})
}

func TestEndpoints_StaticNameIsFollowedAndItsFailureChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouseOf(t, configured(func(c *EndpointsConfig) {
			c.Reconciler, c.StaticAddress, c.StaticPort = "static", "api.example", 443
		}))
		h.names.set(nil, "192.0.2.7", "2001:db8::7")
		h.start(t)
		time.Sleep(aMoment)
		h.wantPublished(t, "192.0.2.7")
		if slice, _ := load[*discoveryv1.EndpointSlice](h.objects, "EndpointSlice kubernetes"); *slice.Ports[0].Port != 443 {
			t.Errorf("port = %d, want that of the static address", *slice.Ports[0].Port)
		}

		h.names.set(nil, "192.0.2.8", "192.0.2.9")
		time.Sleep(10 * time.Second)
		h.wantPublished(t, "192.0.2.8", "192.0.2.9")

		h.names.set(errors.New("no such host"))
		time.Sleep(time.Minute)
		h.wantFindings(t, "STATIC_ADDRESS_UNRESOLVED")
		h.names.set(nil)
		time.Sleep(time.Minute)
		h.wantFindings(t, "STATIC_ADDRESS_UNRESOLVED")
		h.end(t)
		h.wantPublished(t, "192.0.2.8", "192.0.2.9") // a stop says nothing about a static address
	})
}

// A DNS that says nothing is no reason for a pass to fail, nor for a list to say nothing.
func TestEndpoints_DNSThatHangsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouseOf(t, configured(func(c *EndpointsConfig) { c.Reconciler, c.StaticAddress = "static", "api.example" }))
		h.names.set(nil, "192.0.2.7")
		h.start(t)
		defer h.end(t)
		time.Sleep(aMoment)
		h.names.hang()
		for _, timeout := range []time.Duration{readTimeout, passTimeout} {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			found, err := h.surveyor.endpoints(ctx, nil)
			if err != nil || ctx.Err() != nil || found.roll.unresolved == "" {
				t.Errorf("look at endpoints within %v = %q, %v, time left %t; want what DNS does, and time left", timeout, found.roll.unresolved, err, ctx.Err() == nil)
			}
			cancel()
		}
		h.wantPublished(t, "192.0.2.7")
	})
}

func TestEndpoints_StaticAddressIsPublishedWhoeverReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouseOf(t, configured(func(c *EndpointsConfig) { c.Reconciler, c.StaticAddress = "static", "192.0.2.7" }))
		h.prober.set(true)
		h.start(t)
		defer h.end(t)
		h.keys.put(neighbour("10.1.0.2"))
		time.Sleep(time.Minute)
		h.wantPublished(t, "192.0.2.7")
		h.wantFindings(t)
	})
}

// renewed is a key as a kube-apiserver that lives keeps it.
func renewed(address string) apiserverscontroller.MasterLease {
	return apiserverscontroller.MasterLease{
		Key: "/registry/masterleases/" + address, Address: netip.MustParseAddr(address), Leased: true, Alive: true, TTL: 15 * time.Second,
	}
}

func adopting(t *testing.T) *house {
	t.Helper()
	return newHouseOf(t, configured(func(c *EndpointsConfig) { c.AdoptMasterLeases = true }))
}

func TestAdoption_ServersWithoutASidecarAreKnownByTheirOwnKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := adopting(t)
		unleased, dead := renewed("10.1.0.8"), renewed("10.1.0.9")
		unleased.Leased, unleased.Alive, dead.Alive = false, false, false
		unreadable := apiserverscontroller.MasterLease{Key: "/registry/masterleases/x", Leased: true, Alive: true, Unreadable: "the value names no address"}
		h.leases.set(unreadable, renewed("10.1.0.1"), renewed("10.1.0.2"), unleased, dead)
		h.start(t)
		defer h.end(t)
		time.Sleep(2 * time.Second)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")
		h.wantFindings(t, "APISERVER_KEY_UNREADABLE", "APISERVER_KEY_UNLEASED", "APISERVER_KEY_DEAD")

		// A key that goes takes its address along, and a sidecar's word counts before it.
		h.leases.set(renewed("10.1.0.1"))
		time.Sleep(2 * time.Second)
		h.wantPublished(t, "10.1.0.1")
		h.leases.set(renewed("10.1.0.1"), renewed("10.1.0.3"))
		h.keys.put(sick("10.1.0.3"))
		time.Sleep(2 * time.Second)
		h.wantPublished(t, "10.1.0.1")
		h.keys.drop("10.1.0.3")
		time.Sleep(2 * time.Second)
		h.wantPublished(t, "10.1.0.1", "10.1.0.3")
	})
}

func TestAdoption_ServerThatRenewsAndDoesNotAnswerIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := adopting(t)
		h.leases.set(renewed("10.1.0.2"))
		h.start(t)
		defer h.end(t)
		time.Sleep(2 * time.Second)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")
		h.others.hang(true)
		time.Sleep(15 * time.Second)
		h.wantPublished(t, "10.1.0.1")
		h.wantFindings(t, "APISERVER_SILENT")
		h.others.hang(false)
		time.Sleep(5 * time.Second)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")
	})
}

// The last reconciler of kube-apiserver's own empties the endpoints when it stops.
func TestEndpoints_WhatAnotherReconcilerTakesOutIsBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		time.Sleep(15 * time.Second)
		empty := func() {
			edit(h.objects, "Endpoints kubernetes", func(e *corev1.Endpoints) { e.Subsets = nil })
			edit(h.objects, "EndpointSlice kubernetes", func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil })
		}
		empty()
		synctest.Wait()
		h.wantPublished(t, "10.1.0.1")

		// Whoever never gives in is not fought at full speed.
		before := len(h.objects.writes())
		for range 100 {
			empty()
			time.Sleep(aMoment)
		}
		time.Sleep(2 * time.Second)
		h.wantPublished(t, "10.1.0.1")
		if wrote := len(h.objects.writes()) - before; wrote > 40 {
			t.Errorf("%d writes in twelve seconds of a fight, want two objects each second or so", wrote)
		}
	})
}

func TestAdoption_FailedReadTakesNothingAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := adopting(t)
		h.leases.set(renewed("10.1.0.2"))
		h.start(t)
		defer h.end(t)
		time.Sleep(2 * time.Second)
		h.leases.mu.Lock()
		h.leases.keys, h.leases.err = nil, fmt.Errorf("%w: no leader", apiserverscontroller.ErrUnavailable)
		h.leases.mu.Unlock()
		time.Sleep(time.Minute)
		h.wantPublished(t, "10.1.0.1", "10.1.0.2")
	})
}

func TestEndpoints_KeyWithoutALeaseIsReportedAndLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		h.keys.put(neighbour("10.1.0.2"))
		h.keys.strip("10.1.0.2")
		time.Sleep(time.Minute)
		h.wantPublished(t, "10.1.0.1")
		h.wantFindings(t, "APISERVER_KEY_UNLEASED")
	})
}
