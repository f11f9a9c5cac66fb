package access

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trivet-dev/trivet/gateway/web"
)

// route is one path of an HTTP server with one method.
type route struct {
	server, method, path string
	// rpc is the kind of the RPC behind the route; "" if there is none.
	rpc kind
}

func (r route) String() string { return r.server + " " + r.method + " " + r.path }

// serverPaths are the routes of the page's server without an RPC, except its files.
var serverPaths = []string{"GET /", "GET /v1/watch?watch=/v1/nodes:watch", "GET /v1/openapi.json", "GET /clusters/access/v1/nodes", "GET /livez", "GET /readyz", "GET /none"}

// staticRoutes returns the routes of the page's server: those of the options of all RPCs and the
// files of the page.
func staticRoutes(f *testing.F) []route {
	f.Helper()
	var found []route
	for _, one := range serverPaths {
		method, path, _ := strings.Cut(one, " ")
		found = append(found, route{server: "page", method: method, path: path})
	}
	files, err := fs.ReadDir(web.Files(), "assets")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		found = append(found, route{server: "page", method: http.MethodGet, path: "/assets/" + file.Name()})
	}
	return append(found, rpcRoutes()...)
}

// routesOf returns all routes: those of the page's server, and what the index of each admin server
// names.
func routesOf(f *testing.F, w *world, client *http.Client) []route {
	f.Helper()
	checkDocument(f, w, client, len(rpcRoutes()))
	return slices.Concat(staticRoutes(f), adminRoutes(f, w, client))
}

func rpcRoutes() []route {
	var found []route
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				found = append(found, routesOfRPC(methods.Get(j))...)
			}
		}
		return true
	})
	return found
}

func routesOfRPC(method protoreflect.MethodDescriptor) []route {
	rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
	if rule == nil || !strings.HasPrefix(string(method.FullName()), "trivet.") {
		return nil
	}
	name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	var found []route
	for _, one := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
		if path := one.GetGet(); path != "" {
			found = append(found, route{server: "page", method: http.MethodGet, path: path, rpc: kindOf(name)})
		}
		if path := one.GetPost(); path != "" {
			found = append(found, route{server: "page", method: http.MethodPost, path: path, rpc: kindOf(name)})
		}
	}
	return found
}

// checkDocument fails if the OpenAPI document has another number of operations.
func checkDocument(f *testing.F, w *world, client *http.Client, want int) {
	f.Helper()
	var document struct{ Paths map[string]map[string]any }
	if err := json.Unmarshal([]byte(get(f, client, w.http["page"](), "/v1/openapi.json")), &document); err != nil {
		f.Fatal(err)
	}
	count := 0
	for _, operations := range document.Paths {
		count += len(operations)
	}
	if count != want {
		f.Errorf("the OpenAPI document has %d operations, and the RPCs have %d", count, want)
	}
}

func adminRoutes(f *testing.F, w *world, client *http.Client) []route {
	f.Helper()
	var found []route
	for server, address := range w.http {
		if server == "page" {
			continue
		}
		for line := range strings.Lines(get(f, client, address(), "/")) {
			path, _, _ := strings.Cut(line, " ")
			found = append(found, route{server: server, method: http.MethodGet, path: path})
			if strings.Contains(line, "PUT ?") {
				found = append(found, route{server: server, method: http.MethodPut, path: path}, route{server: server, method: http.MethodDelete, path: path})
			}
		}
		found = append(found, route{server: server, method: http.MethodGet, path: "/"}, route{server: server, method: http.MethodGet, path: "/debug/pprof/heap"})
	}
	return found
}

// httpClient returns a client with the certificate of a caller. It follows no redirect.
func (w *world) httpClient(t testing.TB, by caller) *http.Client {
	t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
	config.RootCAs.AppendCertsFromPEM(w.own.CertPEM())
	if files := by.files(t, w).TLS; files.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func get(t testing.TB, client *http.Client, address, path string) string {
	t.Helper()
	reply, err := client.Get("https://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil || reply.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v: %s", path, reply.Status, err, text)
	}
	return string(text)
}

