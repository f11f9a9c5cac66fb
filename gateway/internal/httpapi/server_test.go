package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trivet-dev/trivet/gateway/internal/httpapi"
	"github.com/trivet-dev/trivet/gateway/internal/httpapi/openapi"
	authv1 "github.com/trivet-dev/trivet/proto/trivet/auth/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

var page = fstest.MapFS{"index.html": {Data: []byte("<!doctype html>")}, "assets/a.js": {Data: []byte("1")}}

// serving runs a server until the test ends or stop is called.
func serving(t *testing.T, register func(grpc.ServiceRegistrar)) (address string, stop func() error) {
	t.Helper()
	return servingWith(t, httpapi.Config{Cluster: "test", Register: register, Page: page, Logger: slog.New(slog.DiscardHandler)})
}

func servingWith(t *testing.T, cfg httpapi.Config) (address string, stop func() error) {
	t.Helper()
	server, err := httpapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	ended := false
	stop = func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return "http://" + listener.Addr().String(), stop
}

// get sends a request and returns the HTTP status, the reason of the error and the body.
func get(t *testing.T, method, url string, header http.Header) (code int, reason, body string) {
	t.Helper()
	return send(t, method, url, header, nil)
}

func send(t *testing.T, method, url string, header http.Header, content io.Reader) (code int, reason, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, content)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		request.Header = header
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	received, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Error   json.RawMessage `json:"error"` // on the first line of a stream
		Details []struct {
			Reason string `json:"reason"`
		} `json:"details"`
	}
	if err := json.Unmarshal(received, &answer); err == nil && answer.Error != nil {
		err = json.Unmarshal(answer.Error, &answer)
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(answer.Details) > 0 {
		reason = answer.Details[0].Reason
	}
	return response.StatusCode, reason, string(received)
}

// path is one HTTP path of an RPC, variables filled in.
type path struct {
	method protoreflect.MethodDescriptor
	verb   string
	path   string
}

// paths returns the HTTP paths of all RPCs of the services that the gateway serves.
func paths(t *testing.T) []path {
	t.Helper()
	var all []path
	for _, name := range []string{"lease", "node", "slice", "bootstrap", "status", "gateway"} {
		before := len(all)
		protoregistry.GlobalFiles.RangeFilesByPackage(protoreflect.FullName("trivet."+name+".v1"), func(file protoreflect.FileDescriptor) bool {
			for i := range file.Services().Len() {
				methods := file.Services().Get(i).Methods()
				for j := range methods.Len() {
					rule, _ := proto.GetExtension(methods.Get(j).Options(), annotations.E_Http).(*annotations.HttpRule)
					for _, binding := range append(rule.GetAdditionalBindings(), rule) {
						if binding.GetGet() != "" {
							all = append(all, path{method: methods.Get(j), verb: http.MethodGet, path: filled(binding.GetGet())})
						}
						if binding.GetPost() != "" {
							all = append(all, path{method: methods.Get(j), verb: http.MethodPost, path: filled(binding.GetPost())})
						}
					}
				}
			}
			return true
		})
		if len(all) == before {
			t.Fatalf("no path of %s is known", name)
		}
	}
	return all
}

var variable = regexp.MustCompile(`\{\w+(?:=([^}]+))?\}`)

// filled replaces each variable of a path by x.
func filled(path string) string {
	return variable.ReplaceAllStringFunc(path, func(match string) string {
		template := variable.FindStringSubmatch(match)[1]
		if template == "" {
			return "x"
		}
		return strings.ReplaceAll(template, "*", "x")
	})
}

// post sends a JSON body.
func post(t *testing.T, url, body string) (code int, reason, answer string) {
	t.Helper()
	return send(t, http.MethodPost, url, http.Header{"Content-Type": {"application/json; charset=utf-8"}}, strings.NewReader(body))
}

