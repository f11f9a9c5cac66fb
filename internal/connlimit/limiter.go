package connlimit

import (
	"container/list"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// share and rateShare are the parts of the handshakes and of the rate that one address may
	// have: 1/share and 1/rateShare.
	share     = 4
	rateShare = 10
	// burstSeconds is how many seconds of the rate may come at once.
	burstSeconds = 1
	// failureCost is what a handshake that fails costs of the rate of its address, in connections.
	// So does one whose identity may not connect, and one whose connection ends without a call.
	// maxDebt bounds how long they keep the address out.
	failureCost = 5
	maxDebt     = 10 * time.Second
	// The cost grows with each failuresInRow failures without a call between them, up to
	// maxFailureFactor times: an address with honest agents has calls between.
	failuresInRow    = 50
	maxFailureFactor = 8
	// looks is how many addresses a new address looks at for one to forget.
	looks = 4
	// maxClosed bounds the addresses that have no open connection and are ahead of their rate.
	maxClosed = 10_000
	// strangerShare is the part of all connections that clients without an identity may have, and
	// that may have a handshake in progress: 1/strangerShare each. Half of the connections are left
	// to identities.
	strangerShare = 4
	// strangerTime is how long a connection may have no identity.
	strangerTime = 10 * time.Second
	// refusedTime is how long a connection lasts after its certificate was refused. The client gets
	// the cause before.
	refusedTime = time.Second
	// floodPause is how long an identity may not connect after a flood of control frames. Otherwise
	// it would continue on a new connection.
	floodPause = 10 * time.Second
)

// Reasons of refused connections, which are values of a metric's label.
const (
	tooManyConnections     = "connections"
	tooManyOfAddress       = "address_connections"
	tooManyOfIdentity      = "identity_connections"
	tooManyHandshakes      = "handshakes"
	tooManyStrangers       = "anonymous_connections"
	withoutIdentity        = "anonymous_timeout"
	tooManyHandshakesOfOne = "address_handshakes"
	tooManyNewOfAddress    = "address_rate"
	tooManyControlFrames   = "control_frames"
	tooManyRefused         = "address_flood" // counted once for the connections of a tenth of a second
)

// Limiter counts the connections of the listeners that it wraps. It is safe for concurrent use.
type Limiter struct {
	cfg     Config
	refused *prometheus.CounterVec
	places  *places

	mu          sync.Mutex // guards the fields below and what they contain
	open        int
	handshaking int
	// strangers are the open connections without a client certificate on which no token was
	// accepted yet, oldest first.
	strangers *list.List
	// identifiedAt finds a connection after its handshake by its address at the server, a pointer.
	identifiedAt map[net.Addr]*conn
	// paid is the time until which all connections so far are paid at the full rate.
	paid       time.Time
	addresses  map[netip.Addr]*address
	identities map[identity]*connections
}

// address counts the connections of one client address.
type address struct {
	open, handshaking int
	paid              time.Time
	// paidRefusals is the time until which refused connections are paid.
	paidRefusals time.Time
	// failures is the number of failures since the last call.
	failures int
	turn     turn
}

// connections are those of one identity.
type connections struct {
	open int
	// refusedUntil is when the identity may connect again after a flood.
	refusedUntil time.Time
	calls        callPace
}

// identity is a user, or an address without a certificate.
type identity struct {
	user string
	from netip.Addr
}

// New returns a Limiter, and registers its metrics unless registerer is nil. server is the value of
// their label "server", for example "grpc".
func New(cfg Config, registerer prometheus.Registerer, server string) (*Limiter, error) {
	labels := prometheus.Labels{"server": server}
	l := &Limiter{
		cfg: cfg, places: newPlaces(max(1, runtime.GOMAXPROCS(0)/2)), addresses: map[netip.Addr]*address{}, identities: map[identity]*connections{},
		strangers: list.New(), identifiedAt: map[net.Addr]*conn{},
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "trivet_connections_refused_total", Help: "Connections that a limit closed, by reason.", ConstLabels: labels,
		}, []string{"reason"}),
	}
	if registerer == nil {
		return l, nil
	}
	gauge := func(name, help string, value *int) error {
		return registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return float64(*value)
		}))
	}
	if err := errors.Join(
		registerer.Register(l.refused),
		gauge("trivet_connections", "Open connections.", &l.open),
		gauge("trivet_connection_handshakes", "TLS handshakes in progress.", &l.handshaking),
	); err != nil {
		return nil, fmt.Errorf("register metrics of connections: %w", err)
	}
	return l, nil
}