// hostileBodies are JSON that a server must refuse, or take without harm.
var hostileBodies = []string{
	`{}`, `{"validateOnly": true}`, `{"etag": "a", "etag": "b"}`, `{"name": "x", "unknown": 1}`, `{"pageSize": 1e400}`,
	`{"findings": ["findings/..", "findings/\u0000", "findings/\u202e"]}`, `{"pageSize": 99999999999999999999}`, `[]`, `null`, `"`, `{"etag": {"etag": {}}}`,
	"{\"etag\": \"\xff\"}", "{\"etag\": \"\\ud800\"}", "\x00", `{"asOfTime": "0001-01-01T00:00:00Z"}`, `{"asOfTime": "10000-01-01T00:00:00Z"}`,
}

// hostileTails are what an input has instead of a name, and a query.
var hostileTails = []string{
	"", "?pageSize=-1", "?pageSize=99999999999999999999", "?pageToken=AAAA", "?resumeToken=e30", "?unknown=1", "?a=%zz", "?pageSize=1;x", "?%ff=1", "..%2f..%2fetc", "%00", "a%0d%0ab",
	"%e2%80%ae", "%ff", "%1b%5b31m", "-/-", "x?validate_only=maybe&validateOnly=true", "?asOfTime=0001-01-01T00:00:00Z", "?watch=/v1/nodes:watch&watch=//evil/v1/x:watch",
	"?watch=/v1/watch?watch=/v1/nodes:watch", "?level=debug&for=-1s", "?level=\u202e&for=1e9h", "?verbose", "?healths=99&healths=x",
}

// FuzzHTTP sends hostile requests to every route of the gateway's HTTP server and of all admin
// servers.
//
// where selects the route, by the caller, and how the method and the headers. tail has a name for
// the variables of the path, and the query.
func FuzzHTTP(f *testing.F) {
	if coordinates() {
		seedHTTP(f, staticRoutes(f))
		f.Fuzz(func(*testing.T, uint32, byte, byte, string, []byte) {})
		return
	}
	w := newFuzzedWorld(f)
	clients := httpCallers(f, w)
	routes := newRing(f, routesOf(f, w, clients[len(clients)-1].client), route.String)
	changes := verbsOfChanges(routes.targets)
	seedHTTP(f, routes.targets)
	seen := &outcomes{}
	f.Cleanup(func() { f.Logf("%d routes, %d callers:\n%v", len(routes.targets), len(clients), seen) })
	f.Cleanup(func() { w.checkPanics(f) })
	f.Fuzz(func(t *testing.T, where uint32, by, how byte, tail string, body []byte) {
		one := routes.at(where)
		exchange := hostileExchange{route: one, by: clients[int(by)%len(clients)], address: w.http[one.server](), changes: changes}
		exchange.run(t, how, tail, body)
		if exchange.reply != nil {
			exchange.check(t)
			seen.add(exchange.reply.Status)
		}
	})
}

// seedHTTP adds inputs for each route.
func seedHTTP(f *testing.F, routes []route) {
	f.Helper()
	deep := []byte(`{"etag":` + strings.Repeat(`[`, 10_000) + strings.Repeat(`]`, 10_000) + `}`)
	for i, one := range routes {
		where, admin := key(one.String()), byte(len(httpNames)-1)
		f.Add(where, admin, byte(0), "", []byte(`{}`))
		f.Add(where, byte(i%len(httpNames)), byte(0), "", []byte(`{}`))
		f.Add(where, admin, byte(i), hostileTails[i%len(hostileTails)], []byte(hostileBodies[i%len(hostileBodies)]))
		f.Add(where, byte((i+1)%len(httpNames)), byte(i*7), hostileTails[(i*5+1)%len(hostileTails)], []byte(hostileBodies[(i*3+1)%len(hostileBodies)]))
	}
	for i, one := range routes {
		if i%16 == 0 && one.method == http.MethodPost {
			f.Add(key(one.String()), byte(len(httpNames)-1), byte(0), "", deep)
		}
	}
}

