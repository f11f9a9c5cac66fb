package connlimit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// remote is a connection from an address, without a network.
type remote struct {
	net.Conn
	from   string
	local  net.TCPAddr
	closed atomic.Bool
}

func (r *remote) LocalAddr() net.Addr { return &r.local }

func (r *remote) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(r.from))
}

func (r *remote) Close() error {
	r.closed.Store(true)
	return nil
}

func newLimiter(t testing.TB, cfg Config) *Limiter {
	t.Helper()
	l, err := New(cfg, nil, "test")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// connect makes n connections from an address, and returns those that are admitted and why the last
// one was refused.
func connect(l *Limiter, from string, handshake bool, now time.Time, n int) (admitted []*conn, refused string) {
	for range n {
		c, reason := l.admit(&remote{from: from}, handshake, now)
		if reason == "" {
			admitted = append(admitted, c)
		} else {
			refused = reason
		}
	}
	return admitted, refused
}

func TestLimiter_LimitsConnections(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		cfg       Config
		handshake bool
		want      int    // of 100 connections of one address
		reason    string // of the rest
		others    int    // of 100 connections of another address
	}{
		"in all":         {Config{MaxConnections: 30}, false, 30, tooManyConnections, 0},
		"of an address":  {Config{MaxConnections: 50, MaxPerAddress: 30}, false, 30, tooManyOfAddress, 20},
		"handshakes":     {Config{MaxHandshakes: 40}, true, 10, tooManyHandshakesOfOne, 10},
		"no handshakes":  {Config{MaxHandshakes: 40}, false, 100, "", 100},
		"rate":           {Config{Rate: 100}, false, 11, tooManyNewOfAddress, 11}, // one second of a tenth, and one
		"no limit":       {Config{}, true, 100, "", 100},
		"high handshake": {Config{MaxHandshakes: 400}, true, 100, "", 100},
	} {
		l := newLimiter(t, c.cfg)
		mine, reason := connect(l, "10.0.0.1:1", c.handshake, now, 100)
		theirs, _ := connect(l, "10.0.0.2:1", c.handshake, now, 100)
		if len(mine) != c.want || reason != c.reason || len(theirs) != c.others {
			t.Errorf("%s: %d and %d connections are admitted (%s), want %d and %d (%s)", name, len(mine), len(theirs), reason, c.want, c.others, c.reason)
		}
		for _, c := range append(mine, theirs...) {
			c.Close()
			c.Close() // the second one counts nothing
		}
		if l.open != 0 || l.handshaking != 0 {
			t.Errorf("%s: %d connections and %d handshakes remain", name, l.open, l.handshaking)
		}
		if again, _ := connect(l, "10.0.0.1:1", c.handshake, now.Add(time.Minute), 100); len(again) != c.want {
			t.Errorf("%s: %d connections are admitted later, want %d", name, len(again), c.want)
		}
	}
}

func TestLimiter_HandshakesOfManyAddressesAreBounded(t *testing.T) {
	l, now := newLimiter(t, Config{MaxHandshakes: 40}), time.Now()
	total := 0
	for i := range 100 {
		admitted, _ := connect(l, fmt.Sprintf("10.0.0.%d:1", i), true, now, 100)
		total += len(admitted)
	}
	if total != 40 {
		t.Errorf("%d handshakes are in progress, want 40", total)
	}
}

func TestLimiter_MemoryIsBounded(t *testing.T) {
	l, now := newLimiter(t, Config{Rate: 1000, MaxConnections: 100}), time.Now()
	address := func(i int) string { return fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255) }
	for i := range 100_000 {
		admitted, _ := connect(l, address(i), false, now, 1)
		for _, c := range admitted {
			c.Close()
		}
		now = now.Add(100 * time.Microsecond) // ten times the rate
	}
	if kept := len(l.addresses); kept > 1000 {
		t.Errorf("%d addresses are kept, and none has a connection", kept)
	}
	for i := range 100_000 { // at once
		admitted, _ := connect(l, address(i), false, now, 1)
		for _, c := range admitted {
			c.Close()
		}
	}
	if kept := len(l.addresses); kept > maxClosed+1 {
		t.Errorf("%d addresses are kept, want %d at most", kept, maxClosed+1)
	}
	if len(l.identities) != 0 {
		t.Errorf("%d identities are kept", len(l.identities))
	}
}

