package connlimit

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
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
		now := time.Now()
		c, reason := l.limiter.admit(raw, l.handshake, now)
		if reason != "" {
			l.limiter.refuse(raw, reason)
			if !l.afterRefusal(addressOf(raw.RemoteAddr()), reason, now) {
				return nil, &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: net.ErrClosed}
			}
			continue
		}
		if !waitUnlessClosed(l.closed, l.limiter.pause(now)) {
			return nil, &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: closeBoth(c)}
		}
		limitUnacknowledged(raw)
		return c, nil
	}
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

// closeBoth closes a connection whose listener is closed.
func closeBoth(c *conn) error {
	_ = c.Close() // nothing was sent
	return net.ErrClosed
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

// conn is a counted connection.
type conn struct {
	net.Conn
	limiter *Limiter
	from    netip.Addr
	of      *address // nil for an address without limits

	// identified says that no handshake is in progress; computing, that it has one of the places;
	// called, that a call has begun.
	identified, computing atomic.Bool
	begun                 time.Time // of the computation
	called                atomic.Bool

	// The limiter's mutex guards the fields below.
	handshaking bool
	identity    identity     // empty until it is known, or if it has no limits
	peers       *connections // of the identity; constant after the handshake
	watched     bool         // its calls are counted
	closed      bool
}

// Close ends the counts of the connection and closes it.
func (c *conn) Close() error {
	c.limiter.forget(c)
	return c.Conn.Close()
}

// Read takes a turn of the address and a place for the computation that follows the read data of a
// handshake. All computation of a handshake is between two reads, so a client that waits has no
// place.
func (c *conn) Read(p []byte) (int, error) {
	if c.identified.Load() {
		return c.Conn.Read(p)
	}
	c.leave()
	n, err := c.Conn.Read(p)
	if !c.identified.Load() {
		if c.of != nil {
			c.of.turn.take()
		}
		c.limiter.places <- struct{}{}
		c.begun = time.Now()
		c.computing.Store(true)
		if c.identified.Load() { // closed meanwhile
			c.leave()
		}
	}
	return n, err
}

// leave gives the place and the turn back, if the connection has one.
func (c *conn) leave() {
	if c.computing.CompareAndSwap(true, false) {
		begun := c.begun
		<-c.limiter.places
		if c.of != nil {
			c.of.turn.leave(begun)
		}
	}
}
