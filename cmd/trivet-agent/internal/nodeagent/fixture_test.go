package nodeagent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	beatInterval  = 100 * time.Millisecond
	probeInterval = 100 * time.Millisecond
	// patience is for a loaded machine.
	patience = 30 * time.Second
)

// beat is what leasesvc got: a registration or a beat, with the certificate of its stream.
type beat struct {
	registered bool
	age        time.Duration
	reported   bool          // it has a report
	cutOff     time.Duration // -1 for a kubelet that is not cut off
	holder     string
	bootID     string
	client     string // serial number of the client certificate
	info       string
}

// fakeLeasesvc accepts every holder, over TLS with client certificates.
type fakeLeasesvc struct {
	leasev1.UnimplementedHeartbeatServiceServer
	address string

	mu       sync.Mutex // guards the fields below
	beats    []beat
	released []*leasev1.ReleaseLeaseRequest
	reauth   bool
}

func startLeasesvc(t *testing.T, authority *certs.Authority) *fakeLeasesvc {
	t.Helper()
	pair, err := authority.Issue(certs.ServerLeaf("leasesvc", "trivet-system", "cluster.local"), time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(authority.Certificate())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeLeasesvc{address: listener.Addr().String()}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS13,
	})))
	leasev1.RegisterHeartbeatServiceServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s
}

func (s *fakeLeasesvc) StreamHeartbeats(rpc grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
	caller, _ := peer.FromContext(rpc.Context())
	leaf := caller.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0]
	holder := &leasev1.Holder{}
	info := ""
	for {
		request, err := rpc.Recv()
		if err != nil {
			return err
		}
		if c := request.ClientInfo; c != nil {
			info = fmt.Sprintf("%s %v", c.Agent, c.Features)
		}
		grant := &leasev1.Grant{Epoch: 1, NextInterval: durationpb.New(beatInterval), Ttl: durationpb.New(time.Minute)}
		response := &leasev1.StreamHeartbeatsResponse{Sequence: request.Sequence}
		one := beat{age: -1, cutOff: -1, client: leaf.SerialNumber.String(), info: info}
		for _, registration := range request.Registrations {
			holder = registration.Holder
			one.registered = true
			one.take(registration.Report)
			response.RegistrationResults = append(response.RegistrationResults, &leasev1.RegistrationResult{Handle: 1, Result: &leasev1.RegistrationResult_Grant{Grant: grant}})
		}
		for _, report := range request.Reports {
			response.Grant = grant
			one.take(report.Report)
		}
		if len(request.Handles) > 0 {
			response.Grant = grant
		}
		one.holder, one.bootID = holder.Name, holder.BootId
		s.mu.Lock()
		s.beats = append(s.beats, one)
		if s.reauth {
			response.Directive, s.reauth = leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH, false
		}
		s.mu.Unlock()
		if err := rpc.Send(response); err != nil {
			return err
		}
	}
}

func (b *beat) take(report *leasev1.Report) {
	b.reported = report != nil
	if age := report.GetObservedAge(); age != nil {
		b.age = age.AsDuration()
	}
	if age := report.GetCutOffAge(); age != nil {
		b.cutOff = age.AsDuration()
	}
}

func (s *fakeLeasesvc) ReleaseLease(_ context.Context, request *leasev1.ReleaseLeaseRequest) (*leasev1.ReleaseLeaseResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = append(s.released, request)
	return &leasev1.ReleaseLeaseResponse{}, nil
}

// last returns the last beat and the number of beats.
func (s *fakeLeasesvc) last() (beat, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.beats) == 0 {
		return beat{}, 0
	}
	return s.beats[len(s.beats)-1], len(s.beats)
}

// awaitBeat waits for a beat after the first n that meets a condition.
func (s *fakeLeasesvc) awaitBeat(t *testing.T, what string, n int, holds func(beat) bool) beat {
	t.Helper()
	var found beat
	await(t, what, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, b := range s.beats[min(n, len(s.beats)):] {
			if holds(b) {
				found = b
				return true
			}
		}
		return false
	})
	return found
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after %v", what, patience)
		}
	}
}

// fakeKubelet answers health checks while it is healthy.
type fakeKubelet struct {
	*httptest.Server
	silent atomic.Bool
}

func startKubelet(t *testing.T) *fakeKubelet {
	k := &fakeKubelet{}
	k.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if k.silent.Load() {
			<-r.Context().Done() // a kubelet that hangs
		}
	}))
	t.Cleanup(k.Close)
	return k
}

// fixture is a node with its certificate as a kubelet stores it: one file with certificate and key,
// behind a symbolic link.
type fixture struct {
	authority *certs.Authority
	leasesvc  *fakeLeasesvc
	kubelet   *fakeKubelet
	dir       string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	authority, err := certs.NewAuthority("test", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{authority: authority, leasesvc: startLeasesvc(t, authority), kubelet: startKubelet(t), dir: t.TempDir()}
	f.write(t, "ca.crt", authority.CertPEM())
	return f
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fixture) write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(f.path(name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// rotate issues a certificate of the node and makes kubelet-client-current.pem lead to it.
func (f *fixture) rotate(t *testing.T, node, file string) {
	t.Helper()
	pair, err := f.authority.Issue(certs.NodeLeaf(node), time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	f.write(t, file, append(pair.CertPEM, pair.KeyPEM...))
	link := f.path("next")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link, f.path("kubelet-client-current.pem")); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) config() Config {
	cfg := DefaultConfig(nil)
	cfg.ClientCertFile, cfg.ClientKeyFile = f.path("kubelet-client-current.pem"), f.path("kubelet-client-current.pem")
	cfg.Leasesvc.Addresses, cfg.Leasesvc.CAFile = []string{f.leasesvc.address}, f.path("ca.crt")
	cfg.Kubelet.Healthz, cfg.Kubelet.Interval, cfg.Kubelet.Timeout = f.kubelet.URL, probeInterval, time.Second
	cfg.StateDir, cfg.Admin.Listen = f.path("state"), "127.0.0.1:0"
	return cfg
}

// process is a running agent.
type process struct {
	log     *testkit.LogBuffer
	cancel  context.CancelFunc
	done    chan error
	stopped atomic.Bool
}

func start(t *testing.T, cfg Config) *process {
	t.Helper()
	if problems := cfg.Validate(); len(problems) > 0 {
		t.Fatalf("config: %v", problems)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{log: &testkit.LogBuffer{}, cancel: cancel, done: make(chan error, 1)}
	go func() { p.done <- Run(ctx, cfg, slog.New(slog.NewTextHandler(io.MultiWriter(p.log, t.Output()), nil))) }()
	t.Cleanup(func() { p.stop(t) })
	return p
}

func (p *process) stop(t *testing.T) {
	t.Helper()
	if p.stopped.Swap(true) {
		return
	}
	p.cancel()
	if err := <-p.done; err != nil {
		t.Errorf("run: %v", err)
	}
}

var adminAddress = regexp.MustCompile(`admin=(\S+)`)

// get returns the body and the code of a path of the admin server.
func (p *process) get(t *testing.T, path string) (string, int) {
	t.Helper()
	var address string
	await(t, "admin server", func() bool {
		found := adminAddress.FindStringSubmatch(p.log.String())
		if found != nil {
			address = found[1]
		}
		return found != nil
	})
	response, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body), response.StatusCode
}

// awaitReady waits until /readyz has a text.
func (p *process) awaitReady(t *testing.T, want string) {
	t.Helper()
	await(t, "/readyz has "+want, func() bool {
		body, _ := p.get(t, "/readyz?verbose")
		return strings.Contains(body, want)
	})
}
