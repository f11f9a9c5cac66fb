package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/apiservertest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const node = "node-1"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a Pool over fake kube-apiservers. The first server is that of the kubeconfig, the
// others are stored endpoints.
type fixture struct {
	*Pool
	cluster *apiservertest.Cluster
	servers []*apiservertest.Server
}

// named answers a whole request with the name of the server and the user of the certificate.
func named(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		user := "anonymous"
		if len(r.TLS.PeerCertificates) > 0 {
			user = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		fmt.Fprintf(w, "%s %s %s", name, user, r.URL.Path)
	})
}

func newFixture(t *testing.T, count int) *fixture {
	t.Helper()
	f := &fixture{cluster: apiservertest.NewCluster(t, node)}
	var addresses []string
	for i := range count {
		s := f.cluster.Serve(t, named(fmt.Sprint(i)))
		f.servers = append(f.servers, s)
		if i > 0 {
			addresses = append(addresses, s.Listener.Addr().String())
		}
	}
	f.Pool = f.open(t, t.TempDir(), addresses)
	f.run(t)
	return f
}

func (f *fixture) open(t *testing.T, dir string, stored []string) *Pool {
	t.Helper()
	p, err := New(Config{
		Kubeconfig: f.cluster.Kubeconfig(t, f.servers[0].URL), Node: node, StateDir: dir,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	p.setEndpoints(stored)
	return p
}

func (f *fixture) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done, pool := make(chan error, 1), f.Pool
	go func() { done <- pool.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// get sends a request and returns its answer.
func (f *fixture) get(t *testing.T, method string, body io.Reader) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "https://any/version", body)
	if err != nil {
		t.Fatal(err)
	}
	return f.answer(request)
}

// put sends a body as it arrives at a server: net/http does not know how to read it again.
func (f *fixture) put(t *testing.T, text string) (string, error) {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://any/version", struct{ io.Reader }{strings.NewReader(text)})
	if err != nil {
		return "", err
	}
	request.ContentLength = int64(len(text))
	return f.answer(request)
}

// answer returns the body of the answer to a request.
func (f *fixture) answer(request *http.Request) (string, error) {
	response, err := f.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

func (f *fixture) mustGet(t *testing.T) string {
	t.Helper()
	text, err := f.get(t, http.MethodGet, nil)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// current returns the server that gets new requests.
func (f *fixture) current(t *testing.T) *apiservertest.Server {
	t.Helper()
	var i int
	if _, err := fmt.Sscanf(f.mustGet(t), "%d", &i); err != nil {
		t.Fatal(err)
	}
	return f.servers[i]
}

func TestRoundTrip_PassesWithTheCertificateOfTheNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1)
	if got, want := f.mustGet(t), "0 system:node:node-1 /version"; got != want {
		t.Errorf("answer %q, want %q", got, want)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://any/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.Anonymous().RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || string(text) != "0 anonymous /healthz" {
		t.Errorf("anonymous answer %q (%v)", text, err)
	}
}

// failoverLimit is the promise of the design. A busy machine may take longer than a quiet one, so
// the limit bounds what the code waits for and not the time of one computation.
const failoverLimit = 2 * time.Second

func TestRoundTrip_DeadServerCostsNoRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 2)
	dead := f.current(t)
	dead.Kill()
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		start := time.Now()
		var body io.Reader
		if method == http.MethodPut {
			body = strings.NewReader("body")
		}
		if _, err := f.get(t, method, body); err != nil {
			t.Errorf("%s after the death of a server: %v", method, err)
		}
		if d := time.Since(start); d > failoverLimit {
			t.Errorf("%s took %v, want %v at most", method, d, failoverLimit)
		}
	}
	for _, h := range f.Snapshot() {
		if dead := h.Address == dead.Listener.Addr().String(); h.Ready == dead || h.Current == dead {
			t.Errorf("health %+v, dead %v", h, dead)
		}
	}
}

func TestRoundTrip_ReadMovesFromAFrozenServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 2)
	frozen := f.current(t)
	frozen.Freeze()
	start := time.Now()
	f.mustGet(t)
	if d := time.Since(start); d > failoverLimit+3*time.Second {
		t.Errorf("the read took %v", d)
	}
	// The next requests do not try it.
	start = time.Now()
	if _, err := f.get(t, http.MethodPut, strings.NewReader("body")); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d > failoverLimit {
		t.Errorf("the next write took %v", d)
	}
	frozen.Thaw()
	testkit.Eventually(t, 30*time.Second, func() error {
		for _, h := range f.Snapshot() {
			if !h.Ready {
				return fmt.Errorf("%+v", h)
			}
		}
		return nil
	})
}

// A write may have reached the frozen server. It must not be sent twice, and must not hang for
// ever.
func TestRoundTrip_WriteToAFrozenServerIsAmbiguousAndEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 2)
	f.current(t).Freeze()
	_, err := f.get(t, http.MethodPut, strings.NewReader("body"))
	if !errors.Is(err, ErrAmbiguous) {
		t.Errorf("error = %v, want %v", err, ErrAmbiguous)
	}
}