// admit counts a new connection. It returns the reason if the connection must be closed, or must
// wait because of too many handshakes.
func (l *Limiter) admit(raw net.Conn, handshake bool, now time.Time) (*conn, string) {
	from := addressOf(raw.RemoteAddr())
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.address(from, now)
	if reason := l.excess(of, handshake, now); reason != "" {
		return nil, reason
	}
	c := &conn{Conn: raw, limiter: l, from: from, of: of, handshaking: handshake}
	c.identified.Store(!handshake)
	l.open++
	if handshake {
		l.handshaking++
	}
	if of != nil {
		of.open++
		of.paid = paidAfter(of.paid, now, 1, l.cfg.Rate/rateShare)
		if handshake {
			of.handshaking++
		}
	}
	return c, ""
}

// excess returns which limit a new connection exceeds. The limits of its address come first, so
// that the metric tells one client's flood from many clients.
func (l *Limiter) excess(of *address, handshake bool, now time.Time) string {
	over := func(count, limit int) bool { return limit > 0 && count >= limit }
	if of != nil {
		switch {
		case over(of.open, l.cfg.MaxPerAddress):
			return tooManyOfAddress
		case handshake && over(of.handshaking, part(l.cfg.MaxHandshakes)):
			return tooManyHandshakesOfOne
		case l.cfg.Rate > 0 && of.paid.Sub(now) > burstSeconds*time.Second:
			return tooManyNewOfAddress
		}
	}
	switch {
	case over(l.open, l.cfg.MaxConnections):
		return tooManyConnections
	case handshake && (over(l.handshaking, l.cfg.MaxHandshakes) || over(l.handshaking, strangersOf(l.cfg.MaxConnections)) || l.places.crowded()):
		return tooManyHandshakes
	default:
		return ""
	}
}

// ofAddress says whether a limit of one address is the reason of a refusal.
func ofAddress(reason string) bool {
	return reason == tooManyOfAddress || reason == tooManyHandshakesOfOne || reason == tooManyNewOfAddress
}

// floods counts a refused connection, and returns whether its address has too many.
func (l *Limiter) floods(from netip.Addr, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.addresses[from]
	if of == nil {
		return false // it shares its counts with others
	}
	of.paidRefusals = paidAfter(of.paidRefusals, now, 1, refusalRate)
	if of.paidRefusals.Sub(now) <= shutAfter*time.Second/refusalRate {
		return false
	}
	of.paidRefusals = now
	return true
}

// strangersOf is what clients without an identity may have of a limit; 0 stays 0.
func strangersOf(of int) int { return (of + strangerShare - 1) / strangerShare }

// part is what one address may have of a limit; 0 stays 0.
func part(of int) int { return (of + share - 1) / share }

// paidAfter returns the time until which connections are paid, after some more.
func paidAfter(paid, now time.Time, more, perSecond int) time.Time {
	if paid.Before(now) {
		paid = now
	}
	return paid.Add(time.Duration(more) * time.Second / time.Duration(max(1, perSecond)))
}

// address returns the counts of an address, nil if it has no limits. Each new address looks at a
// few others for one to forget. Were there too many nevertheless, new ones would share their
// counts.
func (l *Limiter) address(from netip.Addr, now time.Time) *address {
	if !from.IsValid() || l.cfg.TrustLoopback && from.IsLoopback() {
		return nil
	}
	if known := l.addresses[from]; known != nil {
		return known
	}
	looked := 0
	for other, of := range l.addresses {
		if of.open == 0 && !of.paid.After(now) {
			delete(l.addresses, other)
		}
		if looked++; looked == looks {
			break
		}
	}
	if len(l.addresses) >= l.open+maxClosed {
		from = netip.Addr{}
		if shared := l.addresses[from]; shared != nil {
			return shared
		}
	}
	made := &address{turn: newTurn()}
	l.addresses[from] = made
	return made
}

// pause counts a new connection for the rate of all addresses, and returns how long its acceptance
// must wait.
func (l *Limiter) pause(now time.Time) time.Duration {
	if l.cfg.Rate == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paid = paidAfter(l.paid, now, 1, l.cfg.Rate)
	return l.paid.Sub(now) - burstSeconds*time.Second
}

