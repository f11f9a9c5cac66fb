package observe_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/trivet-dev/trivet/internal/observe"
)

// pipes is an in-memory listener. Deadlines of its connections use the clock of the bubble.
type pipes struct {
	accept chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newPipes() *pipes {
	return &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accept:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close may be called again, as net/http does with a listener that failed.
func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// dial opens a connection to the listener.
func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.accept <- server
	return client
}

// serve runs an admin server in the bubble of t. The returned function stops it and returns the
// duration of the stop.
func serve(t *testing.T, deps observe.AdminDeps) (*pipes, func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	listener := newPipes()
	done := make(chan error, 1)
	go func() { done <- observe.NewAdmin(observe.AdminConfig{Profiling: true}, deps).Serve(ctx, listener) }()
	return listener, func() time.Duration {
		t.Helper()
		begun := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve returned %v", err)
		}
		return time.Since(begun)
	}
}

// get sends one request on a new connection.
func get(t *testing.T, listener *pipes, target string) (*http.Response, string) {
	t.Helper()
	return ask(t, listener, http.MethodGet, target)
}

func ask(t *testing.T, listener *pipes, method, target string) (*http.Response, string) {
	t.Helper()
	conn := listener.dial()
	defer conn.Close()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://admin"+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return resp, string(text)
}

func TestAdmin_ProbesHaveFormatOfKubeAPIServer(t *testing.T) {
	t.Parallel()
	healthy, ailing := observe.NewChecks(), observe.NewChecks()
	healthy.Add("loops", pass)
	healthy.AddWithDetail("etcd", pass, func() string { return "3 members" })
	ailing.Add("loops", pass)
	ailing.Add("etcd", func() error { return io.ErrUnexpectedEOF })
	ailing.Add("apiserver", func() error { return &multiline{} })
	synctest.Test(t, func(t *testing.T) {
		listener, end := serve(t, observe.AdminDeps{Live: healthy, Ready: ailing})
		defer end()
		const failure = "[-]apiserver failed: first; [+]second\n[-]etcd failed: unexpected EOF\n[+]loops ok\nreadyz check failed\n"
		for target, want := range map[string]struct {
			status int
			text   string
		}{
			"/livez":          {http.StatusOK, "ok"},
			"/livez?verbose":  {http.StatusOK, "[+]etcd ok: 3 members\n[+]loops ok\nlivez check passed\n"},
			"/readyz":         {http.StatusInternalServerError, failure},
			"/readyz?verbose": {http.StatusInternalServerError, failure},
		} {
			resp, text := get(t, listener, target)
			if resp.StatusCode != want.status || text != want.text {
				t.Errorf("GET %s: %d\n%s\nwant %d\n%s", target, resp.StatusCode, text, want.status, want.text)
			}
			if got := resp.Header.Get("Cache-Control"); got != "no-store" {
				t.Errorf("GET %s may be cached: %q", target, got)
			}
		}
	})
}

type multiline struct{}

func (*multiline) Error() string { return "first\n[+]second" }

func TestAdmin_ServesLoopsMetricsAndIndex(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listener, end := serve(t, observe.AdminDeps{
			Gatherer: observe.NewRegistry(),
			Loops:    func() any { return []map[string]string{{"name": "write-back"}} },
		})
		defer end()
		const loops = "[\n  {\n    \"name\": \"write-back\"\n  }\n]\n"
		if resp, text := get(t, listener, "/loops"); resp.StatusCode != http.StatusOK || text != loops {
			t.Errorf("GET /loops: %d\n%s", resp.StatusCode, text)
		}
		_, metrics := get(t, listener, "/metrics")
		for _, want := range []string{`trivet_build_info{version="`, "go_goroutines ", "process_cpu_seconds_total "} {
			if !strings.Contains(metrics, "\n"+want) {
				t.Errorf("GET /metrics has no %s:\n%s", want, metrics)
			}
		}
		_, index := get(t, listener, "/")
		for line := range strings.Lines(index) {
			path, _, _ := strings.Cut(line, " ")
			if resp, _ := get(t, listener, path); resp.StatusCode != http.StatusOK {
				t.Errorf("the index names %s, which answers %d", path, resp.StatusCode)
			}
		}
	})
}

func TestAdmin_WithoutDependenciesStillAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listener, end := serve(t, observe.AdminDeps{})
		defer end()
		got := map[string]string{}
		for _, target := range []string{"/livez", "/readyz", "/loops", "/metrics"} {
			_, got[target] = get(t, listener, target)
		}
		want := map[string]string{"/livez": "ok", "/readyz": "ok", "/loops": "[]\n", "/metrics": ""}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
	})
}

func TestAdmin_RefusesOtherPathsAndMethods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listener, end := serve(t, observe.AdminDeps{Loops: func() any { return func() {} }})
		defer end()
		for _, test := range []struct {
			method, target string
			want           int
		}{
			{http.MethodGet, "/nowhere", http.StatusNotFound},
			{http.MethodGet, "/debug/pprof/nothing", http.StatusNotFound},
			{http.MethodPost, "/livez", http.StatusMethodNotAllowed},
			{http.MethodDelete, "/loops", http.StatusMethodNotAllowed},
			{http.MethodGet, "/loops", http.StatusInternalServerError}, // functions have no JSON
			{http.MethodGet, "/debug/pprof/profile?seconds=1000000000", http.StatusBadRequest},
			{http.MethodGet, "/debug/pprof/trace?seconds=NaN", http.StatusBadRequest},
			{http.MethodGet, "/debug/pprof/heap?seconds=-1", http.StatusBadRequest},
			{http.MethodGet, "/debug/pprof/heap?seconds=soon", http.StatusBadRequest},
		} {
			if resp, text := ask(t, listener, test.method, test.target); resp.StatusCode != test.want {
				t.Errorf("%s %s: %d %s, want %d", test.method, test.target, resp.StatusCode, text, test.want)
			}
		}
	})
}

