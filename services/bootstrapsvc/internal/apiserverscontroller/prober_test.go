package apiserverscontroller

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// serve starts an apiserver that answers as handler does, and returns it with a config that trusts
// it.
func serve(t *testing.T, handler http.HandlerFunc) (*httptest.Server, *rest.Config) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that fail are what some tests are about
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return server, &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
}

func proberOf(t *testing.T, server *httptest.Server, config *rest.Config) *Prober {
	t.Helper()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return NewProber(config, at)
}

func TestProbe_Answers(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		handler http.HandlerFunc
		ok      bool
		detail  string
	}{
		"ready": {
			handler: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") },
			ok:      true, detail: "ok",
		},
		"not ready, with failed checks": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusInternalServerError)
				fmt.Fprint(w, "[+]ping ok\n[-]etcd failed: reason withheld\n[-]shutdown failed: reason withheld\nreadyz check failed\n")
			},
			detail: "/readyz answered 500 Internal Server Error, failed checks: etcd, shutdown",
		},
		"forbidden": {
			handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
			detail:  "/readyz answered 403 Forbidden",
		},
		"redirected to another server": {
			handler: func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "https://192.0.2.1/readyz", http.StatusFound)
			},
			detail: "/readyz answered 302 Found",
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			server, config := serve(t, test.handler)
			before := time.Now()
			got := proberOf(t, server, config).Probe(t.Context())
			if got.OK != test.ok || got.Detail != test.detail || got.Time.Before(before) {
				t.Errorf("result = %+v, want ok = %t, detail %q", got, test.ok, test.detail)
			}
		})
	}
}

func TestProbe_GetsReadyzOverANewConnectionEachTime(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	server, config := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("path is %s, want /readyz", r.URL.Path)
		}
		seen[r.RemoteAddr] = true
	})
	prober := proberOf(t, server, config)
	for range 3 {
		if got := prober.Probe(t.Context()); !got.OK {
			t.Fatalf("result = %+v", got)
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d connections for 3 probes", len(seen))
	}
}

func TestProbe_CertificateIsVerifiedAsTheConfigSays(t *testing.T) {
	t.Parallel()
	server, trusting := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	named := func(name string) *rest.Config {
		config := rest.CopyConfig(trusting)
		config.ServerName = name
		return config
	}
	for name, test := range map[string]struct {
		config *rest.Config
		ok     bool
	}{
		"no authority":                      {config: &rest.Config{}},
		"the authority":                     {config: trusting, ok: true},
		"insecure-skip-tls-verify":          {config: &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, ok: true},
		"tls-server-name of the server":     {config: named("example.com"), ok: true},
		"tls-server-name of another server": {config: named("other.invalid")},
	} {
		got := proberOf(t, server, test.config).Probe(t.Context())
		if got.OK != test.ok || got.Unverified == test.ok || !test.ok && !strings.Contains(got.Detail, "certificate") {
			t.Errorf("%s: result = %+v, want ok = %t and the cause", name, got, test.ok)
		}
	}
}

// A kube-apiserver on another machine needs no certificate for the machine's address, only one that
// pods accept.
func TestProbe_PeerIsVerifiedAsPodsDo(t *testing.T) {
	t.Parallel()
	server, config := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if got := NewPeerProber(config, at).Probe(t.Context()); got.OK || !got.Unverified || !strings.Contains(got.Detail, "kubernetes.default.svc") {
		t.Errorf("result = %+v, want a certificate without the name of the Service rejected", got)
	}
}

func TestProbe_HangingServerFailsInTime(t *testing.T) {
	t.Parallel()
	server, config := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got := proberOf(t, server, config).Probe(ctx); got.OK || !got.Silent || got.Detail != "/readyz did not answer in time" {
		t.Errorf("result = %+v", got)
	}
}

func TestProbe_RefusedConnectionIsNotSilent(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := &url.URL{Scheme: "https", Host: listener.Addr().String()}
	listener.Close()
	if got := NewProber(&rest.Config{}, at).Probe(t.Context()); got.OK || got.Silent || !strings.Contains(got.Detail, "connection refused") {
		t.Errorf("result = %+v", got)
	}
}

func TestProbe_RotatedTokenCountsAtOnce(t *testing.T) {
	t.Parallel()
	var got string
	server, config := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") })
	config.BearerTokenFile = filepath.Join(t.TempDir(), "token")
	prober := proberOf(t, server, config)
	for _, token := range []string{"one", "two"} {
		if err := os.WriteFile(config.BearerTokenFile, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if result := prober.Probe(t.Context()); !result.OK || got != "Bearer "+token {
			t.Errorf("result = %+v with authorization %q, want token %s", result, got, token)
		}
	}
}
