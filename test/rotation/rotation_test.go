package rotation

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	overlap = 5 * time.Minute
	// kubeletLag is the longest time from a write until a process reads the new file. It is shorter
	// than the overlap, as the smallest --overlap makes sure.
	kubeletLag = 100 * time.Second
	runs       = time.Minute // between two runs of the plan
	// leafLifetime has leaves renewed seven minutes after their issue, when a third of their life
	// is left; the backdating counts as life.
	leafLifetime = 40 * time.Minute
	programs     = 3
)

// installation is what `trivet certs` keeps: authorities and one certificate for each program.
type installation struct {
	policy      certs.Policy
	authorities certs.Authorities
	leaves      [programs]certs.Leaf
	pairs       [programs]certs.KeyPair
	mounts      [programs]identity.Files
}

func install(t *testing.T) *installation {
	t.Helper()
	i := &installation{
		policy: certs.Policy{AuthorityLifetime: 24 * time.Hour, LeafLifetime: leafLifetime, Overlap: overlap},
		leaves: [programs]certs.Leaf{
			certs.ServerLeaf("leasesvc", "trivet-system", "cluster.local"),
			certs.ServerLeaf("gateway", "trivet-system", "cluster.local"),
			certs.ClientLeaf("person"),
		},
	}
	for n := range programs {
		dir := t.TempDir()
		i.mounts[n] = identity.Files{
			CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"), CAFile: filepath.Join(dir, "ca.crt"),
		}
	}
	i.run(t)
	for n := range programs {
		i.mount(t, n)
	}
	return i
}

// run takes the next step of the plan, and reports whether certificates were issued.
func (i *installation) run(t *testing.T) (issued bool) {
	t.Helper()
	now := time.Now()
	next, _, err := i.authorities.Advance(i.policy, now)
	if err != nil {
		t.Error(err)
		return false
	}
	var inUse []*x509.Certificate
	for n, leaf := range i.leaves {
		if next.Signing.RenewReason(i.pairs[n], leaf, i.policy, now) != "" {
			issued = true
			if i.pairs[n], err = next.Signing.Issue(leaf, i.policy.LeafLifetime, now); err != nil {
				t.Error(err)
			}
		}
		chain, err := certs.ParseCertificates(i.pairs[n].CertPEM)
		if err != nil {
			t.Error(err)
			return issued
		}
		inUse = append(inUse, chain[0])
	}
	i.authorities = next.Confirm(inUse, now)
	return issued
}

