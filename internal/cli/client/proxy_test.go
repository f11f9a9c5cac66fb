package client_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/trivet-dev/trivet/internal/cli/exit"
)

// proxy is an HTTP proxy that records what it is asked to connect to, and connects to target.
type proxy struct {
	target string

	mu    sync.Mutex // guards asked
	asked []string
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, _, _ := (&http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}).BasicAuth()
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host+" "+user)
	p.mu.Unlock()
	if p.target == "" {
		http.Error(w, "no", http.StatusForbidden)
		return
	}
	to, err := net.Dial("tcp", p.target)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer to.Close()
	w.WriteHeader(http.StatusOK)
	from, received, err := http.NewResponseController(w).Hijack() // received has what came with the request
	if err != nil {
		return
	}
	defer from.Close()
	done := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(to, received); done <- struct{}{} }()
	go func() { _, _ = io.Copy(from, to); done <- struct{}{} }()
	<-done
}

// All connections to one gateway take the same way, and an error names it.
func TestGateway_ConnectsThroughTheProxyOfTheEnvironment(t *testing.T) {
	f := newFixture(t)
	through := &proxy{target: f.gateway.address}
	server := httptest.NewServer(through)
	defer server.Close()
	files := f.clients.Files(t, "person", f.servers)
	env := map[string]string{"HTTPS_PROXY": strings.Replace(server.URL, "http://", "http://ann:secret@", 1)}
	args := []string{"--server", "trivet.example:7600", "--server-name", "gateway", "--ca-file", files.CAFile, "--cert-file", files.CertFile, "--key-file", files.KeyFile}
	askPage := func() error {
		parsed := flags(t, env, args...)
		transport, err := parsed.Gateway.HTTPTransport()
		if err != nil {
			t.Fatal(err)
		}
		defer transport.Close()
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://localhost/", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	if err := get(t, flags(t, env, args...)); err != nil {
		t.Errorf("a call: %v\n%s", err, report(err))
	}
	_ = askPage() // the fixture has no page
	if want := []string{"CONNECT trivet.example:7600 ann", "CONNECT trivet.example:7680 ann"}; !slices.Equal(through.asked, want) {
		t.Errorf("the proxy was asked for %q, want %q", through.asked, want)
	}

	through.target = ""
	err := get(t, flags(t, env, args...))
	if text := report(err); exit.CodeOf(err) != exit.Undetermined || !strings.Contains(text, "through the proxy http://ann:xxxxx@127.0.0.1") || !strings.Contains(text, "403") {
		t.Errorf("a call that the proxy refuses: %s", text)
	}
	if err := askPage(); err == nil || !strings.Contains(err.Error(), "through the proxy http://ann:xxxxx@127.0.0.1") {
		t.Errorf("a page that the proxy refuses: %v", err)
	}

	env["NO_PROXY"] = ".example"
	before := len(through.asked)
	if err := get(t, flags(t, env, append(args, "--timeout", "2s")...)); err == nil || len(through.asked) != before {
		t.Errorf("an address of NO_PROXY: %v, and the proxy was asked for %q", err, through.asked[before:])
	}
}
