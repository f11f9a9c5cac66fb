// Package upstream sends requests to the kube-apiservers of a cluster with the certificate of a
// kubelet. It chooses a server that is ready, moves to another one when that fails, and follows the
// endpoints of the Service default/kubernetes.
package upstream

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
)

const (
	// slowAfter is how long a request waits for a response before its server is probed, and
	// probeTimeout how long the answer may take. Together they bound how long a request waits for a
	// server that is frozen while another one is ready.
	slowAfter    = 500 * time.Millisecond
	probeTimeout = time.Second
	// probePeriod is the time between probes of a server that is ready, and retryPeriod of one that
	// is not.
	probePeriod = 10 * time.Second
	retryPeriod = 2 * time.Second
	// homeAfter is how long a preferred server must be ready before requests return to it.
	homeAfter = time.Minute
	// credentialsPeriod is the time between two reads of the credentials.
	credentialsPeriod = 5 * time.Second
	// maxKeptBody limits a body that is kept so that it can be sent again, and maxKeptBodies all of
	// them together. A kubelet's largest write, the status of its Node, is a fraction of it. Other
	// bodies are sent once, as they come.
	maxKeptBody   = 256 << 10
	maxKeptBodies = 4 << 20
)

// Config configures a Pool. Kubeconfig, Node and Logger are required.
type Config struct {
	Kubeconfig kubeconfig.File
	// Node is the name of the node that the certificate must name.
	Node string
	// Discover adds the endpoints of the Service default/kubernetes. They are stored in StateDir.
	Discover bool
	StateDir string
	Logger   *slog.Logger
}

// Health is the state of one kube-apiserver.
type Health struct {
	Address string
	// Discovered is false for the server of the kubeconfig.
	Discovered bool
	// Current says that new requests go there.
	Current bool
	// Ready is what the server says. Reachable says that it answers at all.
	Ready, Reachable bool
	// Since is when Ready or Reachable changed.
	Since time.Time
	// Error is why the server is not ready; empty if it is.
	Error string
}

// Pool sends requests to one of several kube-apiservers. It is safe for concurrent use.
type Pool struct {
	cfg         Config
	credentials *credentials
	kept        atomic.Int64 // bytes of the bodies of requests in progress

	mu      sync.Mutex // guards the fields below
	targets []*target  // in order of preference
	current *target
	// endpoints are the addresses of the last setEndpoints.
	endpoints []string
	changed   chan struct{} // closed when targets changes
	reloadAt  time.Time     // the next read of the credentials because of a request
}

// New returns a Pool with the server of the kubeconfig and the stored endpoints.
func New(cfg Config) (*Pool, error) {
	if cfg.Kubeconfig.Server == nil || cfg.Node == "" || cfg.Logger == nil {
		return nil, errors.New("upstream: Kubeconfig, Node and Logger are required")
	}
	p := &Pool{cfg: cfg, changed: make(chan struct{}), credentials: &credentials{file: cfg.Kubeconfig, node: cfg.Node, logger: cfg.Logger}}
	p.credentials.refresh()
	p.setEndpoints(p.loadEndpoints())
	return p, nil
}