func TestAddressOf_NetworksOfOneClientAreOne(t *testing.T) {
	of := func(text string) netip.Addr { return addressOf((&remote{from: text}).RemoteAddr()) }
	if of("[2001:db8::1]:1") != of("[2001:db8::2]:7") || of("[::ffff:10.0.0.1]:1") != of("10.0.0.1:2") {
		t.Error("addresses of one client differ")
	}
	if of("[2001:db8::1]:1") == of("[2001:db8:0:1::1]:1") || of("10.0.0.1:1") == of("10.0.0.2:1") || of("[::1]:1") == of("127.0.0.1:1") {
		t.Error("addresses of different clients are equal")
	}
	if addressOf(&net.UnixAddr{Name: "a"}).IsValid() {
		t.Error("a Unix socket has an address")
	}
}

func TestLimiter_LoopbackIsExemptOnRequest(t *testing.T) {
	now := time.Now()
	strict, _ := connect(newLimiter(t, Config{MaxPerAddress: 5}), "127.0.0.1:1", false, now, 10)
	l := newLimiter(t, Config{MaxPerAddress: 5, MaxConnections: 8, TrustLoopback: true})
	exempt, _ := connect(l, "127.0.0.1:1", false, now, 10)
	if len(strict) != 5 || len(exempt) != 8 {
		t.Errorf("%d and %d connections of loopback are admitted, want 5 and 8", len(strict), len(exempt))
	}
}

// chanListener accepts what a test sends.
type chanListener struct {
	net.Listener
	next   chan net.Conn
	closed sync.Once
}

func (c *chanListener) Accept() (net.Conn, error) {
	accepted, ok := <-c.next
	if !ok {
		return nil, net.ErrClosed
	}
	return accepted, nil
}

func (c *chanListener) Close() error {
	c.closed.Do(func() { close(c.next) })
	return nil
}

func (c *chanListener) Addr() net.Addr { return &net.TCPAddr{} }

func TestListener_PacesConnectionsOfManyAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &chanListener{next: make(chan net.Conn, 1000)}
		listener := newLimiter(t, Config{Rate: 100}).Listener(inner)
		for i := range 1000 {
			inner.next <- &remote{from: fmt.Sprintf("10.0.%d.%d:1", i/200, i%200)}
		}
		begin := time.Now()
		for i := range 1000 {
			if _, err := listener.Accept(); err != nil {
				t.Fatal(err)
			}
			if i == 99 && time.Since(begin) > 0 {
				t.Errorf("the burst took %v", time.Since(begin))
			}
		}
		if took := time.Since(begin); took < 9*time.Second || took > 9100*time.Millisecond {
			t.Errorf("1000 connections took %v, want 9 s", took)
		}
		inner.next <- &remote{from: "10.0.0.1:1"}
		go func() {
			time.Sleep(time.Millisecond)
			listener.Close()
		}()
		if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept() of a closed listener = %v, want net.ErrClosed", err)
		}
	})
}

func TestListener_FloodOfOneAddressDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &chanListener{next: make(chan net.Conn, 20_000)}
		listener := newLimiter(t, DefaultConfig()).TLSListener(inner)
		var flood []*remote
		for range 10_000 {
			c := &remote{from: "10.0.0.1:1"}
			flood = append(flood, c)
			inner.next <- c
		}
		for i := range 500 {
			inner.next <- &remote{from: fmt.Sprintf("10.0.1.%d:1", i%250)}
		}
		begin, honest := time.Now(), 0
		for honest < 500 {
			c, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if c.RemoteAddr().String() != "10.0.0.1:1" {
				honest++
			}
		}
		refused := 0
		for _, c := range flood {
			if c.closed.Load() {
				refused++
			}
		}
		if took := time.Since(begin); took > 0 || refused != 9750 {
			t.Errorf("honest connections took %v behind a flood of which %d were closed; want no delay and 9750", took, refused)
		}
	})
}

// tlsFixture is a TLS server that answers "ok" to each connection, and its clients.
type tlsFixture struct {
	address string
	metrics *prometheus.Registry
	limiter *Limiter
	roots   *x509.CertPool
	sign    func(name string) tls.Certificate
}