var httpNames = []string{"no certificate", "stranger", "own node", "server", "viewer", "operator", "admin"}

type httpCaller struct {
	caller
	client *http.Client
}

func httpCallers(f *testing.F, w *world) []httpCaller {
	f.Helper()
	var found []httpCaller
	for _, name := range httpNames {
		all := callers()
		one := all[slices.IndexFunc(all, func(c caller) bool { return c.name == name })]
		found = append(found, httpCaller{caller: one, client: w.httpClient(f, one)})
	}
	return found
}

// verbsOfChanges are the ends of paths, such as ":apply", that change something.
func verbsOfChanges(routes []route) []string {
	var found []string
	for _, one := range routes {
		if _, verb, has := strings.Cut(one.path[strings.LastIndex(one.path, "}")+1:], ":"); has && one.rpc == change {
			found = append(found, ":"+verb)
		}
	}
	return found
}

// hostileExchange is one HTTP request and its response.
type hostileExchange struct {
	route
	by      httpCaller
	address string
	changes []string
	target  string
	sent    string // the method
	reply   *http.Response
	text    []byte
}

var (
	variable = regexp.MustCompile(`\{[^}]*\}`)
	// hostileMethods and hostileHeaders are chosen by an input.
	hostileMethods = []string{"", "", "", "", http.MethodPost, http.MethodPut, http.MethodHead, "TRACE"}
	hostileHeaders = [][2]string{
		{}, {}, {"Origin", "https://evil.example"}, {"Content-Type", "text/plain"}, {"X-Remote-User", "admin"}, {"Grpc-Metadata-X-Remote-User", "admin"},
		{"Grpc-Timeout", "1n"}, {"X-Http-Method-Override", "DELETE"}, {"Authorization", "Bearer \xff"}, {"Authorization", "bearer"}, {"Accept", "text/html"},
		{"Range", "bytes=0-0,1-1,2-2"}, {"If-None-Match", "*"}, {"Content-Encoding", "gzip"}, {"Sec-Fetch-Site", "cross-site"}, {"Host", "evil.example"},
	}
)

// run sends the request. It leaves reply nil if net/http cannot send it.
func (e *hostileExchange) run(t *testing.T, how byte, tail string, body []byte) {
	name, query, asks := strings.Cut(tail, "?")
	path := variable.ReplaceAllStringFunc(e.path, func(of string) string { return valueOf(of, name) })
	if name != "" && path == e.path {
		path += name
	}
	if asks {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		path += separator + query
	}
	e.target = strings.ReplaceAll(path, " ", "%20")
	e.sent = e.method
	if other := hostileMethods[int(how)%len(hostileMethods)]; other != "" {
		e.sent = other
	}
	limit := callLimit
	if strings.Contains(e.target, "watch") {
		limit = 4 * streamLimit()
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, e.sent, "https://"+e.address, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.URL = &url.URL{Scheme: "https", Host: e.address, Opaque: e.target}
	if e.sent == http.MethodPost {
		request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		request.Header.Set("Content-Type", "application/json")
	}
	if header := hostileHeaders[int(how/8)%len(hostileHeaders)]; header[0] != "" {
		request.Header.Set(header[0], header[1])
	}
	reply, err := e.by.client.Do(request)
	if err != nil {
		if limit == callLimit && errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: no response within %v", e, limit)
		}
		return
	}
	defer reply.Body.Close()
	e.reply = reply
	e.text, _ = io.ReadAll(io.LimitReader(reply.Body, 64<<10)) // a watch ends with the time
}

func (e *hostileExchange) String() string {
	return fmt.Sprintf("%s, %s %q as %s", e.server, e.sent, e.target, e.by.name)
}