// A server that answers with Connection: close sends GOAWAY and leaves later requests of that
// connection unprocessed.
func TestRoundTrip_WritesAreRepeatedAfterGoaway(t *testing.T) {
	t.Parallel()
	const writers, each = 16, 50
	var count atomic.Int32
	cluster := apiservertest.NewCluster(t, node)
	f := &fixture{cluster: cluster, servers: []*apiservertest.Server{cluster.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if count.Add(1)%20 == 0 {
			w.Header().Set("Connection", "close")
		}
		text, _ := io.ReadAll(r.Body)
		_, _ = w.Write(text)
	}))}}
	f.Pool = f.open(t, t.TempDir(), nil)
	f.run(t)
	var group sync.WaitGroup
	var failed atomic.Int32
	for writer := range writers {
		group.Go(func() {
			for number := range each {
				want := fmt.Sprint(writer, number)
				if got, err := f.put(t, want); err != nil {
					failed.Add(1)
					t.Logf("%v", err)
				} else if got != want {
					t.Errorf("the answer to %q is %q", want, got)
				}
			}
		})
	}
	group.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d writes failed", n, writers*each)
	}
	if kept := f.kept.Load(); kept != 0 {
		t.Errorf("%d bytes of bodies are kept after the last answer", kept)
	}
}

// Bodies are kept within a limit. Those beyond it pass once.
func TestRoundTrip_BodiesBeyondTheLimitPass(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1)
	f.kept.Store(maxKeptBodies)
	for _, size := range []int{1, maxKeptBody + 1} {
		if _, err := f.put(t, strings.Repeat("x", size)); err != nil {
			t.Errorf("a body of %d bytes: %v", size, err)
		}
	}
	if kept := f.kept.Load(); kept != maxKeptBodies {
		t.Errorf("%d bytes count as kept, want %d", kept, maxKeptBodies)
	}
}

func TestRoundTrip_WatchOfAFrozenServerEnds(t *testing.T) {
	t.Parallel()
	cluster := apiservertest.NewCluster(t, node)
	s := cluster.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	f := &fixture{cluster: cluster, servers: []*apiservertest.Server{s}}
	f.Pool = f.open(t, t.TempDir(), nil)
	f.run(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://any/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	s.Freeze()
	ended := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(response.Body)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the watch ended as if it were complete")
		}
	case <-time.After(pingAfter + pingTimeout + 20*time.Second):
		t.Error("the watch hangs")
	}
	s.Thaw()
}

// A kube-apiserver without etcd answers pings and delivers nothing. One that stops in good order is
// not ready either, and ends its watches itself.
func TestRoundTrip_WatchMovesFromAServerThatIsNotLive(t *testing.T) {
	t.Parallel()
	var dead atomic.Pointer[apiservertest.Server]
	watched := make(chan string, 8)
	cluster := apiservertest.NewCluster(t, node)
	f := &fixture{cluster: cluster}
	for range 2 {
		var self *apiservertest.Server
		self = cluster.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/livez" {
				if dead.Load() == self {
					w.WriteHeader(http.StatusInternalServerError)
				}
				return
			}
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			watched <- self.Listener.Addr().String()
			<-r.Context().Done()
		}))
		f.servers = append(f.servers, self)
	}
	f.Pool = f.open(t, t.TempDir(), []string{f.servers[1].Listener.Addr().String()})
	f.run(t)
	watch := func() (at *apiservertest.Server, ended chan struct{}) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://any/watch", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := f.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		ended = make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.ReadAll(response.Body)
			_ = response.Body.Close()
		}()
		address := <-watched
		for _, s := range f.servers {
			if s.Listener.Addr().String() == address {
				at = s
			}
		}
		return at, ended
	}
	former, ended := watch()
	former.SetReady(http.StatusInternalServerError)
	for _, target := range f.targets {
		target.suspect()
	}
	select {
	case <-ended:
		t.Error("the watch of a server that is live and not ready ended")
	case <-time.After(abandonAfter + 3*retryPeriod):
	}
	dead.Store(former)
	select {
	case <-ended:
	case <-time.After(abandonAfter + 20*time.Second):
		t.Fatal("the watch of a server that is not live goes on")
	}
	if next, _ := watch(); next == former {
		t.Error("the next watch goes to the server that is not live")
	}
}

func TestRoundTrip_ServerThatIsNotReadyIsUsedOnlyIfNoOtherIs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 2)
	leaving := f.current(t)
	leaving.SetReady(http.StatusInternalServerError)
	for _, target := range f.targets {
		target.suspect()
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if f.current(t) == leaving {
			return errors.New("requests go to the server that is not ready")
		}
		return nil
	})
	f.current(t).Kill()
	if f.current(t) != leaving {
		t.Error("the answer is of a dead server")
	}
}

