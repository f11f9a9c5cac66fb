package connlimit

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Listen opens a TCP address, host:port, without Multipath TCP: no client of ours uses it, each
// connection would cost more, and the kernel could not ignore an address that floods.
func Listen(address string) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	return config.Listen(context.Background(), "tcp", address)
}

// Listener returns a listener whose connections have no TLS handshake.
func (l *Limiter) Listener(inner net.Listener) net.Listener { return l.listen(inner, false) }

// TLSListener returns a listener for connections that begin with a handshake of the configuration
// that [Limiter.TLS] returns. It is the innermost listener: TLS goes around it.
func (l *Limiter) TLSListener(inner net.Listener) net.Listener { return l.listen(inner, true) }

func (l *Limiter) listen(inner net.Listener, handshake bool) net.Listener {
	return &listener{Listener: inner, limiter: l, handshake: handshake, closed: make(chan struct{}), shutter: &shutter{install: installer(inner)}}
}

type listener struct {
	net.Listener
	limiter   *Limiter
	handshake bool

	shutter *shutter
	refused int // since the last pause; one goroutine accepts

	closing sync.Once
	closed  chan struct{}
}

// Accept returns the next connection within the limits. It closes the others.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, reason, err := l.admit(raw)
		if err != nil {
			return nil, l.ended(raw)
		}
		if reason != "" {
			l.limiter.refuse(raw, reason)
			if !l.afterRefusal(addressOf(raw.RemoteAddr()), reason, time.Now()) {
				return nil, l.ended(raw)
			}
			continue
		}
		if !waitUnlessClosed(l.closed, l.limiter.pause(time.Now())) {
			return nil, l.ended(c)
		}
		limitUnacknowledged(raw)
		return c, nil
	}
}

// admit waits while the handshakes before this one are too many. Were the connection closed, its
// client would connect again, which costs both sides more than to wait. A client that has waited
// too long would leave before the end of its handshake, so its connection is closed. It fails only
// if the listener was closed.
func (l *listener) admit(raw net.Conn) (c *conn, reason string, err error) {
	for begin := time.Now(); ; {
		// A client that sends byte after byte would never have waited for long by the kernel's
		// word.
		if l.handshake && max(waitedFor(raw), time.Since(begin)) > longestWait {
			return nil, tooManyHandshakes, nil
		}
		c, reason := l.limiter.admit(raw, l.handshake, time.Now())
		if reason != tooManyHandshakes {
			return c, reason, nil
		}
		if !waitUnlessClosed(l.closed, handshakePause) {
			return nil, "", net.ErrClosed
		}
	}
}

// ended closes a connection whose listener is closed.
func (l *listener) ended(c net.Conn) error {
	_ = c.Close() // nothing was sent
	return &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: net.ErrClosed}
}

// afterRefusal shuts an address with too many refused connections, and pauses between groups of
// refusals while the kernel keeps further ones out. Without the kernel's help a pause would delay
// other clients. It returns false if the listener was closed meanwhile.
func (l *listener) afterRefusal(from netip.Addr, reason string, now time.Time) bool {
	if ofAddress(reason) && l.limiter.floods(from, now) && l.shutter.add(from) {
		l.limiter.refused.WithLabelValues(tooManyRefused).Inc()
	}
	if l.refused++; l.refused < refusalsAtOnce {
		return true
	}
	l.refused = 0
	return !l.shutter.active() || waitUnlessClosed(l.closed, refusalPause)
}

// waitUnlessClosed returns false if closed ends the pause.
func waitUnlessClosed(closed <-chan struct{}, pause time.Duration) bool {
	if pause <= 0 {
		return true
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-closed:
		return false
	}
}

// Close closes the listener, and not its connections.
func (l *listener) Close() error {
	l.closing.Do(func() {
		close(l.closed)
		l.shutter.close()
	})
	return l.Listener.Close()
}
