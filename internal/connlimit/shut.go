package connlimit

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// An address is shut when it has shutAfter refused connections more than refusalRate per second
	// allow. Agents behind one address that connect again together stay below both, or wait a
	// little longer.
	refusalRate = 500
	shutAfter   = 50
	// shutTime is how long the kernel ignores an address. The limits of the address admit as many
	// connections as without it.
	shutTime = 100 * time.Millisecond
	// maxShut bounds the addresses that are shut at the same time, because the kernel compares each
	// new connection with all of them.
	maxShut = 32
	// While an address is shut, the connections that it has opened before are closed in groups with
	// pauses: the calls of other connections come between.
	refusalsAtOnce = 8
	refusalPause   = time.Millisecond
)

// shutter makes the kernel ignore addresses that open connections faster than the process can
// refuse them. A client whose first packet is ignored repeats it a second later, at its own cost.
type shutter struct {
	// install makes the kernel ignore new connections of addresses, of none if there are none. It
	// is nil if the kernel or the listener cannot do that.
	install func(addresses []netip.Addr) error

	mu     sync.Mutex // guards the fields below, and the calls of install
	shut   []netip.Addr
	timer  *time.Timer
	closed bool
}

// add shuts an address for a while. It returns whether the kernel ignores the address.
func (s *shutter) add(from netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.install == nil || s.closed || len(s.shut) == maxShut {
		return false
	}
	for _, known := range s.shut {
		if known == from {
			return true
		}
	}
	shut := append(s.shut[:len(s.shut):len(s.shut)], from)
	if err := s.install(shut); err != nil {
		return false // refusals go on
	}
	if s.shut = shut; s.timer == nil {
		s.timer = time.AfterFunc(shutTime, s.lift)
	}
	return true
}

// lift ends all shuts.
func (s *shutter) lift() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = nil
	if s.closed {
		return
	}
	if err := s.install(nil); err != nil { // the addresses would stay out
		s.timer = time.AfterFunc(shutTime, s.lift)
		return
	}
	s.shut = nil
}

// active returns whether an address is shut.
func (s *shutter) active() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.shut) > 0
}

// close ends the timer. The listener takes its filter with it.
func (s *shutter) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