// mount puts the files of a program in place, one after the other, as a slow copy would.
func (i *installation) mount(t *testing.T, n int) {
	t.Helper()
	for path, text := range map[string][]byte{
		i.mounts[n].CAFile: i.authorities.Bundle(), i.mounts[n].CertFile: i.pairs[n].CertPEM, i.mounts[n].KeyFile: i.pairs[n].KeyPEM,
	} {
		err := os.WriteFile(path+".new", text, 0o600)
		if err == nil {
			err = os.Rename(path+".new", path)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// leases answers GetLease by itself, or by the service behind it.
type leases struct {
	leasev1.UnimplementedLeaseServiceServer
	behind leasev1.LeaseServiceClient
}

func (l *leases) GetLease(ctx context.Context, request *leasev1.GetLeaseRequest) (*leasev1.GetLeaseResponse, error) {
	if l.behind == nil {
		return &leasev1.GetLeaseResponse{}, nil
	}
	return l.behind.GetLease(ctx, request)
}

// WatchLeases goes on until its server ends it.
func (l *leases) WatchLeases(_ *leasev1.WatchLeasesRequest, stream grpc.ServerStreamingServer[leasev1.WatchLeasesResponse]) error {
	<-stream.Context().Done()
	return context.Cause(stream.Context())
}

// process has the metrics, the log and the listener of one server.
type process struct {
	registry *prometheus.Registry
	log      *testkit.LogBuffer
	listener *bufconn.Listener
}

// serve runs a server whose connections live for three seconds, so that handshakes never end.
func serve(t *testing.T, files identity.Files, service *leases) *process {
	t.Helper()
	return serveFor(t, files, service, 3*time.Second)
}

// serveFor runs a server whose connections live for a while; 0 is without end.
func serveFor(t *testing.T, files identity.Files, service *leases, age time.Duration) *process {
	t.Helper()
	p := &process{registry: prometheus.NewRegistry(), log: &testkit.LogBuffer{}, listener: bufconn.Listen(64 << 10)}
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.TLS = files
	cfg.MaxConnectionAge = age
	clients, err := identity.Files{CAFile: files.CAFile}.Client(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server, err := rpcserver.New(cfg, rpcserver.Deps{
		Logger: slog.New(slog.NewTextHandler(p.log, nil)), Metrics: p.registry,
		Authenticator: authn.New(authn.Config{ClientAuthorities: clients.Authorities}), Authorizer: authz.New(nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Register(func(r grpc.ServiceRegistrar) { leasev1.RegisterLeaseServiceServer(r, service) })
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, p.listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return p
}

func dial(t *testing.T, to *process, name string, files identity.Files, log *testkit.LogBuffer) leasev1.LeaseServiceClient {
	t.Helper()
	conn, err := rpcclient.Dial("passthrough:///"+name, rpcclient.Config{TLS: files, ServerName: name},
		slog.New(slog.NewTextHandler(log, nil)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return to.listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return leasev1.NewLeaseServiceClient(conn)
}

// chain is a person that asks the gateway, which asks leasesvc.
type chain struct {
	leasesvc, gateway *process
	person            leasev1.LeaseServiceClient
	log               *testkit.LogBuffer // of the clients
}

func start(t *testing.T, i *installation) *chain {
	c := &chain{log: &testkit.LogBuffer{}}
	c.leasesvc = serve(t, i.mounts[0], &leases{})
	c.gateway = serve(t, i.mounts[1], &leases{behind: dial(t, c.leasesvc, "leasesvc", i.mounts[1], c.log)})
	c.person = dial(t, c.gateway, "gateway", i.mounts[2], c.log)
	return c
}

func (c *chain) call(ctx context.Context) error {
	_, err := c.person.GetLease(ctx, &leasev1.GetLeaseRequest{Name: "namespaces/kube-node-lease/leases/node-1"})
	return err
}

// Leaves are renewed and the authority is changed, while each process reads the files of each step
// at another time. No call fails.
func TestRotation_NoCallFailsWithTheOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := install(t)
		c := start(t, i)
		ctx, stop := context.WithCancel(t.Context())
		var calls atomic.Int64
		var caller sync.WaitGroup
		caller.Go(func() {
			for ctx.Err() == nil {
				if err := c.call(context.WithoutCancel(ctx)); err != nil {
					t.Errorf("call %d: %v", calls.Load(), err)
				}
				calls.Add(1)
				time.Sleep(700 * time.Millisecond)
			}
		})
		first, issued := i.authorities.Signing.Fingerprint(), 0
		var mounts sync.WaitGroup
		var mounting sync.Mutex
		var newest [programs]int // the run whose files a program has
		for run := range 24 {
			i.policy.Rotate = run == 2
			if i.run(t) {
				issued++
			}
			// Each process gets the files with a lag of its own, which changes from run to run.
			copied := *i
			for n := range programs {
				lag := kubeletLag * time.Duration((run*7+n*5)%11) / 11
				mounts.Go(func() {
					time.Sleep(lag)
					mounting.Lock()
					defer mounting.Unlock()
					if run >= newest[n] { // an older version never follows a newer one
						newest[n] = run
						copied.mount(t, n)
					}
				})
			}
			time.Sleep(runs)
		}
		mounts.Wait()
		stop()
		caller.Wait()
		if i.authorities.Signing.Fingerprint() == first || len(i.authorities.Former) != 0 || issued < 2 {
			t.Errorf("the authority was not changed to the end: %d former ones, %d times issued", len(i.authorities.Former), issued)
		}
		if calls.Load() < 1500 {
			t.Errorf("%d calls are too few to prove anything", calls.Load())
		}
		if failed := c.failed(t); len(failed) != 0 {
			t.Errorf("handshakes failed: %v", failed)
		}
	})
}

// An authority that replaces another one without an overlap: calls are refused, never accepted
// unverified, and each side says why. When the last process has the new files, calls succeed.
func TestRotation_WithoutAnOverlapCallsAreRefusedAndTheCauseIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := install(t)
		c := start(t, i)
		if err := c.call(t.Context()); err != nil {
			t.Fatal(err)
		}
		i.authorities, i.pairs = certs.Authorities{}, [programs]certs.KeyPair{}
		i.run(t)
		i.mount(t, 0) // leasesvc alone has the new authority
		time.Sleep(10 * time.Second)
		err := c.call(t.Context())
		if status.Code(err) != codes.Unavailable {
			t.Errorf("a call through the gateway: %v, want %v", err, codes.Unavailable)
		}
		// The gateway does not trust leasesvc, and leasesvc hears so.
		if got := c.failed(t)["leasesvc refused_by_peer"]; got == 0 {
			t.Errorf("leasesvc counts %v", c.failed(t))
		}
		if log := c.log.String(); !strings.Contains(log, "reason=unknown_authority") || !strings.Contains(log, "level=WARN") {
			t.Errorf("the gateway's client does not warn of the authority:\n%s", log)
		}
		i.mount(t, 1)
		time.Sleep(10 * time.Second)
		if err := c.call(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("a person with the former authority: %v, want %v", err, codes.Unavailable)
		}
		// A client that trusts the new authority and presents a certificate of the former one.
		if err := os.WriteFile(i.mounts[2].CAFile, i.authorities.Bundle(), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if err := c.call(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("a person with a certificate of the former authority: %v, want %v", err, codes.Unavailable)
		}
		if got := c.failed(t)["gateway unknown_authority"]; got == 0 {
			t.Errorf("the gateway counts %v", c.failed(t))
		}
		if log := c.gateway.log.String(); strings.Count(log, "reason=unknown_authority") != 1 {
			t.Errorf("the gateway does not warn exactly once of the authority:\n%s", log)
		}
		i.mount(t, 2)
		time.Sleep(10 * time.Second)
		if err := c.call(t.Context()); err != nil {
			t.Errorf("with new files everywhere: %v", err)
		}
	})
}

// A connection outlives the handshake. Its calls do not outlive the authority of its certificate.
func TestRotation_ARemovedAuthorityEndsCallsOnOpenConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, log := install(t), &testkit.LogBuffer{}
		person := dial(t, serveFor(t, i.mounts[0], &leases{}, 0), "leasesvc", i.mounts[2], log)
		call := func() error {
			_, err := person.GetLease(t.Context(), &leasev1.GetLeaseRequest{Name: "namespaces/kube-node-lease/leases/node-1"})
			return err
		}
		if err := call(); err != nil {
			t.Fatal(err)
		}
		watch, err := person.WatchLeases(t.Context(), &leasev1.WatchLeasesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		other, err := certs.NewAuthority("other", certs.AuthorityLifetime, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(i.mounts[0].CAFile, other.CertPEM(), 0o600); err != nil {
			t.Fatal(err)
		}
		removed := time.Now()
		if _, err := watch.Recv(); status.Code(err) != codes.Unauthenticated || time.Since(removed) > 10*time.Second {
			t.Errorf("the watch ended after %v with %v, want NOT_AUTHENTICATED within 10 s", time.Since(removed), err)
		}
		if err := call(); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "authority") {
			t.Errorf("a call on the open connection: %v, want NOT_AUTHENTICATED with the cause", err)
		}
	})
}

// A certificate that was not renewed in time is refused, and the reason names it.
func TestRotation_ExpiredCertificatesAreRefusedAndNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := install(t)
		c := start(t, i)
		time.Sleep(leafLifetime + time.Minute)
		if err := c.call(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("to a gateway whose certificate has expired: %v, want %v", err, codes.Unavailable)
		}
		if log := c.log.String(); !strings.Contains(log, "reason=expired") {
			t.Errorf("the person's client does not name the cause:\n%s", log)
		}
		i.run(t)
		i.mount(t, 0)
		i.mount(t, 1)
		time.Sleep(10 * time.Second)
		if err := c.call(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("from a person whose certificate has expired: %v, want %v", err, codes.Unavailable)
		}
		if got := c.failed(t)["gateway expired"]; got == 0 {
			t.Errorf("the gateway counts %v", c.failed(t))
		}
		before := c.failed(t)
		i.mount(t, 2)
		time.Sleep(10 * time.Second)
		if err := c.call(t.Context()); err != nil {
			t.Errorf("after the renewal: %v", err)
		}
		// A connection that ends without a handshake, such as a port scan's, is no failure of a
		// certificate.
		conn, err := c.gateway.listener.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if diff := cmp.Diff(before, c.failed(t)); diff != "" {
			t.Errorf("failed handshakes after a valid one and a scan (-before +after):\n%s", diff)
		}
	})
}

// failed returns the failed handshakes of both servers that are not zero.
func (c *chain) failed(t *testing.T) map[string]float64 {
	t.Helper()
	counts := map[string]float64{}
	for name, p := range map[string]*process{"leasesvc": c.leasesvc, "gateway": c.gateway} {
		families, err := p.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() != "trivet_tls_handshakes_failed_total" {
				continue
			}
			for _, metric := range family.GetMetric() {
				for _, label := range metric.GetLabel() {
					if value := metric.GetCounter().GetValue(); label.GetName() == "reason" && value > 0 {
						counts[name+" "+label.GetValue()] = value
					}
				}
			}
		}
	}
	return counts
}
