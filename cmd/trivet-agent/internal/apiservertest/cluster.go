// Package apiservertest has fake kube-apiservers for tests: TLS with client certificates, HTTP/2, a
// store of Leases with preconditions, and faults of the connection.
package apiservertest

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
	"github.com/trivet-dev/trivet/internal/certs"
)

// Cluster is an authority and the certificate files of one node.
type Cluster struct {
	Authority *certs.Authority
	Node      string
	// CAFile and CertFile are files of the node. CertFile has the key too.
	CAFile, CertFile string
}

// NewCluster returns a cluster whose node has a certificate.
func NewCluster(t testing.TB, node string) *Cluster {
	t.Helper()
	authority, err := certs.NewAuthority("kubernetes", certs.AuthorityLifetime, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := &Cluster{Authority: authority, Node: node, CAFile: filepath.Join(dir, "ca.crt"), CertFile: filepath.Join(dir, "kubelet-client-current.pem")}
	write(t, c.CAFile, authority.CertPEM())
	c.Rotate(t)
	return c
}

// Issue returns a certificate.
func (c *Cluster) Issue(t testing.TB, leaf certs.Leaf) tls.Certificate {
	t.Helper()
	pair := c.pair(t, leaf)
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func (c *Cluster) pair(t testing.TB, leaf certs.Leaf) certs.KeyPair {
	t.Helper()
	pair, err := c.Authority.Issue(leaf, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// Rotate gives the node a new certificate, as a kubelet does.
func (c *Cluster) Rotate(t testing.TB) {
	t.Helper()
	pair := c.pair(t, certs.NodeLeaf(c.Node))
	write(t, c.CertFile, append(pair.CertPEM, pair.KeyPEM...))
}

// Kubeconfig returns the kubeconfig of the node that leads to a server.
func (c *Cluster) Kubeconfig(t testing.TB, server string) kubeconfig.File {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig.File{Server: u, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.CertFile}
}

func write(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// Server is a fake kube-apiserver. It answers /readyz, and each other request by its handler.
type Server struct {
	*httptest.Server
	listener *faultyListener
	mu       sync.Mutex // guards ready
	ready    int
}

// Serve starts a server that ends with the test.
func (c *Cluster) Serve(t testing.TB, handler http.Handler) *Server {
	t.Helper()
	s := &Server{ready: http.StatusOK}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			w.WriteHeader(s.readyz())
			return
		}
		handler.ServeHTTP(w, r)
	}))
	s.listener = &faultyListener{Listener: s.Listener, thawed: closed()}
	s.Listener = s.listener
	s.EnableHTTP2 = true
	s.Config.ReadHeaderTimeout = time.Minute
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	pool := x509.NewCertPool()
	pool.AddCert(c.Authority.Certificate())
	s.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven,
		Certificates: []tls.Certificate{c.Issue(t, certs.Leaf{
			User: "kube-apiserver", DNSNames: []string{"kubernetes.default.svc"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Serves: true,
		})},
	}
	s.StartTLS()
	t.Cleanup(s.Kill)
	return s
}

// SetReady sets the code of /readyz.
func (s *Server) SetReady(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = code
}

func (s *Server) readyz() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// Freeze makes the server hang, as a stopped process does: it accepts connections and neither reads
// nor writes.
func (s *Server) Freeze() { s.listener.freeze() }

// Thaw ends Freeze.
func (s *Server) Thaw() { s.listener.thaw() }

// Kill ends the server and its connections at once.
func (s *Server) Kill() {
	s.listener.closeAll()
	s.CloseClientConnections()
	s.Close()
}

// faultyListener freezes its connections.
type faultyListener struct {
	net.Listener
	mu     sync.Mutex // guards the fields below
	thawed chan struct{}
	open   []net.Conn
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func (l *faultyListener) freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.thawed = make(chan struct{})
}

func (l *faultyListener) thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.thawed:
	default:
		close(l.thawed)
	}
}

func (l *faultyListener) closeAll() {
	l.thaw()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.open {
		_ = conn.Close() // it may be closed
	}
}

func (l *faultyListener) wait() {
	l.mu.Lock()
	thawed := l.thawed
	l.mu.Unlock()
	<-thawed
}

// Accept implements net.Listener.
func (l *faultyListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, raw)
	return &faultyConn{Conn: raw, of: l}, nil
}

type faultyConn struct {
	net.Conn
	of *faultyListener
}

// Read hangs while the server is frozen, also if data came before.
func (c *faultyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.of.wait()
	return n, err
}

// Write hangs while the server is frozen.
func (c *faultyConn) Write(p []byte) (int, error) {
	c.of.wait()
	return c.Conn.Write(p)
}
