package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/term"
)

// errorJSON is google.rpc.Status in JSON.
type errorJSON struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Details []struct {
		Type   string `json:"@type"`
		Reason string `json:"reason"`
		Domain string `json:"domain"`
	} `json:"details"`
}

// do sends a request and reads the whole response.
func do(t *testing.T, request *http.Request) (*http.Response, []byte) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	return doWith(t, &http.Client{Transport: transport, Timeout: time.Minute}, request)
}

// doWith is do with the credentials of a client.
func doWith(t *testing.T, client *http.Client, request *http.Request) (*http.Response, []byte) {
	t.Helper()
	response, err := client.Do(request)
	if err != nil {
		t.Fatalf("%s %s: %v", request.Method, request.URL, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("read the answer to %s %s: %v", request.Method, request.URL, err)
	}
	return response, body
}

// send sends a request with a method to a path of the gateway.
func send(t *testing.T, service *gateway.Service, method, path string) (*http.Response, []byte) {
	t.Helper()
	return do(t, request(t, service, method, path))
}

func request(t *testing.T, service *gateway.Service, method, path string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+service.HTTPAddress()+path, nil)
	if err != nil {
		t.Fatalf("make the request: %v", err)
	}
	return r
}

func decode(t *testing.T, body []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
}

// Scripts rely on each field, also if it is empty.
func TestHTTP_AnswersHaveEmptyFieldsToo(t *testing.T) {
	t.Parallel()
	_, m1 := newLeasesvc("l1").start(t, "l1")
	service := startGateway(t, newDirectory(m1), longTimeout)

	response, body := send(t, service, http.MethodGet, "/v1/nodes")

	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%s, %s; want 200, application/json", response.Status, response.Header.Get("Content-Type"))
	}
	var got map[string]any
	decode(t, body, &got)
	delete(got, "sources")
	want := map[string]any{"nodes": []any{}, "nextPageToken": "", "resumeToken": "", "missing": []any{}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("an empty list (-want +got):\n%s", diff)
	}
}

func TestHTTP_Errors(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(dead(t, "leasesvc", "l1")), longTimeout)
	withBody := func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader("{}")), 2 }
	withJSON := func(r *http.Request) { r.Header.Set("Content-Type", "application/json") }
	tests := []struct {
		name, method, path string
		change             func(*http.Request)
		status             int
		reason             string
	}{
		{name: "no replica answers", method: "GET", path: "/v1/nodes", status: 503, reason: "REPLICAS_UNREACHABLE"},
		{name: "no replica answers a watch", method: "GET", path: "/v1/nodes:watch", status: 503, reason: "REPLICAS_UNREACHABLE"},
		{name: "a filter that is none", method: "GET", path: "/v1/nodes:watch?zones=x", status: 400, reason: "VALIDATION_FAILED"},
		{name: "a slash at the end", method: "GET", path: "/v1/nodes/", status: 404, reason: "UNKNOWN_PATH"},
		{name: "broken query", method: "GET", path: "/v1/nodes:watch?zones=%zz", status: 400, reason: "VALIDATION_FAILED"},
		{name: "unknown path", method: "GET", path: "/metrics", status: 404, reason: "UNKNOWN_PATH"},
		{name: "unknown API path", method: "GET", path: "/v1/pods", status: 404, reason: "UNKNOWN_PATH"},
		{name: "unknown asset", method: "GET", path: "/assets/other.js", status: 404, reason: "UNKNOWN_PATH"},
		{name: "path outside of the assets", method: "GET", path: "/assets/..%2Findex.html", status: 404, reason: "UNKNOWN_PATH"},
		{name: "POST", method: "POST", path: "/v1/nodes", change: withJSON, status: 405, reason: "METHOD_NOT_ALLOWED"},
		{name: "a form", method: "POST", path: "/v1/nodes", change: func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, status: 415, reason: "UNEXPECTED_BODY"},
		{name: "overridden method", method: "POST", path: "/v1/nodes", change: func(r *http.Request) { withJSON(r); r.Header.Set("X-HTTP-Method-Override", "GET") }, status: 405, reason: "METHOD_NOT_ALLOWED"},
		{name: "OPTIONS", method: "OPTIONS", path: "/v1/nodes", status: 405, reason: "METHOD_NOT_ALLOWED"},
		{name: "body", method: "GET", path: "/v1/nodes", change: withBody, status: 413, reason: "UNEXPECTED_BODY"},
		{name: "foreign host", method: "GET", path: "/v1/nodes", change: func(r *http.Request) { r.Host = "evil.example" }, status: 421, reason: "FOREIGN_HOST"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := request(t, service, test.method, test.path)
			if test.change != nil {
				test.change(r)
			}

			response, body := do(t, r)

			if response.StatusCode != test.status {
				t.Errorf("HTTP status = %s, want %d", response.Status, test.status)
			}
			var got errorJSON
			decode(t, body, &got)
			if len(got.Details) == 0 || got.Details[0].Reason != test.reason || got.Details[0].Domain != "trivet.dev" {
				t.Errorf("error = %s, want reason %s of trivet.dev", body, test.reason)
			}
		})
	}
}