func newTLSFixture(t *testing.T, cfg Config) *tlsFixture {
	t.Helper()
	f := &tlsFixture{metrics: prometheus.NewRegistry(), roots: x509.NewCertPool()}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	f.roots.AddCert(parsed)
	f.sign = func(name string) tls.Certificate {
		own := newKey(t)
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}, parsed, own.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: own}
	}
	if f.limiter, err = New(cfg, f.metrics, "test"); err != nil {
		t.Fatal(err)
	}
	f.serve(t)
	return f
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (f *tlsFixture) serve(t *testing.T) {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = raw.Addr().String()
	certificate := f.sign("server")
	// As internal/identity does: a new configuration for each handshake.
	config := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: f.roots}, nil
	}}
	listener := tls.NewListener(f.limiter.TLSListener(raw), f.limiter.TLS(config))
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				if _, err := c.Write([]byte("ok")); err != nil { // the handshake comes first
					return
				}
				_, _ = io.Copy(io.Discard, c) // until the client leaves
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		serving.Wait()
	})
}

// dial connects from a loopback address. It returns an error unless the server answers.
func (f *tlsFixture) dial(t *testing.T, from string, certificates ...tls.Certificate) (net.Conn, error) {
	t.Helper()
	dialer := &net.Dialer{Timeout: 30 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := tls.DialWithDialer(dialer, "tcp", f.address, &tls.Config{RootCAs: f.roots, ServerName: "server", Certificates: certificates})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// values returns the metrics by name and reason.
func (f *tlsFixture) values(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				if label.GetName() == "reason" {
					name += " " + label.GetValue()
				}
			}
			found[name] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	return found
}

// await waits until the metrics have the wanted values.
func (f *tlsFixture) await(t *testing.T, want map[string]float64) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !maps.Equal(f.values(t), want) {
		if time.Now().After(deadline) {
			t.Fatalf("the metrics are %v, want %v", f.values(t), want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestTLS_LimitsConnectionsOfAnIdentity(t *testing.T) {
	f := newTLSFixture(t, Config{MaxPerIdentity: 3})
	eve, ann := f.sign("eve"), f.sign("ann")
	var open []net.Conn
	for i := range 5 {
		c, err := f.dial(t, fmt.Sprintf("127.0.0.%d", i+1), eve) // the address does not matter
		if err == nil {
			open = append(open, c)
		}
	}
	if len(open) != 3 {
		t.Errorf("%d connections of an identity are open, want 3", len(open))
	}
	if _, err := f.dial(t, "127.0.0.1", ann); err != nil {
		t.Errorf("the first connection of another identity: %v", err)
	}
	for range 3 {
		if _, err := f.dial(t, "127.0.0.1"); err != nil {
			t.Errorf("a connection without a certificate: %v", err)
		}
	}
	if _, err := f.dial(t, "127.0.0.1"); err == nil {
		t.Error("a fourth connection without a certificate is open")
	}
	if _, err := f.dial(t, "127.0.0.2"); err != nil {
		t.Errorf("a connection of another address without a certificate: %v", err)
	}
	f.await(t, map[string]float64{
		"trivet_connections": 8, "trivet_connection_handshakes": 0, "trivet_connections_refused_total identity_connections": 3,
	})
	open[0].Close()
	f.await(t, map[string]float64{
		"trivet_connections": 7, "trivet_connection_handshakes": 0, "trivet_connections_refused_total identity_connections": 3,
	})
	if _, err := f.dial(t, "127.0.0.1", eve); err != nil {
		t.Errorf("a connection after one was closed: %v", err)
	}
}

// Clients without a certificate, also those of many addresses, leave places for identities, and the
// newest of them have theirs.
func TestTLS_StrangersLeavePlacesForIdentities(t *testing.T) {
	f := newTLSFixture(t, Config{MaxConnections: 40})
	var strangers []net.Conn
	for i := range 60 {
		c, err := f.dial(t, fmt.Sprintf("127.0.0.%d", i+1))
		if err != nil {
			t.Fatalf("stranger %d: %v", i, err)
		}
		strangers = append(strangers, c)
	}
	f.await(t, map[string]float64{
		"trivet_connections": 10, "trivet_connection_handshakes": 0, "trivet_connections_refused_total anonymous_connections": 50,
	})
	for i := range 30 {
		if _, err := f.dial(t, "127.0.0.1", f.sign(fmt.Sprint("node-", i))); err != nil {
			t.Fatalf("node-%d: %v", i, err)
		}
	}
	for i, c := range strangers {
		if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, err := c.Read(make([]byte, 1))
		if open := errors.Is(err, os.ErrDeadlineExceeded); open != (i >= 50) {
			t.Errorf("stranger %d: %v, want the last ten to be open", i, err)
		}
	}
}

// newStranger returns a connection without a certificate.
func newStranger(t *testing.T, l *Limiter, from string) (*conn, *remote) {
	t.Helper()
	raw := &remote{from: from}
	c, reason := l.admit(raw, true, time.Now())
	if reason != "" {
		t.Fatal(reason)
	}
	if err := l.identified(c, tls.ConnectionState{}); err != nil {
		t.Fatal(err)
	}
	return c, raw
}

// A connection on which a token was accepted takes no place of those without an identity, and all
// places are free again after the end of the connections.
func TestLimiter_KnownConnectionsAreNoStrangers(t *testing.T) {
	l := newLimiter(t, Config{MaxConnections: 8}) // two places
	var closed []bool
	var open []*conn
	var raws []*remote
	for i := range 6 {
		c, raw := newStranger(t, l, fmt.Sprintf("10.0.0.%d:1", i))
		if i%2 == 0 {
			l.Known(c.LocalAddr())
			l.Known(c.LocalAddr()) // as each call with a token
		}
		open, raws = append(open, c), append(raws, raw)
	}
	for _, raw := range raws {
		closed = append(closed, raw.closed.Load())
	}
	if want := []bool{false, true, false, false, false, false}; !slices.Equal(closed, want) {
		t.Errorf("closed: %v, want the oldest without a token", closed)
	}
	for _, c := range open {
		c.Close()
	}
	if l.strangers.Len() != 0 || len(l.identifiedAt) != 0 || l.open != 0 {
		t.Errorf("%d strangers, %d addresses and %d connections remain", l.strangers.Len(), len(l.identifiedAt), l.open)
	}
}

// Neither a call without a credential nor a health check keeps the place of a stranger.
func TestLimiter_StrangersAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Config{MaxConnections: 100})
		_, idle := newStranger(t, l, "10.0.0.1:1")
		calling, calls := newStranger(t, l, "10.0.0.1:2")
		l.handshaken(calling)
		l.called(calling)
		accepted, token := newStranger(t, l, "10.0.0.1:3")
		l.Known(accepted.LocalAddr())
		certified := &remote{from: "10.0.0.1:4"}
		known, _ := l.admit(certified, true, time.Now())
		if err := l.identified(known, tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}); err != nil {
			t.Fatal(err)
		}
		closed := func() []bool {
			synctest.Wait()
			return []bool{idle.closed.Load(), calls.closed.Load(), token.closed.Load(), certified.closed.Load()}
		}
		time.Sleep(strangerTime - time.Second)
		if got := closed(); slices.Contains(got, true) {
			t.Errorf("closed too early: %v", got)
		}
		time.Sleep(2 * time.Second)
		if got := closed(); !slices.Equal(got, []bool{true, true, false, false}) {
			t.Errorf("closed: idle, calling, with a token, with a certificate: %v; want the first two", got)
		}
	})
}

