package kubeconn_test

import (
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/kubeconn"
)

const testPeriod = 10 * time.Millisecond

// probing runs a probe until the test ends.
func probing(t *testing.T, cfg *rest.Config) *kubeconn.Probe {
	t.Helper()
	probe := kubeconn.NewProbe(cfg, testPeriod)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- probe.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := receive(t, done); err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	return probe
}

// becomes waits until the probe's check says want; "" is nil.
func becomes(t *testing.T, probe *kubeconn.Probe, want string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		got := ""
		if err := probe.Check(); err != nil {
			got = err.Error()
		}
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("Check() says\n%q, want\n%q", got, want)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestProbe_FollowsTheAPIServer(t *testing.T) {
	t.Parallel()
	type answer struct {
		status int
		text   string
	}
	var now atomic.Pointer[answer]
	var paths atomic.Pointer[string]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths.Store(&r.URL.Path)
		w.WriteHeader(now.Load().status)
		_, _ = io.WriteString(w, now.Load().text)
	}))
	defer server.Close()
	now.Store(&answer{http.StatusOK, "ok"})
	cfg := &rest.Config{Host: server.URL + "/behind/a/proxy"}
	probe := kubeconn.NewProbe(cfg, testPeriod)
	if err := probe.Check(); err == nil || !probe.LastContact().IsZero() {
		t.Errorf("before Run: %v, last contact %s", err, probe.LastContact())
	}

	probe = probing(t, kubeconn.Fence(cfg))
	becomes(t, probe, "")
	if got := *paths.Load(); got != "/behind/a/proxy/readyz" {
		t.Errorf("asked for %s", got)
	}
	if age := time.Since(probe.LastContact()); age < 0 || age > 10*time.Second {
		t.Errorf("last contact %s ago", age)
	}

	prefix, suffix := "kube-apiserver "+cfg.Host+" not ready: ", "; retrying every 10ms"
	for _, step := range []struct {
		answer answer
		reason string
	}{
		{answer{http.StatusInternalServerError, "[+]ping ok\n[-]etcd failed: reason withheld\n[-]shutdown failed: reason withheld\nreadyz check failed\n"}, "failed checks: etcd, shutdown"},
		{answer{http.StatusServiceUnavailable, "<html>no backend</html>"}, "the response was 503 Service Unavailable"},
		{answer{http.StatusUnauthorized, "{}"}, "the credentials are not accepted (401); renew them in the kubeconfig or the service account"},
		{answer{http.StatusForbidden, "{}"}, "reading /readyz is forbidden (403); bind the ClusterRole system:public-info-viewer to this user"},
		{answer{http.StatusBadGateway, strings.Repeat("x", 1<<20)}, "the response was 502 Bad Gateway"},
	} {
		now.Store(&step.answer)
		becomes(t, probe, prefix+step.reason+suffix)
	}
	now.Store(&answer{http.StatusOK, "ok"})
	becomes(t, probe, "")
}

func TestProbe_SaysWhyThereIsNoConnection(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	address := server.Listener.Addr().String()
	server.Close()
	becomes(t, probing(t, &rest.Config{Host: server.URL}),
		"kube-apiserver "+server.URL+" not ready: dial tcp "+address+": connect: connection refused; retrying every 10ms")
}

func TestProbe_WaitsForCertificatesThatAreNotThereYet(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	cfg := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAFile: ca}}
	probe := probing(t, cfg)
	becomes(t, probe, "kube-apiserver "+server.URL+" not ready: open "+ca+": no such file or directory; retrying every 10ms")

	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca+".new", certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(ca+".new", ca); err != nil {
		t.Fatal(err)
	}
	becomes(t, probe, "")
}

func TestProbe_GivesUpOnAnAPIServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Time
		cfg := &rest.Config{Host: "http://silent", Dial: func(context.Context, string, string) (net.Conn, error) {
			asked = append(asked, time.Now())
			client, server := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, server) }() // listens, says nothing
			return client, nil
		}}
		probe := kubeconn.NewProbe(cfg, 0)
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 29*time.Second)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- probe.Run(ctx) }()

		time.Sleep(4 * time.Second)
		if err := probe.Check(); err == nil || err.Error() != "kube-apiserver http://silent not contacted yet" {
			t.Errorf("while the first question waits: %v", err)
		}
		time.Sleep(2 * time.Second)
		const want = "kube-apiserver http://silent not ready: no answer within 5s; retrying every 2s"
		if err := probe.Check(); err == nil || err.Error() != want {
			t.Errorf("after the first question: %v, want %s", err, want)
		}
		if got, want := probe.LastContact(), begun.Add(5*time.Second); !got.Equal(want) {
			t.Errorf("last contact %s, want %s", got, want)
		}
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
		if took := time.Since(begun); took != 29*time.Second {
			t.Errorf("Run ended after %s, want it at its context's end", took)
		}
		if len(asked) != 6 {
			t.Errorf("asked %d times in 29s, want every 5s without overlap", len(asked))
		}
	})
}