// Without certificates, the HTTP server does not authenticate users: only requests that change
// nothing reach an RPC. The access rule of each RPC decides.
func TestAPI_ReachesOnlyWhatChangesNothing(t *testing.T) {
	address, _ := serving(t, func(grpc.ServiceRegistrar) {}) // each call that arrives is UNKNOWN_METHOD
	reads, writes := 0, 0
	for _, p := range paths(t) {
		if p.verb == http.MethodGet {
			continue
		}
		url := address + p.path
		code, reason, body := post(t, url, "{}")
		access := proto.GetExtension(p.method.Options(), authv1.E_Access).(*authv1.Access)
		if verb := access.GetResource().GetVerb(); verb == "get" || verb == "list" || verb == "watch" {
			reads++
			if reason != "UNKNOWN_METHOD" {
				t.Errorf("POST %s: %d, %s; want that it reaches %s", p.path, code, body, p.method.FullName())
			}
			continue
		}
		writes++
		if code != http.StatusMethodNotAllowed || reason != "METHOD_NOT_ALLOWED" || !strings.Contains(body, "--insecure") {
			t.Errorf("POST %s: %d, %s; want 405 and why", p.path, code, body)
		}
		if code, _, body = post(t, url, ""); code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s without a body: %d, %s; want 405", p.path, code, body)
		}
		if code, reason, body = post(t, url, `{"validateOnly": false}`); reason == "UNKNOWN_METHOD" {
			t.Errorf("POST %s with validateOnly=false: %d, %s; want an error", p.path, code, body)
		}
		if p.method.Input().Fields().ByName("validate_only") == nil {
			continue
		}
		if code, reason, body = post(t, url, `{"validateOnly": true}`); reason != "UNKNOWN_METHOD" {
			t.Errorf("POST %s with validateOnly: %d, %s; want that it reaches %s", p.path, code, body, p.method.FullName())
		}
	}
	if reads == 0 || writes < 5 {
		t.Errorf("%d reads and %d writes by POST, want both", reads, writes)
	}
	for _, method := range []string{http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if code, reason, body := get(t, method, address+"/v1/nodes/x", nil); code != http.StatusMethodNotAllowed || reason != "METHOD_NOT_ALLOWED" {
			t.Errorf("%s: %d, %s; want 405", method, code, body)
		}
	}
}

func TestAPI_RejectsBodiesThatItDoesNotUnderstand(t *testing.T) {
	address, _ := serving(t, func(grpc.ServiceRegistrar) {})
	plan := address + "/v1/namespaces/x/serviceslices/x:plan"
	for name, c := range map[string]struct {
		url, contentType, body string
		code                   int
		reason                 string
	}{
		"a misspelt field":    {body: `{"colour": "x"}`, code: 400, reason: "UNKNOWN_FIELD"},
		"no JSON":             {body: `name=x`, code: 400, reason: "VALIDATION_FAILED"},
		"DEL":                 {body: "\x7f", code: 400, reason: "VALIDATION_FAILED"},
		"an override of text": {body: "\u202e", code: 400, reason: "VALIDATION_FAILED"},
		"two values":          {body: `{} {}`, code: 400, reason: "VALIDATION_FAILED"},
		"a field twice":       {url: "/v1/baseline:reconcile", body: `{"validateOnly": true, "validateOnly": false}`, code: 400, reason: "VALIDATION_FAILED"},
		"a form":              {contentType: "application/x-www-form-urlencoded", body: "name=x", code: 415, reason: "UNEXPECTED_BODY"},
		"text":                {contentType: "text/plain", body: "{}", code: 415, reason: "UNEXPECTED_BODY"},
		"no type":             {contentType: "-", body: "{}", code: 415, reason: "UNEXPECTED_BODY"},
		"a parameter":         {url: "/v1/baseline:reconcile?validateOnly=true", body: "{}", code: 400, reason: "VALIDATION_FAILED"},
		"a path without POST": {url: "/v1/nodes", body: "{}", code: 405, reason: "METHOD_NOT_ALLOWED"},
		"understood":          {body: `{}`, code: 501, reason: "UNKNOWN_METHOD"},
	} {
		t.Run(name, func(t *testing.T) {
			url := plan
			if c.url != "" {
				url = address + c.url
			}
			header := http.Header{"Content-Type": {"application/json"}}
			if c.contentType != "" {
				header.Set("Content-Type", c.contentType)
			}
			if c.contentType == "-" {
				header = nil
			}
			if code, reason, body := send(t, http.MethodPost, url, header, strings.NewReader(c.body)); code != c.code || reason != c.reason {
				t.Errorf("%d, %.300s; want %d with %s", code, body, c.code, c.reason)
			} else if strings.ContainsAny(body, "\x7f\u202e") {
				t.Errorf("the answer repeats a control character: %q", body)
			}
		})
	}
	t.Run("too large, as announced", func(t *testing.T) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST /v1/namespaces/x/serviceslices/x:plan HTTP/1.1\r\nHost: localhost\r\n"+
			"Content-Type: application/json\r\nContent-Length: 2000000\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn) // ends when the server closes
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 413 ") {
			t.Errorf("answer = %.300q, %v; want 413 and the end of the connection", answer, err)
		}
	})
	t.Run("too large, of unknown length", func(t *testing.T) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		// One chunk that ends where the server stops to read, so that nothing is left unread.
		if _, err := fmt.Fprintf(conn, "POST /v1/namespaces/x/serviceslices/x:plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
			"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s", 1<<20+1, strings.Repeat(" ", 1<<20+1)); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 13)
		if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 413 " {
			t.Errorf("answer = %q, %v; want 413", answer, err)
		}

	})
}