func TestHTTP_HostsOfThisMachine(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(oneOfLeasesvc(t)), longTimeout)
	for _, host := range []string{"localhost:7680", "LOCALHOST", "127.0.0.1", "[::1]:80", "::1"} {
		r := request(t, service, http.MethodGet, "/v1/nodes")
		r.Host = host
		if response, _ := do(t, r); response.StatusCode != http.StatusOK {
			t.Errorf("as %q: %s, want 200", host, response.Status)
		}
	}
}

// A HEAD of a watch ends, unlike its GET.
func TestHTTP_HEADWorksWhereGETDoes(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(oneOfLeasesvc(t)), longTimeout)
	for path, want := range map[string]int{
		"/": 200, "/assets/main.js": 200, "/v1/openapi.json": 200, "/v1/nodes": 200, "/v1/nodes:watch": 200, "/v1/watch?watch=/v1/nodes:watch": 200,
		"/v1/nodes?page_size=x": 400, "/v1/nowhere": 404, "/livez": 200,
	} {
		response, body := send(t, service, http.MethodHead, path)
		if response.StatusCode != want || len(body) != 0 || response.Header.Get("Content-Type") == "" {
			t.Errorf("%s: %s, %d bytes, %v; want %d and headers alone", path, response.Status, len(body), response.Header, want)
		}
	}
}

// A refused method comes with those that the path has.
func TestHTTP_AllowNamesTheMethodsOfThePath(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(oneOfLeasesvc(t)), longTimeout)
	for path, want := range map[string]string{
		"/": "GET, HEAD", "/assets/main.js": "GET, HEAD", "/v1/openapi.json": "GET, HEAD", "/v1/watch": "GET, HEAD", "/livez": "GET, HEAD",
		"/v1/nodes": "GET, HEAD", "/v1/nodes:watch": "GET, HEAD", "/v1/nodes/a": "GET, HEAD", "/v1/repairplans": "GET, HEAD, POST", "/v1/baseline:reconcile": "POST",
	} {
		response, body := send(t, service, http.MethodDelete, path)
		if got := response.Header.Get("Allow"); response.StatusCode != http.StatusMethodNotAllowed || got != want {
			t.Errorf("DELETE %s: %s, Allow %q, %s; want 405 and %q", path, response.Status, got, body, want)
		}
	}
}

// Errors of a query name the parameter and what is valid.
func TestHTTP_QueriesAreExplained(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(oneOfLeasesvc(t)), longTimeout)
	for query, want := range map[string]string{
		"/v1/nodes?page_size=abc":               `page_size="abc": must be a whole number`,
		"/v1/nodes?pageSize=99999999999":        `pageSize="99999999999": is too large a number`,
		"/v1/nodes?page_size=1&page_size=2":     `the parameter "page_size" has 2 values, and takes one`,
		"/v1/nodes:watch?healths=READY":         `healths="READY": must be one of HEALTH_STARTING, HEALTH_READY, `,
		"/v1/status:watch?interval=often":       `interval="often": must be a duration, such as 1.5s`,
		"/v1/nodes?colour=red":                  `"/v1/nodes" has no parameter "colour"`,
		"/v1/watch?watch=/v1/nodes?page_size=a": "is no watch",
	} {
		response, body := send(t, service, http.MethodGet, query)
		var got errorJSON
		decode(t, body, &got)
		if response.StatusCode != http.StatusBadRequest || !strings.Contains(got.Message, want) {
			t.Errorf("%s: %s, %q; want 400 and %q", query, response.Status, got.Message, want)
		}
	}
	for _, query := range []string{"/v1/nodes?healths=HEALTH_READY&healths=3&page_size=5", "/v1/status:history"} {
		if response, body := send(t, service, http.MethodGet, query); response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", query, response.Status, body)
		}
	}
}

func TestHTTP_SecurityHeadersOnEveryAnswer(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(oneOfLeasesvc(t)), longTimeout)
	for _, path := range []string{"/", "/assets/main.js", "/v1/nodes", "/nowhere"} {
		r := request(t, service, http.MethodGet, path)
		r.Header.Set("Origin", "https://evil.example")

		response, _ := do(t, r)

		got := map[string]string{}
		for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Access-Control-Allow-Origin"} {
			got[name] = response.Header.Get(name)
		}
		want := map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			"X-Content-Type-Options":  "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Access-Control-Allow-Origin": "",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

