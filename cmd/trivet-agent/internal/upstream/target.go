package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// connectTimeout bounds the connection to a server that has no alternative. With an alternative
	// a failed probe ends the attempt sooner.
	connectTimeout = 5 * time.Second
	// A connection on which nothing arrives for pingAfter is pinged, and closed without an answer
	// within pingTimeout. A frozen server then ends its watches, so that the kubelet opens new
	// ones.
	pingAfter   = 5 * time.Second
	pingTimeout = 3 * time.Second
	// idleTimeout closes connections without requests, for example to servers that are not used.
	idleTimeout = 90 * time.Second
	// livezTimeout bounds the answer of /livez, with which a server that is slow is still live.
	livezTimeout = 5 * time.Second
	// abandonAfter is how long /livez has failed when the connections to a server are closed, if
	// another one is ready.
	abandonAfter = 10 * time.Second
	// retireAfter is how long requests in progress may use a replaced certificate.
	retireAfter = 30 * time.Second

	maxResponseHeaderBytes = 1 << 20
)

// target is one kube-apiserver.
type target struct {
	base *url.URL
	// serverName is the name in its certificate; empty means the host of base.
	serverName string

	connections atomic.Pointer[connections]
	suspected   chan struct{} // asks for a probe now
	// deadSince is since when /livez has failed; zero while it does not. abandoned says that the
	// connections were closed since then. Both belong to the goroutine that probes.
	deadSince time.Time
	abandoned bool

	mu       sync.Mutex // guards the fields below
	health   Health
	readyAt  time.Time
	attempts map[*attempt]struct{}
}

func newTarget(base *url.URL, serverName string, discovered bool, c *credentials) *target {
	t := &target{
		base: base, serverName: serverName,
		suspected: make(chan struct{}, 1), attempts: map[*attempt]struct{}{},
		// A server counts as ready until something says otherwise.
		health: Health{Address: base.Host, Discovered: discovered, Ready: true, Reachable: true, Since: time.Now()},
	}
	t.connections.Store(newConnections(c, serverName))
	return t
}

// suspect asks for a probe. It never blocks.
func (t *target) suspect() {
	select {
	case t.suspected <- struct{}{}:
	default:
	}
}

// record stores what a probe or a request has found.
func (t *target) record(ready, reachable bool, cause string, now time.Time) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ready && (!t.health.Ready || t.readyAt.IsZero()) {
		t.readyAt = now
	}
	changed = t.health.Ready != ready || t.health.Reachable != reachable
	if changed {
		t.health.Since = now
	}
	t.health.Ready, t.health.Reachable, t.health.Error = ready, reachable, cause
	return changed
}

func (t *target) snapshot() Health {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.health
}

// readyFor returns how long the target has been ready; negative if it is not.
func (t *target) readyFor(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.health.Ready {
		return -1
	}
	return now.Sub(t.readyAt)
}

// moveAttempts ends the attempts that may be repeated at another server.
func (t *target) moveAttempts() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for a := range t.attempts {
		if a.movable() {
			a.cancel(errMoved)
		}
	}
}

func (t *target) join(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempts[a] = struct{}{}
}

func (t *target) leave(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.attempts, a)
}

// renew makes later requests use new connections. Those in progress end within retireAfter.
func (t *target) renew(c *credentials) {
	former := t.connections.Swap(newConnections(c, t.serverName))
	former.retire()
}

// probe asks the server whether it is ready.
func (t *target) probe(ctx context.Context, timeout time.Duration) (ready, reachable bool, err error) {
	code, text, err := t.ask(ctx, "/readyz", timeout)
	switch {
	case err != nil:
		return false, false, err
	case code >= http.StatusInternalServerError:
		return false, true, fmt.Errorf("readyz answers %d: %s", code, text)
	}
	return true, true, nil // also one that refuses the question answers requests
}