// Run probes the servers, follows credentials and endpoints until ctx ends, and then closes all
// connections.
func (p *Pool) Run(ctx context.Context) error {
	var group sync.WaitGroup
	group.Go(func() { p.followCredentials(ctx) })
	if p.cfg.Discover {
		group.Go(func() { p.discover(ctx) })
	}
	probers := map[*target]context.CancelFunc{}
	for ctx.Err() == nil {
		targets, changed := p.list()
		for _, t := range targets {
			if probers[t] == nil {
				probing, stop := context.WithCancel(ctx)
				probers[t] = stop
				group.Go(func() { p.watch(probing, t) })
			}
		}
		for t, stop := range probers {
			if !slices.Contains(targets, t) {
				stop()
				delete(probers, t)
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	group.Wait()
	targets, _ := p.list()
	for t, stop := range probers {
		stop()
		if !slices.Contains(targets, t) {
			t.connections.Load().close()
		}
	}
	for _, t := range targets {
		t.connections.Load().close()
	}
	return nil
}

// Snapshot returns the state of each server.
func (p *Pool) Snapshot() []Health {
	p.mu.Lock()
	targets, current := p.targets, p.current
	p.mu.Unlock()
	all := make([]Health, 0, len(targets))
	for _, t := range targets {
		h := t.snapshot()
		h.Current = t == current
		all = append(all, h)
	}
	return all
}

// HasCertificate reports whether the node has a valid certificate. Without one it reads the files
// again, at most once a second.
func (p *Pool) HasCertificate() bool {
	now := time.Now()
	if p.credentials.valid(now) {
		return true
	}
	p.reloadIfDue(now)
	return p.credentials.valid(now)
}

// StoresCertificate reports whether the files of the node have a valid certificate, which a kubelet
// that starts uses. The certificate of deleted files remains in use for requests. It reads the
// files again, at most once a second.
func (p *Pool) StoresCertificate() bool {
	now := time.Now()
	p.reloadIfDue(now)
	return p.credentials.stored(now)
}

func (p *Pool) reloadIfDue(now time.Time) {
	p.mu.Lock()
	due := now.After(p.reloadAt)
	if due {
		p.reloadAt = now.Add(time.Second)
	}
	p.mu.Unlock()
	if due {
		p.reload()
	}
}

// RoundTrip sends a request with the certificate of the node. Host and scheme of its URL are
// replaced. If a server fails before it can have got the request, or if the request changes
// nothing, the next server gets it.
func (p *Pool) RoundTrip(request *http.Request) (*http.Response, error) {
	if !p.HasCertificate() && !p.credentials.present() {
		closeBody(request)
		return nil, ErrNoCertificate
	}
	pick := func(c *connections) http.RoundTripper { return c.node }
	if request.Header.Get("Upgrade") != "" {
		pick = func(c *connections) http.RoundTripper { return c.upgrade }
	}
	return p.roundTrip(request, pick)
}

// Anonymous returns a round tripper that presents no certificate.
func (p *Pool) Anonymous() http.RoundTripper { return anonymous{p} }

type anonymous struct{ pool *Pool }

// RoundTrip sends a request without a certificate.
func (a anonymous) RoundTrip(request *http.Request) (*http.Response, error) {
	return a.pool.roundTrip(request, func(c *connections) http.RoundTripper { return c.anonymous })
}

// ErrNoCertificate says that the node has no certificate yet. A request without it would be
// anonymous.
var ErrNoCertificate = errors.New("the node has no certificate for kube-apiserver yet")

// ErrAmbiguous says that a server may have got a request that changes something, and did not
// answer.
var ErrAmbiguous = errors.New("kube-apiserver may have got the request")

// ErrBody says that the body of a request could not be read, which is no fault of a server.
var ErrBody = errors.New("the body of the request could not be read")

func (p *Pool) roundTrip(request *http.Request, pick func(*connections) http.RoundTripper) (*http.Response, error) {
	request, release, err := p.keepBody(request)
	if err != nil {
		return nil, err
	}
	defer release()
	var tried []*target
	var failures []error
	for {
		t := p.choose(tried)
		if t == nil {
			closeBody(request)
			return nil, fmt.Errorf("no kube-apiserver answers: %w", errors.Join(failures...))
		}
		tried = append(tried, t)
		response, a, err := p.send(request, t, pick)
		if err == nil {
			return response, nil
		}
		if request.Context().Err() != nil {
			closeBody(request)
			return nil, err // the caller has gone
		}
		failures = append(failures, fmt.Errorf("%s: %w", t.base.Host, err))
		if a.broken.Load() {
			return nil, fmt.Errorf("%w: %w: %w", ErrAmbiguous, ErrBody, errors.Join(failures...))
		}
		p.failed(t, err)
		if !a.movable() {
			return nil, fmt.Errorf("%w: %w", ErrAmbiguous, errors.Join(failures...))
		}
	}
}

// keepBody returns a request whose body can be read again, if it is small enough. A kube-apiserver
// that closes a connection with GOAWAY leaves requests unprocessed, and the HTTP/2 client repeats
// them if it can.
func (p *Pool) keepBody(r *http.Request) (kept *http.Request, release func(), err error) {
	size := r.ContentLength
	if r.GetBody != nil || r.Body == nil || size <= 0 || size > maxKeptBody || r.Header.Get("Upgrade") != "" {
		return r, func() {}, nil
	}
	release = func() { p.kept.Add(-size) }
	if p.kept.Add(size) > maxKeptBodies {
		release()
		return r, func() {}, nil
	}
	body := make([]byte, size)
	_, err = io.ReadFull(r.Body, body)
	closeBody(r)
	if err != nil {
		release()
		return nil, nil, fmt.Errorf("%w: %w", ErrBody, err)
	}
	kept = r.WithContext(r.Context())
	kept.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return kept, release, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close() // the request has failed, or the body is read
	}
}

// send makes one attempt.
func (p *Pool) send(request *http.Request, t *target, pick func(*connections) http.RoundTripper) (*http.Response, *attempt, error) {
	ctx, cancel := context.WithCancelCause(request.Context())
	a := &attempt{cancel: cancel, repeatable: repeatable(request)}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { a.sent.Store(true) }})
	outgoing := request.Clone(ctx)
	outgoing.URL.Scheme, outgoing.URL.Host, outgoing.Host = t.base.Scheme, t.base.Host, t.base.Host
	prefix(outgoing.URL, t.base)
	if request.GetBody != nil {
		var err error
		if outgoing.Body, err = request.GetBody(); err != nil {
			cancel(err)
			return nil, a, err
		}
	} else if request.Body != nil && request.Body != http.NoBody {
		outgoing.Body = sharedBody{ReadCloser: request.Body, attempt: a}
	}
	t.join(a)
	slow := time.AfterFunc(slowAfter, t.suspect)
	response, err := pick(t.connections.Load()).RoundTrip(outgoing)
	slow.Stop()
	t.leave(a)
	if cause := context.Cause(ctx); err == nil && errors.Is(cause, errMoved) {
		_ = response.Body.Close() // its context has ended
		return nil, a, cause
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, a, err
	}
	return response, a, nil // the context of the request ends ctx
}

