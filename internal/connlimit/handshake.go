package connlimit

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// waitingForPlace is how many new handshakes may wait for each place to compute. Further
	// connections wait to be accepted, where they cost nothing.
	waitingForPlace = 64
	// handshakePause is the time between two looks whether a handshake may begin.
	handshakePause = time.Millisecond
	// longestWait is how long a connection may wait to be accepted. Agents wait four seconds or
	// more for the end of their handshake.
	longestWait = 3 * time.Second
	// flightBytes is what is read at once during a handshake: a whole flight of most clients.
	flightBytes = 4 << 10
)

// places bounds the handshakes that compute at the same time. Otherwise those that come at once
// would delay the calls of open connections. It is safe for concurrent use.
type places struct {
	count int

	mu   sync.Mutex // guards the fields below
	free int
	// begun are handshakes that have computed before; they come before new ones. Oldest first.
	begun, new []chan struct{}
}

func newPlaces(count int) *places { return &places{count: count, free: count} }

// take waits for a place.
func (p *places) take(begun bool) {
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return
	}
	given := make(chan struct{})
	if begun {
		p.begun = append(p.begun, given)
	} else {
		p.new = append(p.new, given)
	}
	p.mu.Unlock()
	<-given
}

// leave gives a place back, or to the next handshake that waits.
func (p *places) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case len(p.begun) > 0:
		close(p.begun[0])
		p.begun = p.begun[1:]
	case len(p.new) > 0:
		close(p.new[0])
		p.new = p.new[1:]
	default:
		p.free++
	}
}

// crowded returns whether so many new handshakes wait that no further one should.
func (p *places) crowded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.new) >= waitingForPlace*p.count
}

// taken returns how many places are taken.
func (p *places) taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count - p.free
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

	// The goroutine that reads uses the fields below.
	flight   []byte // what is read at once; nil outside of a handshake
	unread   []byte // of the last flight
	computed bool   // has computed before

	// The limiter's mutex guards the fields below.
	handshaking bool
	identity    identity     // empty until it is known, or if it has no limits
	peers       *connections // of the identity; constant after the handshake
	watched     bool         // its calls are counted
	closed      bool
	// stranger is the place in Limiter.strangers, nil with an identity; local is the key in
	// Limiter.identifiedAt, and expiry ends a connection without an identity.
	stranger *list.Element
	local    net.Addr
	expiry   *time.Timer
}

// Close ends the counts of the connection and closes it.
func (c *conn) Close() error {
	c.limiter.forget(c)
	return c.Conn.Close()
}

// Read takes a turn of the address and a place for the computation that follows a flight of a
// handshake. All computation of a handshake is between two flights, so a client that waits has no
// place.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.unread) > 0 {
		n := copy(p, c.unread)
		c.unread = c.unread[n:]
		return n, nil
	}
	if c.identified.Load() {
		c.flight, c.unread = nil, nil
		return c.Conn.Read(p)
	}
	c.leave()
	if c.flight == nil {
		c.flight = make([]byte, flightBytes)
	}
	read, err := c.Conn.Read(c.flight)
	if !c.identified.Load() {
		c.compute()
	}
	n := copy(p, c.flight[:read])
	c.unread = c.flight[n:read]
	return n, err
}

// compute waits for a turn and a place.
func (c *conn) compute() {
	if c.of != nil {
		c.of.turn.take()
	}
	c.limiter.places.take(c.computed)
	c.computed, c.begun = true, time.Now()
	c.computing.Store(true)
	if c.identified.Load() { // closed meanwhile
		c.leave()
	}
}

// leave gives the place and the turn back, if the connection has one.
func (c *conn) leave() {
	if c.computing.CompareAndSwap(true, false) {
		begun := c.begun
		c.limiter.places.leave()
		if c.of != nil {
			c.of.turn.leave(begun)
		}
	}
}