func TestHTTP_PageHasETags(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(), longTimeout)
	tests := []struct{ path, contentType string }{
		{path: "/", contentType: "text/html; charset=utf-8"},
		{path: "/assets/main.js", contentType: "text/javascript; charset=utf-8"},
		{path: "/assets/page.css", contentType: "text/css; charset=utf-8"},
		{path: "/assets/icon.svg", contentType: "image/svg+xml"},
	}
	for _, test := range tests {
		first, body := send(t, service, http.MethodGet, test.path)
		if first.StatusCode != http.StatusOK || first.Header.Get("Content-Type") != test.contentType || len(body) == 0 {
			t.Errorf("GET %s: %s, %s, %d bytes; want 200, %s", test.path, first.Status, first.Header.Get("Content-Type"), len(body), test.contentType)
		}
		again := request(t, service, http.MethodGet, test.path)
		again.Header.Set("If-None-Match", first.Header.Get("ETag"))
		if second, _ := do(t, again); second.StatusCode != http.StatusNotModified {
			t.Errorf("GET %s with its ETag: %s, want 304", test.path, second.Status)
		}
	}
}

func TestHTTP_WatchHasALinePerEvent(t *testing.T) {
	t.Parallel()
	k := newLeasesvcWithNodes(2, "l1")
	_, m1 := k.start(t, "l1")
	service := newGateway(t, newDirectory(m1), longTimeout)
	stop := run(t, service)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request(t, service, http.MethodGet, "/v1/nodes:watch").WithContext(ctx))
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)

	for _, want := range []string{"EVENT_TYPE_ADDED", "EVENT_TYPE_ADDED", "EVENT_TYPE_BOOKMARK"} {
		var line struct {
			Result struct {
				Type        string `json:"type"`
				ResumeToken string `json:"resumeToken"`
			} `json:"result"`
		}
		if !lines.Scan() {
			t.Fatalf("the stream ended: %v", lines.Err())
		}
		decode(t, lines.Bytes(), &line)
		if line.Result.Type != want || line.Result.ResumeToken == "" {
			t.Errorf("%s, want %s with a token", lines.Text(), want)
		}
	}

	stop()
	var last []byte
	for lines.Scan() {
		last = append(last[:0], lines.Bytes()...)
	}
	var end struct {
		Error errorJSON `json:"error"`
	}
	decode(t, last, &end)
	if len(end.Error.Details) == 0 || end.Error.Details[0].Reason != "SHUTTING_DOWN" {
		t.Errorf("the last line is %s, want an error with reason SHUTTING_DOWN", last)
	}
}

// oneOfLeasesvc starts a replica that leads the one shard of leasesvc.
func oneOfLeasesvc(t *testing.T) term.Member {
	t.Helper()
	_, member := newLeasesvc("l1").start(t, "l1")
	return member
}

// A client that announces a body and never sends it must not hold the connection.
func TestHTTP_ServerDoesNotWaitForABody(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(oneOfLeasesvc(t)), longTimeout)
	conn, err := net.Dial("tcp", service.HTTPAddress())
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatalf("set a deadline: %v", err)
	}
	if _, err := io.WriteString(conn, "GET /v1/nodes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"); err != nil {
		t.Fatalf("send: %v", err)
	}

	answer, err := io.ReadAll(conn) // ends when the server closes

	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 413 ") {
		t.Errorf("answer = %q, %v; want 413 and the end of the connection", answer, err)
	}
}

func TestHTTP_OversizeHeadersAreRejected(t *testing.T) {
	t.Parallel()
	service := startGateway(t, newDirectory(oneOfLeasesvc(t)), longTimeout)
	r := request(t, service, http.MethodGet, "/v1/nodes")
	r.Header.Set("X-Long", strings.Repeat("x", authn.MaxHeaderBytes+8<<10))

	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	defer response.Body.Close() // not read: the server has closed the connection

	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("HTTP status = %s, want 431", response.Status)
	}
}

func TestRun_PortInUseNamesItsFlag(t *testing.T) {
	t.Parallel()
	taken := listen(t)
	defer taken.Close()
	service, err := gateway.New(gateway.Config{HTTPListen: taken.Addr().String(), BackendTimeout: time.Second}, deps(newDirectory()))
	if err != nil {
		t.Fatalf("New() = %v", err)
	}

	err = service.Run(t.Context())

	if err == nil || !strings.Contains(err.Error(), "--http-listen=\""+taken.Addr().String()) {
		t.Errorf("Run() = %v, want an error that names --http-listen and %s", err, taken.Addr())
	}
}
