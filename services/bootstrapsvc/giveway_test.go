package bootstrapsvc

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/apiserverscontroller"
)

// wantConceded looks a second after what was done.
func (h *house) wantConceded(t *testing.T, when string, want bool) {
	t.Helper()
	time.Sleep(time.Second)
	if got := h.candidate.Conceded(); (got != nil) != want {
		t.Errorf("%s: conceded = %v, want %t", when, got, want)
	}
}

// sick is a neighbour that is not ready.
func sick(address string) apiserverscontroller.Entry {
	entry := neighbour(address)
	entry.Ready = false
	return entry
}

func TestGiveWay_WhileTheOwnServerIsDownAndAnotherIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		time.Sleep(aMoment)
		h.prober.set(true)
		time.Sleep(4 * time.Second)
		h.wantConceded(t, "nobody else is ready", false)
		h.keys.put(neighbour("10.1.0.2"))
		h.wantConceded(t, "another is ready", true)
		h.keys.put(sick("10.1.0.2"))
		h.wantConceded(t, "the other is not ready any more", false)
		h.keys.put(neighbour("10.1.0.2"))
		h.wantConceded(t, "the other is back", true)
		h.keys.fail(errors.New("etcd: no leader"), nil)
		h.wantConceded(t, "nothing is known of the other", true)
		h.keys.fail(nil, nil)
		h.prober.set(false)
		h.wantConceded(t, "the own one is back for a moment", true)
		time.Sleep(regainAfter)
		h.wantConceded(t, "the own one is back", false)
	})
}

func TestGiveWay_ServerThatComesAndGoesDoesNotTakeTheTermAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		h.keys.put(neighbour("10.1.0.2"))
		time.Sleep(aMoment)
		h.prober.set(true)
		time.Sleep(4 * time.Second)
		for range 20 {
			h.wantConceded(t, "down", true)
			h.prober.set(false)
			time.Sleep(4 * time.Second)
			h.wantConceded(t, "up", true)
			h.prober.set(true)
			time.Sleep(4 * time.Second)
		}
		h.prober.set(false)
		h.wantConceded(t, "up, while another is ready", true)
		h.keys.put(sick("10.1.0.2"))
		h.wantConceded(t, "up, while no other is ready", false)
	})
}

// What a restore left behind is nobody to give way to.
func TestGiveWay_NotToAKeyWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		h.keys.put(neighbour("10.1.0.2"))
		h.keys.strip("10.1.0.2")
		time.Sleep(aMoment)
		h.prober.set(true)
		time.Sleep(10 * time.Second)
		h.wantConceded(t, "nobody lives beside", false)
	})
}

func TestGiveWay_WithoutAnAddressOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t)
		h.start(t)
		defer h.end(t)
		time.Sleep(aMoment)
		h.keys.put(neighbour("10.1.0.1")) // another sidecar was given the same address
		h.prober.set(true)
		time.Sleep(10 * time.Second)
		h.wantConceded(t, "the address is taken by one that is ready", true)
	})
}

// strip takes the lease of a key, as a restore does.
func (m *memoryKeys) strip(address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	restored := m.entries[netip.MustParseAddr(address)]
	restored.Leased = false
	m.entries[restored.Address] = restored
}
