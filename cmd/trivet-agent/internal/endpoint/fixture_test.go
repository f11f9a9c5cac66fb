package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/apiservertest"
	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/upstream"
	"github.com/trivet-dev/trivet/internal/certs"
)

const node = "node-1"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// leasesvc acknowledges heartbeats at once, or with its answer.
type leasesvc struct {
	mu       sync.Mutex    // guards the fields below
	err      error         // of Beat
	answer   chan struct{} // what heartbeats wait for; nil for nothing
	reports  int
	observed time.Time // the last one
	cutOff   []time.Time
}

func (l *leasesvc) CutOff(since time.Time) {
	l.set(func(l *leasesvc) { l.cutOff = append(l.cutOff, since) })
}

func (l *leasesvc) Beat(ctx context.Context, observed time.Time) error {
	l.mu.Lock()
	l.reports++
	l.observed = observed
	answer, err := l.answer, l.err
	l.mu.Unlock()
	if answer == nil {
		return err
	}
	select {
	case <-answer:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *leasesvc) set(change func(*leasesvc)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

func (l *leasesvc) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reports
}

// fixture is an endpoint before one fake kube-apiserver.
type fixture struct {
	*Endpoint
	t        testing.TB
	cluster  *apiservertest.Cluster
	server   *apiservertest.Server
	leases   *apiservertest.Leases
	leasesvc *leasesvc
	url      string
	state    string
	stop     func()
}

// newFixture starts an endpoint before a kube-apiserver that has Leases and, for other paths,
// handler.
func newFixture(t testing.TB, handler http.Handler) *fixture {
	t.Helper()
	f := &fixture{t: t, cluster: apiservertest.NewCluster(t, node), leases: apiservertest.NewLeases(), leasesvc: &leasesvc{}, state: t.TempDir()}
	f.server = f.cluster.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handler == nil || strings.HasPrefix(r.URL.Path, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease") {
			f.leases.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	f.start()
	t.Cleanup(func() { f.stop() })
	return f
}

// start starts the endpoint; after stop, it is a restart of the agent.
func (f *fixture) start() {
	f.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(f.t.Output(), nil))
	file := f.cluster.Kubeconfig(f.t, f.server.URL)
	pool, err := upstream.New(upstream.Config{Kubeconfig: file, Node: node, StateDir: f.state, Logger: logger})
	if err != nil {
		f.t.Fatal(err)
	}
	f.Endpoint, err = New(Config{
		Node: node, Listener: listener, Upstream: pool, Kubeconfig: file, StateDir: f.state, Heartbeats: f.leasesvc, Logger: logger,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.url = "https://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	e := f.Endpoint
	for _, run := range []func(context.Context) error{pool.Run, e.Run} {
		group.Go(func() {
			if err := run(ctx); err != nil {
				f.t.Error(err)
			}
		})
	}
	f.stop = func() {
		cancel()
		group.Wait()
	}
}

// client returns a client with a certificate; nil for none. It closes its connections with the
// test.
func (f *fixture) client(certificate *tls.Certificate, http2 bool) *http.Client {
	f.t.Helper()
	transport := &http.Transport{TLSClientConfig: f.clientTLS(certificate), ForceAttemptHTTP2: http2}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

func (f *fixture) clientTLS(certificate *tls.Certificate) *tls.Config {
	f.t.Helper()
	bundle, err := os.ReadFile(filepath.Join(f.state, "endpoint-ca.crt"))
	if err != nil {
		f.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	return config
}

// kubelet returns a client with the certificate of the node.
func (f *fixture) kubelet() *http.Client {
	f.t.Helper()
	pair, err := tls.LoadX509KeyPair(f.cluster.CertFile, f.cluster.CertFile)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.client(&pair, true)
}

func (f *fixture) issue(leaf certs.Leaf) *tls.Certificate {
	certificate := f.cluster.Issue(f.t, leaf)
	return &certificate
}

// do sends a request and returns the response with its body read.
func (f *fixture) do(client *http.Client, method, path string, body io.Reader, header ...string) (*http.Response, string) {
	f.t.Helper()
	response, text, err := f.try(client, method, path, body, header...)
	if err != nil {
		f.t.Fatal(err)
	}
	return response, text
}

func (f *fixture) try(client *http.Client, method, path string, body io.Reader, header ...string) (*http.Response, string, error) {
	request, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, body)
	if err != nil {
		return nil, "", err
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response, string(text), err
}

func (f *fixture) code(client *http.Client, method, path string, header ...string) int {
	f.t.Helper()
	response, _ := f.do(client, method, path, nil, header...)
	return response.StatusCode
}

// echo answers with the request target and the headers that it got.
func echo(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, r.Method+" "+r.RequestURI+"\n")
	_ = r.Header.Write(w) // the client may have gone
}

// directClient returns a client that goes to the fake kube-apiserver.
func directClient(t testing.TB, cluster *apiservertest.Cluster, server *httptest.Server) *http.Client {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cluster.CertFile, cluster.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cluster.Authority.Certificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