func TestRun_ConnectionsFollowTheCertificate(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1)
	f.mustGet(t)
	before := f.targets[0].connections.Load()
	f.cluster.Rotate(t)
	f.reload()
	if f.targets[0].connections.Load() == before {
		t.Fatal("the connections are those of the former certificate")
	}
	f.mustGet(t)
	testkit.Eventually(t, 30*time.Second, func() error {
		before.mu.Lock()
		defer before.mu.Unlock()
		if n := len(before.open); n > 0 {
			return fmt.Errorf("%d connections of the former certificate are open", n)
		}
		return nil
	})
	// A certificate of another node is not used, nor a file that is not complete.
	if err := os.WriteFile(f.cluster.CertFile, []byte("-----BEGIN CERTIFICATE-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.reload()
	f.mustGet(t)
}

func TestHasCertificate_FollowsTheFileFromItsFirstAppearance(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1)
	hidden := f.cluster.CertFile + ".hidden"
	if err := os.Rename(f.cluster.CertFile, hidden); err != nil {
		t.Fatal(err)
	}
	f.Pool = f.open(t, t.TempDir(), nil)
	if f.HasCertificate() {
		t.Fatal("there is a certificate before there is a file")
	}
	if err := os.Rename(hidden, f.cluster.CertFile); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if !f.HasCertificate() {
			return errors.New("no certificate")
		}
		return nil
	})
	another := apiservertest.NewCluster(t, "another-node")
	f.cluster.CertFile = another.CertFile
	f.Pool = f.open(t, t.TempDir(), nil)
	if f.HasCertificate() {
		t.Error("the certificate of another node is used")
	}
	f.connectionsClose()
}

func (f *fixture) connectionsClose() {
	for _, t := range f.targets {
		t.connections.Load().close()
	}
}

// discovery serves the endpoints of default/kubernetes, as a slice or, to a node that may not read
// slices, as Endpoints.
type discovery struct {
	slice, endpoints atomic.Value // string; empty means forbidden
}

func (d *discovery) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/version" {
		named(r.Host).ServeHTTP(w, r)
		return
	}
	text, _ := d.endpoints.Load().(string)
	if strings.Contains(r.URL.Path, "endpointslices") {
		text, _ = d.slice.Load().(string)
	}
	if text == "" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	_, _ = io.WriteString(w, text)
}

func TestDiscover_FollowsEndpointsAndStoresThem(t *testing.T) {
	t.Parallel()
	cluster := apiservertest.NewCluster(t, node)
	d := &discovery{}
	f := &fixture{cluster: cluster, servers: []*apiservertest.Server{cluster.Serve(t, d), cluster.Serve(t, d)}}
	address := f.servers[1].Listener.Addr().String()
	host, port, _ := strings.Cut(address, ":")
	dir := t.TempDir()
	discovering := func() *Pool {
		p, err := New(Config{Kubeconfig: cluster.Kubeconfig(t, f.servers[0].URL), Node: node, StateDir: dir, Discover: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, set := range map[string]func(){
		"slice": func() {
			d.slice.Store(`{"endpoints":[{"addresses":["` + host + `","not an address"],"conditions":{"ready":true}},{"addresses":["127.0.0.9"],"conditions":{"ready":false}}],"ports":[{"name":"https","port":` + port + `}]}`)
		},
		"endpoints": func() {
			d.slice.Store("")
			d.endpoints.Store(`{"subsets":[{"addresses":[{"ip":"` + host + `"}],"ports":[{"name":"https","port":` + port + `}]}]}`)
		},
	} {
		set()
		f.Pool = discovering()
		got, err := f.readEndpoints(t.Context())
		if err != nil || len(got) != 1 || got[0] != address {
			t.Errorf("%s: %q, %v, want %q", name, got, err, address)
		}
		f.use(got)
		f.connectionsClose()
	}
	// The next start uses what was stored, if the server of the kubeconfig is dead.
	f.servers[0].Kill()
	f.Pool = discovering()
	f.run(t)
	if got := f.mustGet(t); !strings.HasPrefix(got, address+" ") {
		t.Errorf("answer %q, want one of %s", got, address)
	}
}

func TestDiscover_StaleOrDamagedListFallsBackToTheKubeconfig(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"stale":   `["127.0.0.1:1","127.0.0.2:1"]`,
		"damaged": `["127.0.0`,
		"hostile": `["0.0.0.0:6443","224.0.0.1:6443","127.0.0.1:0","name:6443"]`,
	} {
		t.Run(name, func(t *testing.T) {
			cluster := apiservertest.NewCluster(t, node)
			f := &fixture{cluster: cluster, servers: []*apiservertest.Server{cluster.Serve(t, named("0"))}}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, endpointsFile), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			var err error
			f.Pool, err = New(Config{Kubeconfig: cluster.Kubeconfig(t, f.servers[0].URL), Node: node, StateDir: dir, Discover: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
			if err != nil {
				t.Fatal(err)
			}
			if want := map[string]int{"stale": 3}[name]; want != 0 && len(f.Snapshot()) != want {
				t.Errorf("servers %+v, want %d", f.Snapshot(), want)
			}
			f.run(t)
			if got := f.mustGet(t); !strings.HasPrefix(got, "0 ") {
				t.Errorf("answer %q", got)
			}
		})
	}
}