// repeatable reports whether a request changes nothing and has no body.
func repeatable(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && (r.Body == nil || r.Body == http.NoBody) && r.Header.Get("Upgrade") == ""
}

// prefix puts the path of the server before that of the request, byte by byte.
func prefix(u, base *url.URL) {
	if base.Path == "" || base.Path == "/" {
		return
	}
	escaped := base.EscapedPath() + u.EscapedPath()
	u.Path = base.Path + u.Path
	u.RawPath = escaped
}

// choose returns the server for the next attempt; nil if all have been tried. Requests stay at a
// server until it fails, or a preferred one has been ready for a while.
func (p *Pool) choose(tried []*target) *target {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	var best *target
	for _, t := range p.targets {
		if !slices.Contains(tried, t) && (best == nil || p.rank(t, now) > p.rank(best, now)) {
			best = t
		}
	}
	if best != nil && len(tried) == 0 && p.current != best {
		if p.current != nil {
			p.current.connections.Load().closeIdle()
		}
		p.current = best
	}
	return best
}

// rank orders servers of equal preference. The servers that are ready come first, then those that
// answer, then the rest.
func (p *Pool) rank(t *target, now time.Time) int {
	ready, h := t.readyFor(now), t.snapshot()
	switch {
	case ready >= homeAfter, ready >= 0 && (t == p.current || p.current == nil):
		return 3
	case ready >= 0:
		return 2
	case h.Reachable:
		return 1
	}
	return 0
}

// failed records that a request failed, and asks for a probe.
func (p *Pool) failed(t *target, err error) {
	if t.record(false, false, err.Error(), time.Now()) {
		p.cfg.Logger.Warn("kube-apiserver does not answer", "server", t.base.Host, "error", err)
	}
	t.suspect()
}

// watch probes a server until ctx ends.
func (p *Pool) watch(ctx context.Context, t *target) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-t.suspected:
		}
		p.probe(ctx, t)
		// A server that is suspected all the time is not probed all the time.
		pause := time.NewTimer(slowAfter / 2)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
		period := probePeriod
		if !t.snapshot().Ready {
			period = retryPeriod
		}
		timer.Reset(jittered(period))
	}
}