// This test detects a service that is not registered, and a path without a check of its parameters.
func TestAPI_EveryPathIsServedAndKnowsItsParameters(t *testing.T) {
	address, _ := serving(t, func(grpc.ServiceRegistrar) {}) // each call that arrives is UNKNOWN_METHOD
	for _, p := range paths(t) {
		if p.verb == http.MethodGet {
			if code, reason, body := get(t, p.verb, address+p.path, nil); reason != "UNKNOWN_METHOD" {
				t.Errorf("%s: %d, %s; want that it reaches %s", p.path, code, body, p.method.FullName())
			}
			if code, reason, body := get(t, p.verb, address+p.path+"?colour=red", nil); code != http.StatusBadRequest || reason != "VALIDATION_FAILED" {
				t.Errorf("%s?colour=red: %d, %s; want an error for the parameter", p.path, code, body)
			}
		}
	}
}

// A proxy must neither hold back nor change what has no end. The combined stream is not in the
// document.
func TestAPI_EveryWatchForbidsProxiesToBuffer(t *testing.T) {
	address, _ := serving(t, func(r grpc.ServiceRegistrar) { gatewayv1.RegisterClusterServiceServer(r, recorder{}) })
	var document struct{ Paths map[string]any }
	if err := json.Unmarshal([]byte(openapi.Document()), &document); err != nil {
		t.Fatal(err)
	}
	watches := []string{"/v1/watch?watch=/v1/status:watch", "/clusters/test/v1/status:watch"}
	for path := range document.Paths {
		if strings.HasSuffix(path, ":watch") {
			watches = append(watches, filled(path))
		}
	}
	if len(watches) < 14 {
		t.Fatalf("%d watches: %v", len(watches), watches)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	for _, path := range append(watches, "/v1/nodes") {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"no-store, no-transform", "no"}
		if path == "/v1/nodes" { // an answer with an end
			want = []string{"no-store", ""}
		}
		got := []string{response.Header.Get("Cache-Control"), response.Header.Get("X-Accel-Buffering")}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %s, Cache-Control and X-Accel-Buffering %q, want %q", path, response.Status, got, want)
		}
		cancel()
		_ = response.Body.Close() // it may have no end
	}
}

func TestAPI_ClusterInThePath(t *testing.T) {
	address, _ := serving(t, func(grpc.ServiceRegistrar) {})
	for path, want := range map[string]string{
		"/clusters/test/v1/nodes":              "UNKNOWN_METHOD",
		"/clusters/test/v1/nodes/x:explain":    "UNKNOWN_METHOD",
		"/clusters/test/v1/nodes?colour=red":   "VALIDATION_FAILED",
		"/clusters/test/v1/none":               "UNKNOWN_PATH",
		"/clusters/other/v1/nodes":             "UNKNOWN_PATH",
		"/clusters/test/clusters/test/v1/node": "UNKNOWN_PATH",
		"/clusters/test/":                      "UNKNOWN_PATH",
	} {
		if code, reason, body := get(t, http.MethodGet, address+path, nil); reason != want {
			t.Errorf("%s: %d, %s; want %s", path, code, body, want)
		}
	}
	if code, reason, body := post(t, address+"/clusters/test/v1/baseline:reconcile", "{}"); code != http.StatusMethodNotAllowed || reason != "METHOD_NOT_ALLOWED" {
		t.Errorf("a write through the path of the cluster: %d, %s; want 405", code, body)
	}
}

