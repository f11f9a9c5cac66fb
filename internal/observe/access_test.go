package observe_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/test/lab/httpaccesstest"
)

// serveTLS runs an admin server with profiles and callers until the test ends.
func serveTLS(t *testing.T, deps observe.AdminDeps) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- observe.NewAdmin(observe.AdminConfig{Profiling: true}, deps).Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return listener.Addr().String()
}

func answer(t *testing.T, client *http.Client, url string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// Only probes are open. Every other path needs the right to get it, also a path that does not
// exist.
func TestAdmin_EachPathForEachCaller(t *testing.T) {
	callers := httpaccesstest.New(t)
	address := serveTLS(t, observe.AdminDeps{Gatherer: observe.NewRegistry(), Access: callers.Access})
	open := map[string]bool{"/livez": true, "/readyz": true, "/readyz?verbose": true}
	for _, path := range []string{
		"/livez", "/readyz", "/readyz?verbose", "/", "/loops", "/metrics", "/nowhere", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/symbol",
		"/debug/pprof/goroutine?debug=1", "/debug/pprof/profile?seconds=0", "/debug/pprof/trace?seconds=0",
	} {
		for _, caller := range httpaccesstest.Callers() {
			want := map[httpaccesstest.Caller]int{
				httpaccesstest.None: http.StatusUnauthorized, httpaccesstest.Forger: http.StatusUnauthorized,
				httpaccesstest.Stranger: http.StatusForbidden,
			}[caller]
			switch {
			case open[path], want == 0 && path != "/nowhere":
				want = http.StatusOK
			case want == 0:
				want = http.StatusNotFound
			}
			if strings.HasSuffix(path, "profile?seconds=0") && want == http.StatusOK {
				continue // 0 seconds are 30, and the caller was let through by the other profiles
			}
			response, body := answer(t, callers.Client(caller), "https://"+address+path)
			if response.StatusCode != want {
				t.Errorf("GET %s by %s: %d %s, want %d", path, caller, response.StatusCode, body, want)
			}
			switch challenge := response.Header.Get("WWW-Authenticate"); {
			case want == http.StatusUnauthorized && !strings.HasPrefix(challenge, "Bearer"):
				t.Errorf("GET %s by %s: 401 with WWW-Authenticate %q", path, caller, challenge)
			case want == http.StatusForbidden && !strings.Contains(body, "kubectl auth can-i get "+strings.SplitN(path, "?", 2)[0]+" --as stranger"):
				t.Errorf("GET %s by %s: 403 without the command that shows it: %s", path, caller, body)
			}
		}
	}
}

func TestAdmin_ATokenEndsTheLimitsOfStrangers(t *testing.T) {
	callers := httpaccesstest.New(t)
	callers.OnePlaceForStrangers(t)
	callers.CheckPlaces(t, serveTLS(t, observe.AdminDeps{Gatherer: observe.NewRegistry(), Access: callers.Access}), "/metrics")
}

// A token that names hundreds of groups is long.
func TestAdmin_TakesLongTokens(t *testing.T) {
	callers := httpaccesstest.New(t)
	callers.CheckLongTokens(t, "https://"+serveTLS(t, observe.AdminDeps{Gatherer: observe.NewRegistry(), Access: callers.Access})+"/metrics")
}

// A cause may name addresses of the cluster. Probes of kubelets have no credentials.
func TestAdmin_ProbesTellReasonsToCallersWithTheRight(t *testing.T) {
	callers := httpaccesstest.New(t)
	ready := observe.NewChecks()
	ready.Add("etcd", func() error { return io.ErrUnexpectedEOF })
	ready.AddWithDetail("loops", pass, func() string { return "3 loops" })
	address := serveTLS(t, observe.AdminDeps{Ready: ready, Access: callers.Access})
	const withheld = "[-]etcd failed: reason withheld\n[+]loops ok\nreadyz check failed\n"
	const full = "[-]etcd failed: unexpected EOF\n[+]loops ok: 3 loops\nreadyz check failed\n"
	for caller, want := range map[httpaccesstest.Caller]string{
		httpaccesstest.None: withheld, httpaccesstest.Stranger: withheld, httpaccesstest.Forger: withheld,
		httpaccesstest.Viewer: full, httpaccesstest.Admin: full,
	} {
		response, body := answer(t, callers.Client(caller), "https://"+address+"/readyz?verbose")
		if response.StatusCode != http.StatusInternalServerError || body != want {
			t.Errorf("%s gets %d\n%s\nwant 500\n%s", caller, response.StatusCode, body, want)
		}
	}
}

func TestAdmin_ProfilesAreOffByDefault(t *testing.T) {
	callers := httpaccesstest.New(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- observe.NewAdmin(observe.AdminConfig{}, observe.AdminDeps{Access: callers.Access}).Serve(ctx, listener)
	}()
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline"} {
		if response, _ := answer(t, callers.Client(httpaccesstest.Admin), "https://"+listener.Addr().String()+path); response.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: %d, want 404", path, response.StatusCode)
		}
	}
	if _, index := answer(t, callers.Client(httpaccesstest.Admin), "https://"+listener.Addr().String()+"/"); strings.Contains(index, "pprof") {
		t.Errorf("the index names profiles:\n%s", index)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// somewhere is a listener with the address of another machine.
type somewhere struct{ net.Listener }

func (somewhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7611} }

func TestAdmin_ServesPlainHTTPOnLoopbackOnly(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	err = observe.NewAdmin(observe.AdminConfig{}, observe.AdminDeps{}).Serve(t.Context(), somewhere{listener})
	if err == nil || !strings.Contains(err.Error(), "--admin-listen=192.0.2.1:7611") {
		t.Errorf("Serve() = %v, want an error that names the flag and the address", err)
	}
	if _, err := listener.Accept(); err == nil {
		t.Error("the listener is still open")
	}
}

// A website's name may resolve to 127.0.0.1. Its scripts read nothing of a server with --insecure.
func TestAdmin_AForeignHostIsRefusedOnLoopback(t *testing.T) {
	address := serveTLS(t, observe.AdminDeps{Gatherer: observe.NewRegistry()})
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]int{
		"evil.example": http.StatusMisdirectedRequest, "evil.example:" + port: http.StatusMisdirectedRequest,
		address: http.StatusOK, "localhost:" + port: http.StatusOK,
	} {
		for _, path := range []string{"/metrics", "/loops", "/readyz", "/debug/pprof/cmdline"} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Host = host
			response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("GET %s of host %s: %s, want %d", path, host, response.Status, want)
			}
		}
	}
}