// A connection outlives the authority of its certificate. It also ends where no limits hold.
func TestLimiter_ConnectionsOfRefusedCertificatesEnd(t *testing.T) {
	for from, unlimited := range map[string]bool{"10.0.0.1:1": false, "127.0.0.1:1": true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, Config{MaxConnections: 100, TrustLoopback: unlimited})
			var raws []*remote
			var open []*conn
			for range 2 {
				raw := &remote{from: from}
				c, reason := l.admit(raw, true, time.Now())
				if reason != "" {
					t.Fatal(reason)
				}
				if err := l.identified(c, tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}); err != nil {
					t.Fatal(err)
				}
				raws, open = append(raws, raw), append(open, c)
			}
			l.Refused(open[0].LocalAddr())
			time.Sleep(refusedTime / 2)
			l.Refused(open[0].LocalAddr()) // as each further call
			if raws[0].closed.Load() {
				t.Errorf("%s: closed before its client has the cause", from)
			}
			time.Sleep(refusedTime)
			if !raws[0].closed.Load() || raws[1].closed.Load() {
				t.Errorf("%s: closed: the refused connection %t, the other one %t; want the first", from, raws[0].closed.Load(), raws[1].closed.Load())
			}
			open[1].Close()
			if len(l.identifiedAt) != 0 || l.open != 0 {
				t.Errorf("%s: %d addresses and %d connections remain", from, len(l.identifiedAt), l.open)
			}
		})
	}
}