func TestAPI_ServesItsDocument(t *testing.T) {
	address, _ := serving(t, func(grpc.ServiceRegistrar) {})
	for _, prefix := range []string{"", "/clusters/test"} {
		code, _, body := get(t, http.MethodGet, address+prefix+"/v1/openapi.json", nil)
		if code != http.StatusOK || body != openapi.Document() {
			t.Errorf("%s: %d with %d bytes, want the document", prefix, code, len(body))
		}
	}
}

// recorder records the metadata and the deadline of a call.
type recorder struct {
	gatewayv1.UnimplementedClusterServiceServer
	metadata chan metadata.MD
	deadline chan bool
}

func (c recorder) GetClusterStatus(ctx context.Context, _ *gatewayv1.GetClusterStatusRequest) (*gatewayv1.GetClusterStatusResponse, error) {
	came, _ := metadata.FromIncomingContext(ctx)
	_, limited := ctx.Deadline()
	c.metadata <- came
	c.deadline <- limited
	return &gatewayv1.GetClusterStatusResponse{}, nil
}

func (c recorder) WatchClusterStatus(_ *gatewayv1.WatchClusterStatusRequest, wire grpc.ServerStreamingServer[gatewayv1.WatchClusterStatusResponse]) error {
	if err := wire.Send(&gatewayv1.WatchClusterStatusResponse{}); err != nil {
		return err
	}
	<-wire.Context().Done()
	return context.Cause(wire.Context())
}

func TestAPI_NoHeaderReachesACall(t *testing.T) {
	c := recorder{metadata: make(chan metadata.MD, 1), deadline: make(chan bool, 1)}
	address, _ := serving(t, func(r grpc.ServiceRegistrar) { gatewayv1.RegisterClusterServiceServer(r, c) })
	header := http.Header{
		"Authorization": {"Bearer secret"}, "Cookie": {"secret=1"}, "Grpc-Metadata-Secret": {"secret"}, "Grpc-Timeout": {"1n"},
		"X-Forwarded-For": {"192.0.2.1"}, "Te": {"trailers"},
	}
	if code, _, body := get(t, http.MethodGet, address+"/v1/status", header); code != http.StatusOK {
		t.Fatalf("%d: %s", code, body)
	}
	came := <-c.metadata
	for name, values := range came {
		if said := strings.ToLower(name + strings.Join(values, "")); strings.Contains(said, "secret") || strings.Contains(said, "192.0.2.1") {
			t.Errorf("%s: %v reached the call", name, values)
		}
	}
	if <-c.deadline {
		t.Error("a header gave the call a deadline")
	}
}

func TestServe_BodyOfUnknownLengthIsRejected(t *testing.T) {
	address, _ := serving(t, func(grpc.ServiceRegistrar) {})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/v1/status", io.MultiReader(strings.NewReader("{}")))
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("%s, want 413", response.Status)
	}
}

func TestServe_StopEndsWatchesInTime(t *testing.T) {
	address, stop := serving(t, func(r grpc.ServiceRegistrar) { gatewayv1.RegisterClusterServiceServer(r, recorder{}) })
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/v1/status:watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	started := time.Now()

	if err := stop(); err != nil {
		t.Errorf("Serve() = %v", err)
	}

	if took := time.Since(started); took > 4*time.Second {
		t.Errorf("the stop took %s with a client that reads", took)
	}
	rest, err := io.ReadAll(response.Body)
	if err != nil || !strings.Contains(string(rest), "SHUTTING_DOWN") {
		t.Errorf("the watch ends with %q (%v), want SHUTTING_DOWN", rest, err)
	}
}

func TestNew_InvalidPageIsAnError(t *testing.T) {
	for name, files := range map[string]fs.FS{
		"no index":        fstest.MapFS{"assets/a.js": {Data: []byte("1")}},
		"no assets":       fstest.MapFS{"index.html": {Data: []byte("1")}},
		"an unknown type": fstest.MapFS{"index.html": {Data: []byte("1")}, "assets/a.exe": {Data: []byte("1")}},
		"no extension":    fstest.MapFS{"index.html": {Data: []byte("1")}, "assets/readme": {Data: []byte("1")}},
	} {
		if _, err := httpapi.New(httpapi.Config{Cluster: "test", Register: func(grpc.ServiceRegistrar) {}, Page: files, Logger: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("New() with %s = nil", name)
		}
	}
}