// TLS returns a configuration whose handshakes tell the Limiter when they end, and of which
// identity they are. A connection above the limit of its identity is closed.
func (l *Limiter) TLS(config *tls.Config) *tls.Config {
	watched := config.Clone()
	watched.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		chosen := config
		if config.GetConfigForClient != nil {
			own, err := config.GetConfigForClient(hello)
			if err != nil {
				return nil, err
			}
			if own != nil {
				chosen = own
			}
		}
		c, ok := hello.Conn.(*conn)
		if !ok {
			return chosen, nil
		}
		chosen = chosen.Clone()
		verify := chosen.VerifyConnection
		chosen.VerifyConnection = func(state tls.ConnectionState) error {
			if verify != nil {
				if err := verify(state); err != nil {
					return err
				}
			}
			return l.identified(c, state)
		}
		return chosen, nil
	}
	return watched
}

var errIdentity = errors.New("the identity may not open another connection now")

// identified ends the handshake of c. An alert would call the certificate bad, so a connection that
// its identity may not have is reset.
func (l *Limiter) identified(c *conn, state tls.ConnectionState) error {
	named, stranger := identity{from: hostOf(c.RemoteAddr())}, len(state.VerifiedChains) == 0
	if !stranger {
		named = identity{user: state.VerifiedChains[0][0].Subject.CommonName}
	}
	if reason := l.identify(c, named, time.Now()); reason != "" {
		l.failed(c, time.Now())
		l.refuse(c, reason)
		return errIdentity
	}
	if oldest := l.add(c, stranger); oldest != nil {
		l.refuse(oldest, tooManyStrangers)
	}
	return nil
}

// add makes a connection known by its address. One without a certificate counts as a stranger and
// ends after strangerTime. add returns the oldest stranger if there are too many now, which the
// caller closes.
func (l *Limiter) add(c *conn, stranger bool) (oldest *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed {
		return nil
	}
	c.local = c.LocalAddr()
	l.identifiedAt[c.local] = c
	if !stranger || c.of == nil {
		return nil
	}
	c.stranger = l.strangers.PushBack(c)
	c.expiry = time.AfterFunc(strangerTime, func() { l.expire(c) })
	if l.cfg.MaxConnections > 0 && l.strangers.Len() > strangersOf(l.cfg.MaxConnections) {
		oldest, _ = l.strangers.Front().Value.(*conn)
		l.endStranger(oldest)
	}
	return oldest
}

// endStranger needs l.mu. It does nothing for a connection with an identity.
func (l *Limiter) endStranger(c *conn) {
	if c.stranger == nil {
		return
	}
	l.strangers.Remove(c.stranger)
	c.expiry.Stop()
	c.stranger, c.expiry = nil, nil
}

// expire closes a connection that has no identity, or none any more.
func (l *Limiter) expire(c *conn) {
	l.mu.Lock()
	expired := c.expiry != nil && !c.closed
	l.mu.Unlock()
	if expired {
		l.refused.WithLabelValues(withoutIdentity).Inc()
		_ = c.Close() // its reader gets the cause
	}
}

// Known gives a connection an identity: a bearer token was accepted on it. local is the address at
// the server that the connection has returned.
func (l *Limiter) Known(local net.Addr) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.identifiedAt[local]; c != nil {
		l.endStranger(c)
	}
}

// Refused ends a connection whose certificate is not accepted any more, a moment after the refusal:
// its client connects again with the certificate that it has by then. local is as for Known.
func (l *Limiter) Refused(local net.Addr) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.identifiedAt[local]; c != nil && c.expiry == nil {
		c.expiry = time.AfterFunc(refusedTime, func() { l.expire(c) })
	}
}

// identify counts a connection for its identity. It returns the reason if the connection must be
// closed.
func (l *Limiter) identify(c *conn, named identity, now time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endHandshake(c)
	if c.closed || c.identity != (identity{}) || named == (identity{}) || c.of == nil {
		return ""
	}
	of := l.identities[named]
	switch {
	case of == nil:
		of = l.newIdentity(named, now)
	case of.refusedUntil.After(now):
		return tooManyControlFrames
	case l.cfg.MaxPerIdentity > 0 && of.open >= l.cfg.MaxPerIdentity:
		return tooManyOfIdentity
	}
	of.open++
	c.identity, c.peers = named, of
	return ""
}

