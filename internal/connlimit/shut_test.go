package connlimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// connectFrom returns whether a connection from a loopback address opens soon. A client whose first
// packet is ignored repeats it after a second.
func connectFrom(t *testing.T, address, from string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err == nil {
		c.Close()
	}
	return err == nil
}

func TestShutter_TheKernelIgnoresTheAddressOnly(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other kernels ignore no address")
	}
	inner, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	address := inner.Addr().String()
	open, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	install := installer(inner)
	var shut []netip.Addr
	for i := range maxShut / 2 {
		shut = append(shut, netip.AddrFrom4([4]byte{127, 0, 0, byte(66 + i)}), netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::", i)))
	}
	if err := install(shut); err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]bool{"127.0.0.66": false, "127.0.0.81": false, "127.0.0.65": true, "127.0.0.82": true} {
		if got := connectFrom(t, address, from); got != want {
			t.Errorf("a connection of %s opens: %t, want %t", from, got, want)
		}
	}
	accepted, err := inner.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if _, err := open.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := accepted.Read(make([]byte, 1)); err != nil {
		t.Errorf("an open connection of the address: %v", err)
	}
	for range 2 {
		if err := install(nil); err != nil {
			t.Fatal(err)
		}
	}
	if !connectFrom(t, address, "127.0.0.66") {
		t.Error("the address stays out")
	}
}

func TestShutter_EndsAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var installed atomic.Int32
		var broken atomic.Bool
		s := &shutter{install: func(shut []netip.Addr) error {
			if broken.Load() {
				return errors.New("broken")
			}
			installed.Store(int32(len(shut)))
			return nil
		}}
		for i := range 2 * maxShut {
			if got, want := s.add(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})), i < maxShut; got != want {
				t.Fatalf("address %d is shut: %t", i, got)
			}
		}
		broken.Store(true)
		time.Sleep(shutTime + time.Millisecond)
		if installed.Load() != maxShut || !s.active() {
			t.Errorf("%d addresses are shut, want %d until the kernel opens again", installed.Load(), maxShut)
		}
		broken.Store(false)
		time.Sleep(shutTime)
		if installed.Load() != 0 || s.active() {
			t.Errorf("%d addresses stay shut", installed.Load())
		}
		s.add(netip.MustParseAddr("10.0.0.1"))
		s.close()
		if s.add(netip.MustParseAddr("10.0.0.2")) {
			t.Error("a closed listener shuts an address")
		}
		if (&shutter{}).add(netip.MustParseAddr("10.0.0.1")) {
			t.Error("without the kernel's help an address is shut")
		}
	})
}

// Agents behind one address that come back at a moderate rate are refused as before, and not shut.
func TestLimiter_ShutsFloodsOnly(t *testing.T) {
	l, now, from := newLimiter(t, Config{MaxPerAddress: 1, Rate: 1000}), time.Now(), netip.MustParseAddr("10.0.0.1")
	connect(l, "10.0.0.1:1", false, now, 1)
	for i := range 10_000 {
		if l.floods(from, now.Add(time.Duration(i)*time.Second/refusalRate)) {
			t.Fatalf("refused connection %d is a flood", i)
		}
	}
	later, floods := now.Add(time.Hour), 0
	for range 10 * (shutAfter + 1) {
		if l.floods(from, later) {
			floods++
		}
	}
	if floods != 10 {
		t.Errorf("%d floods of %d refused connections each, want 10", floods, shutAfter+1)
	}
	if l.floods(netip.MustParseAddr("10.0.0.2"), later) {
		t.Error("an unknown address floods")
	}
}