// valueOf returns what stands for a variable of a path, such as {name=namespaces/*/leases/*}.
func valueOf(of, name string) string {
	_, form, has := strings.Cut(strings.Trim(of, "{}"), "=")
	if !has {
		form = "*"
	}
	if name == "" {
		name = ownNode
	}
	return strings.ReplaceAll(form, "*", name)
}

var securityHeaders = []string{"Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Cross-Origin-Resource-Policy", "Cache-Control"}

// check fails if the response breaks a rule that no request may break.
func (e *hostileExchange) check(t *testing.T) {
	code := e.reply.StatusCode
	if code >= 500 && code != http.StatusServiceUnavailable && code != http.StatusGatewayTimeout {
		t.Errorf("%v: %s: %s", e, e.reply.Status, e.text)
	}
	if bytes.HasPrefix(e.text, []byte("400 Bad Request")) || e.sent == http.MethodHead && code == http.StatusBadRequest && e.reply.Close &&
		e.reply.Header.Get("Content-Type") == "text/plain; charset=utf-8" {
		return // net/http's own answer to what is no HTTP, after which it closes the connection
	}
	if e.server == "page" {
		for _, name := range securityHeaders {
			if e.reply.Header.Get(name) == "" {
				t.Errorf("%v: %s without %s", e, e.reply.Status, name)
			}
		}
		e.checkError(t)
	}
	if !strings.HasPrefix(e.path, "/assets/") {
		checkText(t, e.String(), strings.ReplaceAll(string(e.text), "\r\n", "\n"))
	}
	e.checkRight(t)
}

// checkError fails if an error of the API has no registered reason.
func (e *hostileExchange) checkError(t *testing.T) {
	if e.reply.StatusCode < 400 || e.sent == http.MethodHead || !strings.HasPrefix(e.reply.Header.Get("Content-Type"), "application/json") {
		return
	}
	type failure struct {
		Message string
		Details []struct{ Reason string }
	}
	var said struct {
		failure
		Error failure // of a line of a watch
	}
	if err := json.Unmarshal(e.text, &said); err != nil {
		t.Errorf("%v: %s: %v: %s", e, e.reply.Status, err, e.text)
		return
	}
	for _, detail := range slices.Concat(said.Details, said.Error.Details) {
		if _, registered := registeredReasons()[detail.Reason]; registered {
			return
		}
	}
	t.Errorf("%v: %s without a registered reason: %s", e, e.reply.Status, e.text)
}

// checkRight fails if a caller without the right gets something.
func (e *hostileExchange) checkRight(t *testing.T) {
	if e.reply.StatusCode >= 400 || e.sent == "TRACE" {
		return
	}
	path, _, _ := strings.Cut(e.target, "?")
	if strings.HasSuffix(path, "/v1/watch") && !bytes.Contains(e.text, []byte(`"result":`)) {
		return // each of its watches is refused in a line of its own
	}
	free := strings.HasPrefix(path, "/livez") || strings.HasPrefix(path, "/readyz") || e.reply.StatusCode/100 == 3
	known := free || e.server == "page" && (e.rpc == "" && !strings.HasPrefix(path, "/clusters/") && !strings.HasPrefix(path, "/v1/watch"))
	changes := slices.ContainsFunc(e.changes, func(verb string) bool { return strings.HasSuffix(path, verb) })
	switch e.by.right {
	case unknown:
		if !free {
			t.Errorf("%v: %s without an identity", e, e.reply.Status)
		}
	case nothing, ownNodes:
		if !known {
			t.Errorf("%v: %s without a right: %.200s", e, e.reply.Status, e.text)
		}
	case reads, serves:
		if !free && (changes || e.sent == http.MethodPut || e.sent == http.MethodDelete) {
			t.Errorf("%v: %s of a change with the right to read", e, e.reply.Status)
		}
	}
}
