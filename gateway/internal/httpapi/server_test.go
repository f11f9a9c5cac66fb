package httpapi_test

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trivet-dev/trivet/gateway/internal/httpapi"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

var page = fstest.MapFS{"index.html": {Data: []byte("<!doctype html>")}, "assets/a.js": {Data: []byte("1")}}

// serving runs a server until the test ends or stop is called.
func serving(t *testing.T, register func(grpc.ServiceRegistrar)) (address string, stop func() error) {
	t.Helper()
	server, err := httpapi.New(httpapi.Config{Register: register, Page: page, Logger: slog.New(slog.DiscardHandler)})
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
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Error   json.RawMessage `json:"error"` // on the first line of a stream
		Details []struct {
			Reason string `json:"reason"`
		} `json:"details"`
	}
	if err := json.Unmarshal(content, &answer); err == nil && answer.Error != nil {
		err = json.Unmarshal(answer.Error, &answer)
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(answer.Details) > 0 {
		reason = answer.Details[0].Reason
	}
	return response.StatusCode, reason, string(content)
}

// gets returns all RPCs of the gateway with their GET paths, variables filled in.
func gets(t *testing.T) map[protoreflect.FullName][]string {
	t.Helper()
	all := map[protoreflect.FullName][]string{}
	protoregistry.GlobalFiles.RangeFilesByPackage("trivet.gateway.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				rule, _ := proto.GetExtension(methods.Get(j).Options(), annotations.E_Http).(*annotations.HttpRule)
				name := methods.Get(j).FullName()
				all[name] = nil
				for _, binding := range append(rule.GetAdditionalBindings(), rule) {
					if path := binding.GetGet(); path != "" {
						all[name] = append(all[name], filled(path))
					}
				}
			}
		}
		return true
	})
	if len(all) == 0 {
		t.Fatal("no RPC is known")
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

// The HTTP server does not authenticate users: it has no RPC that writes or works for long.
func TestAPI_HasOnlyReads(t *testing.T) {
	unreached := map[protoreflect.Name]bool{}
	for name, paths := range gets(t) {
		if len(paths) == 0 {
			unreached[name.Name()] = true
		}
	}
	if diff := cmp.Diff(map[protoreflect.Name]bool{"ReconcileService": true, "Audit": true, "ApplyRepair": true}, unreached); diff != "" {
		t.Errorf("RPCs that GET does not reach (-want +got):\n%s", diff)
	}
	address, _ := serving(t, func(grpc.ServiceRegistrar) {})
	for _, path := range []string{"/v1/namespaces/x/services/x/slices:reconcile", "/v1/repairs:apply", "/v1/status"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if code, reason, body := get(t, method, address+path, nil); code != http.StatusMethodNotAllowed || reason != "METHOD_NOT_ALLOWED" {
				t.Errorf("%s %s: %d, %s; want 405", method, path, code, body)
			}
		}
	}
}

// This test detects a service that is not registered, and a path without a check of its parameters.
func TestAPI_EveryPathIsServedAndKnowsItsParameters(t *testing.T) {
	address, _ := serving(t, func(grpc.ServiceRegistrar) {}) // each call that arrives is UNKNOWN_METHOD
	for name, paths := range gets(t) {
		for _, path := range paths {
			if code, reason, body := get(t, http.MethodGet, address+path, nil); reason != "UNKNOWN_METHOD" {
				t.Errorf("%s: %d, %s; want that it reaches %s", path, code, body, name)
			}
			if code, reason, body := get(t, http.MethodGet, address+path+"?colour=red", nil); code != http.StatusBadRequest || reason != "VALIDATION_FAILED" {
				t.Errorf("%s?colour=red: %d, %s; want an error for the parameter", path, code, body)
			}
		}
	}
}

// recorder records the metadata and the deadline of a call.
type recorder struct {
	gatewayv1.UnimplementedGatewayServiceServer
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
	address, _ := serving(t, func(r grpc.ServiceRegistrar) { gatewayv1.RegisterGatewayServiceServer(r, c) })
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
	address, stop := serving(t, func(r grpc.ServiceRegistrar) { gatewayv1.RegisterGatewayServiceServer(r, recorder{}) })
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
		if _, err := httpapi.New(httpapi.Config{Register: func(grpc.ServiceRegistrar) {}, Page: files, Logger: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("New() with %s = nil", name)
		}
	}
}
