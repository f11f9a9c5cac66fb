// Package endpoint serves kube-apiserver to the kubelet of one node. Requests pass with the
// certificate of the kubelet. Only the renewal of the node's own Lease becomes a heartbeat.
//
// A caller needs a client certificate of the cluster's authority whose user is the node. A request
// of any other caller is refused before its body is read. While the files of the node have no valid
// certificate, the requests of a kubelet's TLS bootstrap pass with the kubelet's bootstrap token.
//
// Impersonation headers pass: kube-apiserver decides about them by the rights of the node, as it
// would without the endpoint. The headers of a front proxy and a caller's Authorization are
// removed, because the certificate is the identity.
package endpoint

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/localca"
	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/upstream"
	"github.com/trivet-dev/trivet/internal/identity"
)

const (
	// headerTimeout bounds a TLS handshake and the head of a request.
	headerTimeout  = 5 * time.Second
	idleTimeout    = 5 * time.Minute
	maxHeaderBytes = 64 << 10
	// maxBodyBytes is above kube-apiserver's own limit of 3 MiB.
	maxBodyBytes = 4 << 20
	// maxStreams is the number of requests and watches on one HTTP/2 connection.
	maxStreams = 1000
	// stopGrace is how long requests in progress may go on at a stop, and stopTimeout bounds the
	// stop.
	stopGrace   = 500 * time.Millisecond
	stopTimeout = 2 * time.Second
)

// Heartbeats are the heartbeats of this node at leasesvc. Beat is called concurrently.
type Heartbeats interface {
	// Beat sends a heartbeat, because the kubelet was observed at that time, and waits until the
	// leader of the node's shard has recorded this observation or a later one. Its error says why
	// ctx ended before.
	Beat(ctx context.Context, observed time.Time) error
	// CutOff says since when every request of the kubelet to kube-apiserver has failed; the zero
	// time says that one was served. It must not block.
	CutOff(since time.Time)
}

// Config configures an Endpoint. All fields but Listener and ClientCAFile are required.
type Config struct {
	// Node is the name of the node that the certificates name.
	Node string
	// Listen is host:port on loopback.
	Listen string
	// Listener replaces Listen if it is not nil. Run closes it.
	Listener net.Listener
	// Upstream sends requests to kube-apiserver. The caller runs it.
	Upstream *upstream.Pool
	// Kubeconfig is that of Upstream.
	Kubeconfig kubeconfig.File
	// ClientCAFile has the authorities of the kubelet's certificate; empty means the authority of
	// Kubeconfig.
	ClientCAFile string
	// StateDir has the local authority.
	StateDir   string
	Heartbeats Heartbeats
	Logger     *slog.Logger
}

// Endpoint is the server for the kubelet. It is a prometheus.Collector.
type Endpoint struct {
	cfg     Config
	ca      *localca.CA
	pool    *upstream.Pool
	callers *callers
	leases  *leaseWriter
	reach   *reach
	metrics *metrics
	proxy   *httputil.ReverseProxy
	direct  *httputil.ReverseProxy // without the node's certificate
	slots   chan struct{}          // of bootstrap requests in progress
	conns   *connections
}

// New returns an Endpoint that does not listen until Run. It makes the local authority at the first
// start. Its error names every problem of cfg.
func New(cfg Config) (*Endpoint, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	ca, err := localca.Open(cfg.StateDir, cfg.Logger)
	if err != nil {
		return nil, err
	}
	callers, err := newCallers(cfg)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{cfg: cfg, ca: ca, pool: cfg.Upstream, callers: callers, metrics: newMetrics(), slots: make(chan struct{}, maxBootstraps), conns: newConnections()}
	e.reach = &reach{next: cfg.Upstream, changed: cfg.Heartbeats.CutOff}
	e.leases = newLeaseWriter(cfg.Node, cfg.Upstream, e.reach, cfg.Heartbeats, cfg.Logger)
	e.proxy = e.newProxy(e.reach, stripIdentity)
	e.direct = e.newProxy(cfg.Upstream.Anonymous(), stripFrontProxy)
	return e, nil
}