func TestAdmin_LimitsConcurrentProfiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listener, end := serve(t, observe.AdminDeps{})
		defer end()
		const recording = "/debug/pprof/mutex?seconds=100" // longer than any answer may take otherwise
		results := make(chan int, 2)
		for range cap(results) {
			go func() {
				resp, _ := get(t, listener, recording)
				results <- resp.StatusCode
			}()
		}
		synctest.Wait()
		if resp, _ := get(t, listener, recording); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("a third recording: %d", resp.StatusCode)
		}
		if resp, _ := get(t, listener, "/livez"); resp.StatusCode != http.StatusOK {
			t.Errorf("/livez during recordings: %d", resp.StatusCode)
		}
		for range cap(results) {
			if status := <-results; status != http.StatusOK {
				t.Errorf("a recording within the bounds: %d", status)
			}
		}
		if resp, _ := get(t, listener, "/debug/pprof/mutex"); resp.StatusCode != http.StatusOK {
			t.Errorf("after the recordings: %d", resp.StatusCode)
		}
	})
}

func TestAdmin_ClosesConnectionWithIncompleteHeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listener, end := serve(t, observe.AdminDeps{})
		defer end()
		conn := listener.dial()
		defer conn.Close()
		begun := time.Now()
		if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: admin\r\nX-Slow:"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("the connection lived for %s", took)
		}
	})
}

func TestAdmin_RefusesAHugeHeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listener, end := serve(t, observe.AdminDeps{})
		defer end()
		conn := listener.dial()
		defer conn.Close()
		go func() {
			_, _ = io.Copy(conn, io.MultiReader( // fails when the server hangs up, as it should
				strings.NewReader("GET /livez HTTP/1.1\r\nHost: admin\r\nX-Long: "),
				bytes.NewReader(bytes.Repeat([]byte("x"), 1<<20))))
		}()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("answered %s", resp.Status)
		}
	})
}

func TestAdmin_ServeEndsPromptly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		listener, end := serve(t, observe.AdminDeps{Loops: func() any {
			<-release
			return nil
		}})
		conn := listener.dial()
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /loops HTTP/1.1\r\nHost: admin\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if took := end(); took != 2*time.Second {
			t.Errorf("with a request that never ends, the end took %s", took)
		}
		close(release)
	})
	synctest.Test(t, func(t *testing.T) {
		_, end := serve(t, observe.AdminDeps{})
		synctest.Wait()
		if took := end(); took != 0 {
			t.Errorf("without a request, the end took %s", took)
		}
	})
}

func TestAdmin_ServeReturnsListenerFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listener := newPipes()
		done := make(chan error, 1)
		go func() {
			done <- observe.NewAdmin(observe.AdminConfig{}, observe.AdminDeps{}).Serve(t.Context(), listener)
		}()
		idle := listener.dial()
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve returned %v, want the listener's error", err)
		}
		if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a connection outlives Serve: %v", err)
		}
	})
}

func TestListenAdmin_ErrorNamesTheFlag(t *testing.T) {
	t.Parallel()
	listener, err := observe.ListenAdmin(t.Context(), observe.AdminConfig{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	taken := listener.Addr().String()
	_, err = observe.ListenAdmin(t.Context(), observe.AdminConfig{Listen: taken})
	if err == nil || !strings.Contains(err.Error(), "--admin-listen") || !strings.Contains(err.Error(), taken) {
		t.Errorf("a taken address gives %v", err)
	}
}

func TestAdminConfig_Validate(t *testing.T) {
	t.Parallel()
	for listen, valid := range map[string]bool{
		"127.0.0.1:7611": true,
		"[::1]:0":        true,
		":7611":          true,
		"":               false,
		"127.0.0.1":      false,
		"127.0.0.1:":     true, // as net.Listen has it: any free port
		"127.0.0.1:port": false,
		"::1:7611":       false,
		"127.0.0.1:-1":   false,
		"127.0.0.1:7e4":  false,
		"a:70000":        false,
	} {
		cfg := observe.AdminConfig{Listen: listen}
		if problems := cfg.Validate(); (len(problems) == 0) != valid {
			t.Errorf("%q: %v, want valid %t", listen, problems, valid)
		}
	}
}

func TestAdminConfig_FlagKeepsTheDefaultItIsGiven(t *testing.T) {
	t.Parallel()
	cfg := observe.AdminConfig{Listen: "127.0.0.1:7611"}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	cfg.RegisterFlags(fs)
	if got := fs.Lookup("admin-listen").DefValue; got != "127.0.0.1:7611" {
		t.Errorf("default %q", got)
	}
	if err := fs.Parse([]string{"--admin-listen=:1"}); err != nil {
		t.Fatal(err)
	}
	if cfg.Listen != ":1" {
		t.Errorf("after parsing: %q", cfg.Listen)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