// Agents with tokens have no certificates, and the nodes of a cluster may share an IPv6 network.
func TestLimiter_HostsOfOneIPv6NetworkAreApart(t *testing.T) {
	l := newLimiter(t, Config{MaxPerIdentity: 2, MaxPerAddress: 1000})
	for i := range 1000 {
		admitted, _ := connect(l, fmt.Sprintf("[2001:db8::%x]:1", i/2+1), true, time.Now(), 1)
		if err := l.identified(admitted[0], tls.ConnectionState{}); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	admitted, reason := connect(l, "[2001:db8::ffff]:1", true, time.Now(), 1)
	if len(admitted) > 0 || reason != tooManyOfAddress {
		t.Errorf("a connection more of the network is refused for %q, want %q", reason, tooManyOfAddress)
	}
}

func TestLimiter_FailuresCostMore(t *testing.T) {
	l := newLimiter(t, Config{Rate: 1000})
	connectAndFail := func(n int) (failed int) {
		for range n {
			admitted, _ := connect(l, "10.0.0.1:1", true, time.Now(), 1)
			for _, c := range admitted {
				c.Close() // before the end of its handshake
				failed++
			}
		}
		return failed
	}
	// A burst of 100, of which each costs six, and what a slow machine adds.
	if got := connectAndFail(1000); got < 17 || got > 40 {
		t.Errorf("%d handshakes fail at once, want about 17", got)
	}
	if debt := time.Until(l.addresses[netip.MustParseAddr("10.0.0.1")].paid); debt > maxDebt {
		t.Errorf("the address is %v ahead of its rate, want %v at most", debt, maxDebt)
	}
	if admitted, reason := connect(l, "10.0.0.2:1", true, time.Now(), 100); len(admitted) != 100 {
		t.Errorf("%d of 100 connections of another address are admitted (%s)", len(admitted), reason)
	}
}

func TestLimiter_FloodKeepsItsIdentityOut(t *testing.T) {
	l, now := newLimiter(t, Config{MaxPerIdentity: 5}), time.Now()
	eve, ann := identity{user: "eve"}, identity{user: "ann"}
	open := func(named identity, now time.Time) (*conn, string) {
		admitted, _ := connect(l, "10.0.0.1:1", true, now, 1)
		return admitted[0], l.identify(admitted[0], named, now)
	}
	flooding, _ := open(eve, now)
	l.flooded(flooding, now)
	flooding.Close()
	if _, reason := open(eve, now.Add(floodPause-1)); reason != tooManyControlFrames {
		t.Errorf("a connection after a flood is refused for %q, want %q", reason, tooManyControlFrames)
	}
	if _, reason := open(ann, now); reason != "" {
		t.Errorf("a connection of another identity is refused for %q", reason)
	}
	if c, reason := open(eve, now.Add(floodPause)); reason != "" {
		t.Errorf("a connection after the pause is refused for %q", reason)
	} else {
		c.Close()
	}
	for i := range 100 { // a new identity looks at others
		if _, reason := open(identity{user: fmt.Sprint(i)}, now.Add(floodPause)); reason != "" {
			t.Fatalf("a connection is refused for %q", reason)
		}
	}
	if l.identities[eve] != nil {
		t.Error("an identity without connections is kept")
	}
	l.flooded(nil, now) // a connection that is not counted
}

func TestTLS_StalledHandshakesKeepNoOtherAddressOut(t *testing.T) {
	f := newTLSFixture(t, Config{MaxHandshakes: 40})
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 66)}}
	for range 200 { // none of them says anything
		// The server may reset a connection before the client knows that it is open.
		if c, err := dialer.DialContext(t.Context(), "tcp", f.address); err == nil {
			t.Cleanup(func() { c.Close() })
		}
	}
	f.await(t, map[string]float64{
		"trivet_connections": 10, "trivet_connection_handshakes": 10, "trivet_connections_refused_total address_handshakes": 190,
	})
	if places := f.limiter.places.taken(); places != 0 {
		t.Errorf("%d stalled handshakes keep a place to compute", places)
	}
	for i := range 20 {
		if _, err := f.dial(t, "127.0.0.1", f.sign(fmt.Sprint("node-", i))); err != nil {
			t.Fatalf("honest connection %d: %v", i, err)
		}
	}
	f.await(t, map[string]float64{
		"trivet_connections": 30, "trivet_connection_handshakes": 10, "trivet_connections_refused_total address_handshakes": 190,
	})
}