// ask returns the code and the first line of an answer.
func (t *target) ask(ctx context.Context, path string, timeout time.Duration) (code int, line string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, t.base.JoinPath(path).String(), nil)
	if err != nil {
		return 0, "", err
	}
	response, err := t.connections.Load().node.RoundTrip(request)
	if err != nil {
		return 0, "", err
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 512))
	_ = response.Body.Close() // the answer is complete
	return response.StatusCode, strings.ToValidUTF8(firstLine(text), "?"), nil
}

// abandonIfDead asks a server that is not ready whether it is live. If /livez has failed for
// abandonAfter, for example because the server has no etcd, it closes the connections, so that open
// watches, which deliver nothing, move to another server. A server that leaves in good order is
// live, and ends its watches itself.
func (t *target) abandonIfDead(ctx context.Context, c *credentials) (abandoned bool) {
	code, _, err := t.ask(ctx, "/livez", livezTimeout)
	now := time.Now()
	switch {
	case ctx.Err() != nil:
	case err == nil && code < http.StatusInternalServerError:
		t.deadSince, t.abandoned = time.Time{}, false
	case t.deadSince.IsZero():
		t.deadSince = now
	case !t.abandoned && now.Sub(t.deadSince) >= abandonAfter:
		t.abandoned = true
		t.connections.Swap(newConnections(c, t.serverName)).close()
		return true
	}
	return false
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// attempt is one request to one target.
type attempt struct {
	cancel context.CancelCauseFunc
	// repeatable says that the request changes nothing.
	repeatable bool
	// sent says that the request has a connection, so that the server may have it.
	sent atomic.Bool
	// read says that the body was read, and broken that its read failed, which is no fault of the
	// server.
	read, broken atomic.Bool
}

func (a *attempt) movable() bool { return a.repeatable || !a.sent.Load() && !a.read.Load() }

var errMoved = errors.New("the server does not answer, and another one does")

// connections are the connections to a server with one set of credentials.
type connections struct {
	node      *http.Transport // with the certificate of the node; HTTP/2
	upgrade   *http.Transport // the same for upgraded connections, which need HTTP/1.1
	anonymous *http.Transport // without a certificate

	mu   sync.Mutex // guards open
	open map[net.Conn]struct{}
}

func newConnections(c *credentials, serverName string) *connections {
	s := &connections{open: map[net.Conn]struct{}{}}
	s.node = s.transport(true)
	s.node.TLSClientConfig = c.tls(serverName, true)
	s.upgrade = s.transport(false)
	s.upgrade.TLSClientConfig = c.tls(serverName, true)
	s.anonymous = s.transport(true)
	s.anonymous.TLSClientConfig = c.tls(serverName, false)
	return s
}

func (s *connections) transport(http2 bool) *http.Transport {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(http2)
	return &http.Transport{
		DialContext:            s.dial,
		TLSHandshakeTimeout:    connectTimeout,
		Protocols:              protocols,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		DisableCompression:     true, // a response passes as it comes
		IdleConnTimeout:        idleTimeout,
		MaxIdleConnsPerHost:    16,
		MaxResponseHeaderBytes: maxResponseHeaderBytes,
		ExpectContinueTimeout:  time.Second,
	}
}

func (s *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: connectTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3,
	}}
	raw, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := &trackedConn{Conn: raw, of: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[conn] = struct{}{}
	return conn, nil
}

// retire closes idle connections now, and the others a while later.
func (s *connections) retire() {
	s.closeIdle()
	time.AfterFunc(retireAfter, s.close)
}

func (s *connections) closeIdle() {
	for _, t := range []*http.Transport{s.node, s.upgrade, s.anonymous} {
		t.CloseIdleConnections()
	}
}

// close closes all connections, also those with requests in progress.
func (s *connections) close() {
	s.closeIdle()
	s.mu.Lock()
	open := make([]net.Conn, 0, len(s.open))
	for conn := range s.open {
		open = append(open, conn)
	}
	s.mu.Unlock()
	for _, conn := range open {
		_ = conn.Close() // its requests fail
	}
}

type trackedConn struct {
	net.Conn
	of *connections
}

// Close closes the connection and forgets it.
func (c *trackedConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