// newIdentity needs l.mu. Each new identity looks at a few others for one to forget: an identity
// without connections remains only after a flood.
func (l *Limiter) newIdentity(named identity, now time.Time) *connections {
	looked := 0
	for other, of := range l.identities {
		if of.open == 0 && !of.refusedUntil.After(now) {
			delete(l.identities, other)
		}
		if looked++; looked == looks {
			break
		}
	}
	made := &connections{calls: callPace{perSecond: callRateOf(named)}}
	l.identities[named] = made
	return made
}

// called ends the failures of an address when a call begins.
func (l *Limiter) called(c *conn) {
	if c.called.Swap(true) || c.of == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.of.failures = 0
}

// flooded refuses further connections of the identity of c for a while.
func (l *Limiter) flooded(c *conn, now time.Time) {
	l.refused.WithLabelValues(tooManyControlFrames).Inc()
	l.mu.Lock()
	defer l.mu.Unlock()
	if c == nil {
		return
	}
	if c.of != nil {
		c.of.failures += failuresInRow // its first call has ended the failures before
	}
	l.charge(c, now)
	if of := l.identities[c.identity]; of != nil {
		of.refusedUntil = now.Add(floodPause)
	}
}

// handshaken ends the handshake of a connection whose calls are counted from now on.
func (l *Limiter) handshaken(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endHandshake(c)
	c.watched = true
}

// endHandshake needs l.mu.
func (l *Limiter) endHandshake(c *conn) {
	if !c.handshaking {
		return
	}
	c.handshaking = false
	c.identified.Store(true)
	c.leave()
	l.handshaking--
	if c.of != nil {
		c.of.handshaking--
	}
}

// failed charges the address of a connection for a failure. A client could otherwise make the
// server sign and verify at the full rate of its address.
func (l *Limiter) failed(c *conn, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.charge(c, now)
}

// charge needs l.mu.
func (l *Limiter) charge(c *conn, now time.Time) {
	if c.of == nil || l.cfg.Rate == 0 {
		return
	}
	cost := failureCost * min(maxFailureFactor, 1+c.of.failures/failuresInRow)
	c.of.failures++
	c.of.paid = paidAfter(c.of.paid, now, cost, l.cfg.Rate/rateShare)
	if latest := now.Add(maxDebt); c.of.paid.After(latest) {
		c.of.paid = latest
	}
}

// forget ends the counts of a connection. It does nothing at the second call.
func (l *Limiter) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if c.handshaking || c.watched && !c.called.Load() {
		l.charge(c, time.Now())
	}
	l.endHandshake(c)
	l.endStranger(c)
	if c.expiry != nil {
		c.expiry.Stop()
	}
	delete(l.identifiedAt, c.local)
	l.open--
	if c.of != nil {
		c.of.open--
	}
	of := l.identities[c.identity]
	if of == nil {
		return
	}
	if of.open--; of.open == 0 && of.refusedUntil.IsZero() {
		delete(l.identities, c.identity)
	}
}

// refuse closes a connection without the orderly end of TCP, whose state would remain for a minute.
func (l *Limiter) refuse(c net.Conn, reason string) {
	l.refused.WithLabelValues(reason).Inc()
	raw := c
	if limited, ok := c.(*conn); ok {
		raw = limited.Conn
	}
	if lingering, ok := raw.(interface{ SetLinger(seconds int) error }); ok {
		_ = lingering.SetLinger(0) // the connection is closed in any case
	}
	_ = c.Close()
}

// hostOf returns the address of one host. The hosts of a network may share the first 64 bits of an
// IPv6 address, and each may have an agent without a certificate.
func hostOf(remote net.Addr) netip.Addr {
	if tcp, ok := remote.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// addressOf returns the address whose connections count together; the zero value if the network has
// no IP addresses.
func addressOf(remote net.Addr) netip.Addr {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	from := tcp.AddrPort().Addr().Unmap().WithZone("")
	if !from.Is6() || from.IsLoopback() {
		return from
	}
	prefix, err := from.Prefix(64)
	if err != nil {
		return from
	}
	return prefix.Addr()
}
