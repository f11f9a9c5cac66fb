package kubelet_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubelet"
)

// fakeKubelet is a health server whose behaviour a test may change at any time.
type fakeKubelet struct {
	*httptest.Server
	answer     atomic.Pointer[http.HandlerFunc]
	atOnce     atomic.Int32 // requests in progress
	mostAtOnce atomic.Int32
}

func healthy(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }

func newFakeKubelet(t *testing.T) *fakeKubelet {
	k := &fakeKubelet{}
	k.become(healthy)
	k.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := k.atOnce.Add(1)
		defer k.atOnce.Add(-1)
		most := k.mostAtOnce.Load()
		for n > most && !k.mostAtOnce.CompareAndSwap(most, n) {
			most = k.mostAtOnce.Load()
		}
		(*k.answer.Load())(w, r)
	}))
	t.Cleanup(k.Close)
	return k
}

func (k *fakeKubelet) become(answer http.HandlerFunc) { k.answer.Store(&answer) }

func run(t *testing.T, cfg kubelet.Config) *kubelet.Prober {
	t.Helper()
	cfg.Interval, cfg.Timeout = 10*time.Millisecond, 200*time.Millisecond
	p := kubelet.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return p
}

// await waits until a condition of the status holds.
func await(t *testing.T, p *kubelet.Prober, what string, holds func(kubelet.Status) bool) kubelet.Status {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		status := p.Status()
		if holds(status) {
			return status
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after 20 s; status %+v", what, status)
		}
	}
}

func TestProber_OnlyAnAnswerOf200InTimeProvesAKubelet(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	elsewhere := newFakeKubelet(t)
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"500": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "syncloop is stuck", http.StatusInternalServerError)
		}, "500"},
		"404": {http.NotFound, "404"},
		"204": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, "204"},
		"redirect to a server that is healthy": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		}, "302"},
		"hangs before its answer": {func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}, "no answer within 200ms"},
		"hangs within its answer": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "2")
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}, "no answer within 200ms"},
		"closes the connection": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newFakeKubelet(t)
			seen := atomic.Int64{}
			p := run(t, kubelet.Config{URL: k.URL + "/healthz", Seen: func(time.Time) { seen.Add(1) }})
			await(t, p, "healthy", func(s kubelet.Status) bool { return s.Answered > 1 && s.Err == nil })
			k.become(test.answer)
			failed := await(t, p, "silent", func(s kubelet.Status) bool { return s.Failed >= 1 })
			if failed.Err == nil || !strings.Contains(failed.Err.Error(), test.want) {
				t.Errorf("error %v; want %q", failed.Err, test.want)
			}
			before := seen.Load()
			later := await(t, p, "probed again", func(s kubelet.Status) bool { return s.Failed >= 3 })
			if !later.LastSeen.Equal(failed.LastSeen) || seen.Load() != before {
				t.Errorf("last seen %v, then %v: a failed probe counts", failed.LastSeen, later.LastSeen)
			}
			k.become(healthy)
			await(t, p, "healthy again", func(s kubelet.Status) bool { return s.Err == nil && s.LastSeen.After(later.LastSeen) })
			// The server may learn late that a probe has ended. Probes that do not wait for each
			// other are twenty at once, the timeout over the interval.
			if n := k.mostAtOnce.Load(); n > 4 {
				t.Errorf("%d probes at once, want one", n)
			}
		})
	}
}

func TestProber_IsTheBeginOfAProbeThatSaysWhenTheKubeletWasSeen(t *testing.T) {
	k := newFakeKubelet(t)
	k.become(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(50 * time.Millisecond)
		healthy(w, r)
	})
	var age atomic.Int64
	p := run(t, kubelet.Config{URL: k.URL, Seen: func(at time.Time) { age.Store(int64(time.Since(at))) }})
	await(t, p, "seen", func(kubelet.Status) bool { return age.Load() > 0 })
	if age := time.Duration(age.Load()); age < 50*time.Millisecond {
		t.Errorf("seen %v ago, although the answer took 50ms", age)
	}
}

func TestProber_AConnectionToAnotherMachineIsRefused(t *testing.T) {
	p := run(t, kubelet.Config{URL: "http://192.0.2.1:10248/healthz"})
	status := await(t, p, "refused", func(s kubelet.Status) bool { return s.Failed >= 1 })
	if !strings.Contains(status.Err.Error(), "not on loopback") {
		t.Errorf("error %v", status.Err)
	}
}

func TestProber_AKubeletThatIsNotThere(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	p := run(t, kubelet.Config{URL: "http://" + address})
	status := await(t, p, "refused", func(s kubelet.Status) bool { return s.Failed >= 2 })
	if !status.LastSeen.IsZero() || !strings.Contains(status.Err.Error(), "connection refused") {
		t.Errorf("status %+v", status)
	}
}