func (c *Config) validate() error {
	var problems []error
	if c.Node == "" || c.Heartbeats == nil || c.Logger == nil || c.StateDir == "" || c.Upstream == nil || c.Kubeconfig.Server == nil {
		problems = append(problems, errors.New("endpoint: Node, Upstream, Kubeconfig, StateDir, Heartbeats and Logger are required"))
	}
	listen := c.Listen
	if c.Listener != nil {
		listen = c.Listener.Addr().String()
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil || !identity.IsLoopback(host) {
		problems = append(problems, fmt.Errorf("endpoint: address %q must be host:port on loopback", listen))
	}
	if server := c.Kubeconfig.Server; server != nil && err == nil && server.Port() == port && identity.IsLoopback(server.Hostname()) {
		problems = append(problems, fmt.Errorf("endpoint: the kubeconfig leads to %s, which is the endpoint itself; give the kubeconfig that leads to kube-apiserver", server))
	}
	return errors.Join(problems...)
}

// Run serves until ctx ends.
func (e *Endpoint) Run(ctx context.Context) error {
	listener := e.cfg.Listener
	if listener == nil {
		var config net.ListenConfig
		var err error
		if listener, err = config.Listen(ctx, "tcp", e.cfg.Listen); err != nil {
			return fmt.Errorf("listen for the kubelet: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	requests, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRequests()
	server := e.server(requests)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { _ = e.ca.Run(ctx) }) // it returns nil
	group.Go(func() { e.callers.run(ctx) })
	served := make(chan error, 1)
	group.Go(func() {
		served <- server.ServeTLS(e.conns.limit(listener), "", "")
		cancel()
	})
	<-ctx.Done()
	cut := time.AfterFunc(stopGrace, cancelRequests) // watches would go on for ever
	defer cut.Stop()
	stopping, cancelStop := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancelStop()
	if server.Shutdown(stopping) != nil {
		_ = server.Close() // what still runs is cut
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the kubelet: %w", err)
	}
	return nil
}

func (e *Endpoint) server(requests context.Context) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return &http.Server{
		Handler: http.HandlerFunc(e.serve),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			// The handler verifies the certificate, so that a caller gets an answer that says why
			// it is refused.
			ClientAuth:             tls.RequestClientCert,
			GetCertificate:         e.ca.GetCertificate,
			SessionTicketsDisabled: true,
		},
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ConnContext:       e.conns.context,
		ErrorLog:          slog.NewLogLogger(e.cfg.Logger.Handler(), slog.LevelDebug),
	}
}

// serve answers one request.
func (e *Endpoint) serve(w http.ResponseWriter, r *http.Request) {
	if reason := e.callers.refuse(r); reason != "" {
		e.serveStranger(w, r, reason)
		return
	}
	recorder := &recorder{ResponseWriter: w, start: time.Now()}
	defer e.metrics.observe(r, recorder)
	e.conns.identified(r.Context())
	if r.Method == http.MethodConnect || r.URL.Opaque != "" {
		writeStatus(recorder, http.StatusBadRequest, "BadRequest", "the request target is no path")
		return
	}
	if !e.pool.HasCertificate() {
		e.reach.fail(recorder.start)
		writeStatus(recorder, http.StatusServiceUnavailable, "ServiceUnavailable", "trivet-agent cannot read the certificate of the node")
		return
	}
	if r.Header.Get("Upgrade") == "" {
		r.Body = http.MaxBytesReader(recorder, r.Body, maxBodyBytes)
	}
	if e.leases.serve(recorder, r) {
		return
	}
	defer e.leases.passed(r)
	e.proxy.ServeHTTP(recorder, r)
}

// Snapshot is the state of an Endpoint.
type Snapshot struct {
	// Upstreams are the kube-apiservers.
	Upstreams []upstream.Health
	// PassthroughSince is since when Lease writes pass to kube-apiserver, because leasesvc does not
	// renew; zero while leasesvc does.
	PassthroughSince time.Time
	// CutOffSince is since when every request of the kubelet to kube-apiserver has failed; zero if
	// one was served since.
	CutOffSince time.Time
	// HasCertificate says that the node has a valid certificate.
	HasCertificate bool
	// LastWrite is when the kubelet last wrote its Lease; zero if it has not.
	LastWrite time.Time
}

// Snapshot returns the current state.
func (e *Endpoint) Snapshot() Snapshot {
	s := e.leases.snapshot()
	s.Upstreams, s.HasCertificate, s.CutOffSince = e.pool.Snapshot(), e.pool.HasCertificate(), e.reach.cutOff()
	return s
}

// Ready returns why the kubelet cannot reach a kube-apiserver through the endpoint; nil if it can.
func (e *Endpoint) Ready() error {
	if !e.pool.HasCertificate() {
		return errors.New("the node has no valid certificate yet")
	}
	var problems []error
	for _, u := range e.pool.Snapshot() {
		if u.Ready {
			return nil
		}
		problems = append(problems, fmt.Errorf("%s: %s", u.Address, cmp.Or(u.Error, "not ready")))
	}
	return fmt.Errorf("no kube-apiserver is ready: %w", errors.Join(problems...))
}