func TestTLS_ConnectionWaitsForTheHandshakesBeforeIt(t *testing.T) {
	f := newTLSFixture(t, Config{MaxHandshakes: 4})
	var stalled []net.Conn
	for i := range 4 {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(66+i))}}
		c, err := dialer.DialContext(t.Context(), "tcp", f.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		stalled = append(stalled, c)
	}
	f.await(t, map[string]float64{"trivet_connections": 4, "trivet_connection_handshakes": 4})
	begin := time.Now()
	time.AfterFunc(300*time.Millisecond, func() { stalled[0].Close() })
	if _, err := f.dial(t, "127.0.0.1", f.sign("ann")); err != nil {
		t.Fatalf("a connection above the handshakes: %v, want it to wait", err)
	}
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Errorf("the connection was open after %v, before a handshake ended", took)
	}
}

// A client that sends byte after byte waits for no longer than another one, so it keeps those
// behind it waiting no longer.
func TestTLS_NoConnectionWaitsLong(t *testing.T) {
	t.Parallel() // it mostly waits
	for name, pause := range map[string]time.Duration{"silent": 0, "byte after byte": 200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTLSFixture(t, Config{MaxHandshakes: 4})
			dial := func(last byte) net.Conn {
				dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, last)}}
				c, err := dialer.DialContext(t.Context(), "tcp", f.address)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				return c
			}
			for i := range byte(4) {
				dial(66 + i)
			}
			f.await(t, map[string]float64{"trivet_connections": 4, "trivet_connection_handshakes": 4})
			begin, late := time.Now(), dial(80)
			var sender sync.WaitGroup
			if pause > 0 {
				sender.Go(func() {
					for err := error(nil); err == nil; time.Sleep(pause) {
						_, err = late.Write([]byte{0})
					}
				})
			}
			_, err := late.Read(make([]byte, 1))
			took := time.Since(begin)
			sender.Wait() // a write after the end fails
			if err == nil || took < longestWait || took > longestWait+10*time.Second {
				t.Errorf("the connection ended after %v with %v, want %v", took, err, longestWait)
			}
		})
	}
}

func TestPlaces_BegunHandshakesComeFirst(t *testing.T) {
	p := newPlaces(1)
	p.take(false)
	order := make(chan string, 2)
	var waiting sync.WaitGroup
	queued := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.new) + len(p.begun)
	}
	for i, name := range []string{"new", "begun"} {
		waiting.Go(func() {
			p.take(name == "begun")
			order <- name
			p.leave()
		})
		for queued() <= i {
			time.Sleep(time.Millisecond)
		}
	}
	p.leave()
	waiting.Wait()
	if first := <-order; first != "begun" {
		t.Errorf("a %s handshake comes first, want one that has begun", first)
	}
	if taken := p.taken(); taken != 0 {
		t.Errorf("%d places remain taken", taken)
	}
}

func TestTLS_FailedHandshakesAreForgotten(t *testing.T) {
	f := newTLSFixture(t, DefaultConfig())
	stranger := newTLSFixture(t, DefaultConfig()) // of another authority
	for range 5 {
		if _, err := f.dial(t, "127.0.0.1", stranger.sign("eve")); err == nil {
			t.Error("a certificate of another authority is accepted")
		}
	}
	f.await(t, map[string]float64{"trivet_connections": 0, "trivet_connection_handshakes": 0})
	if len(f.limiter.identities) != 0 || f.limiter.places.taken() != 0 {
		t.Errorf("identities %v and %d places remain", f.limiter.identities, f.limiter.places.taken())
	}
}

func TestConfig_ValidateNamesFlags(t *testing.T) {
	cfg := DefaultConfig()
	if problems := cfg.Validate(); len(problems) != 0 {
		t.Errorf("Validate() of the defaults = %v", problems)
	}
	cfg = Config{MaxConnections: -1, MaxPerAddress: -1, MaxPerIdentity: -1, MaxHandshakes: -1, Rate: -1}
	if problems := cfg.Validate(); len(problems) != 5 {
		t.Errorf("Validate() = %v, want 5 problems", problems)
	}
}
