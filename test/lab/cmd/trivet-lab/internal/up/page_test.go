package up

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/gateway/web"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/fault"
	"github.com/trivet-dev/trivet/test/lab/cmd/trivet-lab/internal/faultcontroller"
	"github.com/trivet-dev/trivet/test/lab/webtest"
)

// noActions breaks nothing.
type noActions struct{}

func (noActions) Break(context.Context, fault.Fault) (fault.Effect, error) {
	return fault.Effect{Text: "done"}, nil
}
func (noActions) Restore(context.Context, fault.Fault) error { return nil }
func (noActions) Release(context.Context, fault.Fault) error { return nil }
func (noActions) SetSilentNodes(map[string]bool)             {}

// startPage serves the page of the gateway at a URL, with a demo or without, and returns the URL of
// the page with the key.
func startPage(t *testing.T, gatewayURL string, withDemo bool) string {
	t.Helper()
	gateway, err := url.Parse(gatewayURL)
	if err != nil {
		t.Fatal(err)
	}
	var demo http.Handler
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	running := 1
	if withDemo {
		running++
		controller := faultcontroller.New(noActions{}, slog.New(slog.DiscardHandler))
		set := fault.NewSet(fault.Inventory{Zones: map[string][]string{"a": {"n1", "n2"}}, Replicas: []string{"leasesvc-1", "leasesvc-2"}})
		go func() { ended <- controller.Run(ctx, set) }()
		demo = faultcontroller.Handler(controller, func() float64 { return 0.25 }, "token")
	}
	p, err := newPage(settings{server: "127.0.0.1:1", httpServer: gateway.Host}, Options{FreePorts: true}, demo)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range running {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return p.url
}

func TestPage_OnlyADemoHasThePanel(t *testing.T) {
	browser, gateway := webtest.StartBrowser(t), webtest.StartGateway(t, web.Files(), webtest.Cluster{Nodes: 3}).URL
	const panels = `document.querySelectorAll(".demo").length`
	const loaded = `document.querySelector("trivet-nodes [data-part=count]").textContent`
	without := browser.Open(t, startPage(t, gateway, false))
	without.Wait(t, loaded, "3")
	without.Wait(t, panels, "0")
	without.Wait(t, `performance.getEntriesByType("resource").filter(({ name }) => name.includes("/demo")).length`, "0")

	opened := startPage(t, gateway, true)
	window := browser.Open(t, opened)
	window.Wait(t, loaded, "3")
	window.Wait(t, `location.hash`, "") // the address has no key
	window.Eval(t, `location.reload()`)
	window.Wait(t, loaded, "3")
	window.Wait(t, panels, "1")
	window.Wait(t, `[...document.querySelectorAll(".demo-kinds b")].map((kind) => kind.textContent).join()`, "node,zone,service,apiserver,address,pods")
	window.Wait(t, `getComputedStyle(document.querySelector(".demo")).display`, "grid") // its styles are loaded
	window.Eval(t, `document.querySelector("[data-kind=service][data-how=kill]").click()`)
	window.Wait(t, `document.querySelector(".demo-answer").textContent.includes("service leasesvc-1 is broken: done.")`, "true")
	window.Wait(t, `document.querySelector(".demo-steps code").textContent`, "trivet status")
	window.Wait(t, `document.querySelector(".demo-faults b").textContent`, "service leasesvc-1")
	window.Eval(t, `document.querySelector("[data-restore=service]").click()`)
	window.Wait(t, `document.querySelectorAll(".demo-faults").length`, "0")
	window.Eval(t, `document.querySelector('footer a[href="/v1/zones"]').click()`)
	window.Wait(t, `location.protocol + document.body.innerText.includes('"zones"')`, "blob:true")

	// Another window has no key. The demo's panel shows nothing there.
	address, _, _ := strings.Cut(opened, "#")
	stranger := browser.Open(t, address)
	stranger.Wait(t, `document.querySelector("trivet-banner").innerText.includes("Open the URL that trivet dashboard printed")`, "true")
	stranger.Wait(t, `document.querySelectorAll(".demo-kinds").length + document.cookie`, "0")
}

func TestPage_ADemoAddsThePanelOrFails(t *testing.T) {
	for name, c := range map[string]struct {
		path, content, encoding string
		code                    int // of the gateway
		want                    string
		wantCode                int
	}{
		"page":              {"/", "<html><head></head><body></body></html>", "", http.StatusOK, "<html><head>" + panelTags + "</head><body></body></html>", http.StatusOK},
		"page without head": {"/", "<html></html>", "", http.StatusOK, "has no </head>", http.StatusBadGateway},
		"compressed page":   {"/", "compressed", "br", http.StatusOK, `content encoding "br"`, http.StatusBadGateway},
		"refused page":      {"/", "not authorized", "", http.StatusForbidden, "not authorized", http.StatusForbidden},
		"another file":      {"/assets/page.js", "export {};", "", http.StatusOK, "export {};", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.encoding != "" {
					w.Header().Set("Content-Encoding", c.encoding)
				}
				w.WriteHeader(c.code)
				_, _ = w.Write([]byte(c.content))
			}))
			t.Cleanup(gateway.Close)
			page, err := url.Parse(startPage(t, gateway.URL, true))
			if err != nil {
				t.Fatal(err)
			}
			browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			got, text := read(t, browser, http.MethodGet, "http://"+page.Host+c.path)
			if got.StatusCode != c.wantCode || !strings.Contains(text, c.want) {
				t.Errorf("GET: %s with %q, want %d with %q", got.Status, text, c.wantCode, c.want)
			}
			head, text := read(t, browser, http.MethodHead, "http://"+page.Host+c.path)
			if head.StatusCode != got.StatusCode || head.ContentLength != got.ContentLength || text != "" {
				t.Errorf("HEAD: %s with %d bytes and the body %q, GET: %s with %d", head.Status, head.ContentLength, text, got.Status, got.ContentLength)
			}
		})
	}
}

// read sends a request and returns the response with its body.
func read(t *testing.T, browser *http.Client, method, address string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := browser.Do(request)
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

// The panel keeps the rules of the page that it is in.
func TestPage_FilesOfThePanelAreSafe(t *testing.T) {
	webtest.CheckFiles(t, panel)
	files, page := webtest.ReadFiles(t, panel), webtest.ReadFiles(t, web.Files())
	imports := regexp.MustCompile(`from "/([^"]+)"`).FindAllStringSubmatch(files["demo.js"], -1)
	if len(imports) == 0 {
		t.Error("the panel imports nothing of the page")
	}
	for _, match := range imports {
		if page[match[1]] == "" {
			t.Errorf("the panel imports %s, which the page does not have", match[1])
		}
	}
	for name := range files {
		if !strings.Contains(panelTags, `"`+panelFiles+name+`"`) {
			t.Errorf("the page does not load %s", name)
		}
	}
}