func (p *Pool) probe(ctx context.Context, t *target) {
	ready, reachable, err := t.probe(ctx, probeTimeout)
	if ctx.Err() != nil {
		return
	}
	cause := ""
	if err != nil {
		cause = err.Error()
	}
	if t.record(ready, reachable, cause, time.Now()) {
		p.cfg.Logger.Info("kube-apiserver changes", "server", t.base.Host, "ready", ready, "reachable", reachable, "error", cause)
	}
	if ready {
		t.deadSince, t.abandoned = time.Time{}, false
		return
	}
	if !p.anotherReady(t) {
		t.deadSince = time.Time{}
		return // waiting is all that can be done
	}
	if !reachable {
		t.moveAttempts()
	}
	if t.abandonIfDead(ctx, p.credentials) {
		p.cfg.Logger.Warn("kube-apiserver is not live; its connections are closed, so that watches move to another one", "server", t.base.Host, "error", cause)
	}
}

func (p *Pool) anotherReady(t *target) bool {
	targets, _ := p.list()
	return slices.ContainsFunc(targets, func(other *target) bool { return other != t && other.snapshot().Ready })
}

func (p *Pool) followCredentials(ctx context.Context) {
	tick := time.NewTicker(credentialsPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.reload()
		}
	}
}

// reload reads the credentials. Connections with former ones end.
func (p *Pool) reload() {
	if !p.credentials.refresh() {
		return
	}
	p.cfg.Logger.Info("credentials for kube-apiserver have changed")
	targets, _ := p.list()
	for _, t := range targets {
		t.renew(p.credentials)
	}
}

func (p *Pool) list() ([]*target, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.targets, p.changed
}

// setEndpoints makes the servers those of the kubeconfig and of these addresses. Nodes prefer
// servers in different orders, so that each server has its part of them.
func (p *Pool) setEndpoints(addresses []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := map[string]*target{}
	for _, t := range p.targets {
		known[t.base.Host] = t
	}
	given := hostPort(p.cfg.Kubeconfig.Server)
	next := make([]*target, 0, len(addresses)+1)
	add := func(address string, make func() *target) {
		if t := known[address]; t != nil {
			next = append(next, t)
		} else {
			next = append(next, make())
		}
		delete(known, address)
	}
	add(given, func() *target {
		base := *p.cfg.Kubeconfig.Server
		base.Host = given
		return newTarget(&base, p.cfg.Kubeconfig.TLSServerName, false, p.credentials)
	})
	for _, address := range addresses {
		if address == given || slices.ContainsFunc(next, func(t *target) bool { return t.base.Host == address }) {
			continue
		}
		add(address, func() *target {
			return newTarget(&url.URL{Scheme: "https", Host: address}, serviceName, true, p.credentials)
		})
	}
	slices.SortStableFunc(next, func(a, b *target) int {
		return cmp.Compare(p.preference(a), p.preference(b))
	})
	for _, removed := range known {
		removed.connections.Load().retire()
		if p.current == removed {
			p.current = nil
		}
	}
	p.targets, p.endpoints = next, addresses
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Pool) preference(t *target) uint64 {
	return xxhash.Sum64String(p.cfg.Node + "/" + t.base.Host)
}

// sharedBody is a body that cannot be read again, for several attempts. An attempt that did not get
// a connection must not close it.
type sharedBody struct {
	io.ReadCloser
	attempt *attempt
}

// Read notes that the body cannot be sent again, and whether the caller breaks it off.
func (b sharedBody) Read(p []byte) (int, error) {
	b.attempt.read.Store(true)
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF { // io.EOF comes bare
		b.attempt.broken.Store(true)
	}
	return n, err
}

// Close closes the body if no other attempt can follow.
func (b sharedBody) Close() error {
	if b.attempt.movable() {
		return nil
	}
	return b.ReadCloser.Close()
}

// jittered adds up to a tenth, so that nodes do not ask at the same time.
func jittered(d time.Duration) time.Duration {
	return d + time.Duration(rand.Float64()*float64(d)/10)
}
