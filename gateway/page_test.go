package gateway_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/certs"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	"github.com/trivet-dev/trivet/test/lab/httpaccesstest"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/lab/webtest"
)

// Each window of a page shows all Nodes and goes on showing changes. A browser opens six
// connections to a host, for all its windows.
func TestPage_EightWindowsOfOneBrowserAreAlive(t *testing.T) {
	leasesvc := newLeasesvc("l1")
	for i := range 20 {
		leasesvc.put(fmt.Sprintf("node-%02d", i), "a", nodev1.NodeHealth_HEALTH_READY)
	}
	_, l1 := leasesvc.start(t, "l1")
	gateway := startGateway(t, newDirectory(l1), longTimeout)
	browser := webtest.StartBrowser(t)
	var windows []webtest.Window
	for range 8 {
		windows = append(windows, browser.Open(t, "http://"+gateway.HTTPAddress()+"/"))
	}
	show := func(nodes string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			for i, window := range windows {
				count, err := window.Text(`document.querySelector("trivet-nodes [data-part=count]").textContent`)
				if err == nil && count != nodes {
					notice, _ := window.Text(`document.querySelector("trivet-nodes").textContent + document.querySelector("trivet-banner").textContent + document.visibilityState`)
					err = fmt.Errorf("window %d shows %q Nodes, want %s: %s", i+1, count, nodes, notice)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	show("20")
	leasesvc.put("node-new", "a", nodev1.NodeHealth_HEALTH_READY)
	show("21")
	for i, window := range windows {
		if title, err := window.Text("document.title"); err != nil || title == "Trivet" || title == "? Trivet" {
			t.Errorf("the title of window %d is %q (%v), want one with a status", i+1, title, err)
		}
	}
}

const countedNodes = `document.querySelector("trivet-nodes [data-part=count]").textContent`

// A hidden page follows nothing and claims nothing. It is up to date when it is shown again.
func TestPage_AHiddenPageRests(t *testing.T) {
	leasesvc := newLeasesvc("l1")
	leasesvc.put("node-1", "a", nodev1.NodeHealth_HEALTH_READY)
	leasesvc.put("node-2", "a", nodev1.NodeHealth_HEALTH_READY)
	_, l1 := leasesvc.start(t, "l1")
	gateway := startGateway(t, newDirectory(l1), longTimeout)
	window := webtest.StartBrowser(t).Open(t, "http://"+gateway.HTTPAddress()+"/")
	window.Wait(t, countedNodes, "2")
	show := func(hidden bool) {
		t.Helper()
		if _, err := window.Text(fmt.Sprintf(`Object.defineProperty(document, "hidden", { value: %t, configurable: true }); document.dispatchEvent(new Event("visibilitychange"))`, hidden)); err != nil {
			t.Fatal(err)
		}
	}

	show(true)
	window.Wait(t, "document.title", "Trivet · paused")
	leasesvc.put("node-3", "a", nodev1.NodeHealth_HEALTH_READY)
	leasesvc.remove("node-1")
	leasesvc.remove("node-2")
	show(false)
	window.Wait(t, countedNodes, "1")
	window.Wait(t, "document.title", "▲ Trivet · test")
}

// With two of three services gone, the title, the pill and the drawing say what the API says, and
// the worst problem comes first.
func TestPage_ShowsTheVerdictOfTheAPI(t *testing.T) {
	leasesvc := newLeasesvc("l1")
	leasesvc.put("node-1", "a", nodev1.NodeHealth_HEALTH_UNKNOWN)
	_, l1 := leasesvc.start(t, "l1")
	gateway := startGateway(t, newDirectory(l1), longTimeout)
	window := webtest.StartBrowser(t).Open(t, "http://"+gateway.HTTPAddress()+"/")

	window.Wait(t, "document.title", "▲ Trivet · test")
	window.Wait(t, `document.querySelector("trivet-summary .pill").textContent`, "Failed")
	window.Wait(t, "document.documentElement.dataset.health", "bad")
	for _, name := range []string{"bootstrapsvc", "slicesvc"} {
		section := fmt.Sprintf(`document.querySelector("trivet-service[name=%s]")`, name)
		window.Wait(t, section+`.dataset.health`, "bad")
		window.Wait(t, section+`.querySelector(".problems li").title`, "NO_REPLICA services/"+name)
	}
	answer, body := send(t, gateway, http.MethodGet, "/v1/status")
	if answer.StatusCode != http.StatusOK || !strings.Contains(string(body), `"STATE_FAILED"`) {
		t.Errorf("the API says %s %s, want STATE_FAILED", answer.Status, body)
	}
}

func TestPage_PanelOfANodeSaysItsAgent(t *testing.T) {
	leasesvc := newLeasesvc("l1")
	leasesvc.put("node-1", "a", nodev1.NodeHealth_HEALTH_READY)
	leasesvc.change(func() {
		leasesvc.nodes["nodes/node-1"].Agent = &leasev1.Lease_Agent{Name: "trivet-agent", Version: "v1", Mode: "endpoint"}
	})
	_, l1 := leasesvc.start(t, "l1")
	gateway := startGateway(t, newDirectory(l1), longTimeout)
	window := webtest.StartBrowser(t).Open(t, "http://"+gateway.HTTPAddress()+"/#node/node-1")
	window.Wait(t, `[...document.querySelectorAll("trivet-node-panel dt")].find((dt) => dt.textContent === "Agent")?.nextSibling.textContent`,
		"trivet-agent v1 in mode endpoint")
}

// nginx compresses and buffers what it relays. The page works behind it, and so does a watch alone.
func TestPage_BehindNginxWithCompression(t *testing.T) {
	leasesvc := newLeasesvcWithNodes(3, "l1")
	_, l1 := leasesvc.start(t, "l1")
	gateway := startGateway(t, newDirectory(l1), longTimeout)
	address := webtest.StartNginx(t, fmt.Sprintf(`
		gzip on; gzip_types application/json text/css text/javascript; gzip_proxied any; gzip_min_length 0;
		location / { proxy_pass http://%s; proxy_set_header Host localhost; }`, gateway.HTTPAddress()))
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	for _, path := range []string{"/v1/nodes:watch", "/v1/watch?watch=/v1/nodes:watch"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept-Encoding", "gzip")
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		body := io.Reader(response.Body)
		if response.Header.Get("Content-Encoding") == "gzip" {
			if body, err = gzip.NewReader(response.Body); err != nil {
				t.Errorf("%s: nothing has arrived: %v", path, err)
			}
		}
		lines := bufio.NewScanner(body)
		for range 4 { // three Nodes and a bookmark
			if err == nil && !lines.Scan() {
				t.Errorf("%s: no whole report of the Nodes: %v", path, lines.Err())
			}
		}
		cancel()
		_ = response.Body.Close() // it has no end
	}
	webtest.StartBrowser(t).Open(t, "http://"+address+"/").Wait(t, countedNodes, "3")
}

// The configuration of docs/proxy.md passes on each line of a watch, and the token of each caller.
func TestProxy_TheDocumentedNginxServesWatches(t *testing.T) {
	callers := httpaccesstest.New(t)
	leasesvc := newLeasesvcWithNodes(3, "l1")
	leasesvc.access = newAccessOfReplicas(callers)
	_, l1 := leasesvc.start(t, "l1")
	g := startSecured(t, callers, newDirectory(l1), filesOf(t, callers.Authority, "gateway", certs.GatewayGroup))
	text, err := os.ReadFile(filepath.Join("..", "docs", "proxy.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, documented, _ := strings.Cut(string(text), "```nginx\n")
	documented, _, _ = strings.Cut(documented, "```")
	trust := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(trust, identitytest.Bundle(callers.Authority), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, each := range [][2]string{
		{"gateway.trivet-system.svc:7680", g.service.HTTPAddress()}, {"/etc/nginx/trivet-ca.crt", trust}, {"proxy_ssl_name gateway", "proxy_ssl_name server"},
	} {
		if !strings.Contains(documented, each[0]) {
			t.Fatalf("docs/proxy.md has no %q", each[0])
		}
		documented = strings.ReplaceAll(documented, each[0], each[1])
	}
	address := webtest.StartNginx(t, "gzip on; gzip_types application/json; gzip_min_length 0;\n"+documented)
	watch := func(authorization string) *http.Response {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		t.Cleanup(cancel)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v1/watch?watch=/v1/nodes:watch", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", authorization)
		request.Header.Set("X-Remote-User", "admin") // names no caller
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return response
	}
	if response := watch(""); response.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %s, want 401", response.Status)
	}
	lines := bufio.NewScanner(watch("Bearer " + httpaccesstest.Token(httpaccesstest.Viewer)).Body)
	for range 4 { // three Nodes and a bookmark
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), `{"watch":0,"result":`) {
			t.Fatalf("%q, %v; want a line of the watch", lines.Text(), lines.Err())
		}
	}
}

// dashboard is a proxy on loopback that adds the credentials of a caller, as `trivet dashboard`.
func dashboard(t *testing.T, g securedGateway, caller httpaccesstest.Caller) (address string) {
	t.Helper()
	target, err := url.Parse("https://" + g.service.HTTPAddress())
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: g.callers.Client(caller).Transport, FlushInterval: -1,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// A caller with some rights sees what it may, and which right is missing for the rest. One without
// any right waits for nothing.
func TestPage_TellsWhichRightIsMissing(t *testing.T) {
	callers := httpaccesstest.NewWith(t, decision(func(user authn.User, asked authz.Attributes) bool {
		return user.Name == "viewer" && asked.Resource == "nodes" || user.Name == "gateway"
	}))
	leasesvc := newLeasesvcWithNodes(3, "l1")
	leasesvc.access = newAccessOfReplicas(callers)
	_, l1 := leasesvc.start(t, "l1")
	g := startSecured(t, callers, newDirectory(l1), filesOf(t, callers.Authority, "gateway", certs.GatewayGroup))
	browser := webtest.StartBrowser(t)
	has := func(window webtest.Window, selector, text string) {
		t.Helper()
		window.Wait(t, fmt.Sprintf("document.querySelector(%q).innerText.includes(%q)", selector, text), "true")
	}

	some := browser.Open(t, dashboard(t, g, httpaccesstest.Viewer)+"/")
	some.Wait(t, countedNodes, "3")
	has(some, "trivet-banner", "No access to the status")
	has(some, "trivet-banner code", "kubectl auth can-i watch status.trivet.dev -A --as viewer")
	has(some, "trivet-baseline .notice code", "can-i get baselines.trivet.dev")
	has(some, "trivet-findings .notice", "No access: User \"viewer\" may not watch findings.trivet.dev")
	has(some, "trivet-repairs .notice code", "can-i list repairs.trivet.dev")

	none := browser.Open(t, dashboard(t, g, httpaccesstest.Stranger)+"/")
	has(none, "trivet-nodes .notice code", "kubectl auth can-i watch nodes.trivet.dev -A --as stranger")
	none.Wait(t, `[...document.querySelectorAll("p.muted")].filter((p) => p.innerText.startsWith("Waiting")).length`, "0")

	unknown := browser.Open(t, dashboard(t, g, httpaccesstest.None)+"/")
	has(unknown, "body", "needs a client certificate or a bearer token; `trivet dashboard` presents")
}
