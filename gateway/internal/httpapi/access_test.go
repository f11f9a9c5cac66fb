package httpapi_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/gateway/internal/httpapi"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/observe"
	authv1 "github.com/trivet-dev/trivet/proto/trivet/auth/v1"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/httpaccesstest"
)

// servingTLS runs a server with callers until the test ends.
func servingTLS(t *testing.T, callers *httpaccesstest.Fixture, register func(grpc.ServiceRegistrar)) (address string) {
	t.Helper()
	ready := observe.NewChecks()
	ready.Add("directory", func() error { return nil })
	server, err := httpapi.New(httpapi.Config{
		Cluster: "test", Register: register, Page: page, Logger: slog.New(slog.DiscardHandler), Ready: ready, Access: callers.Access,
	})
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
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return "https://" + listener.Addr().String()
}

// withoutHandlers registers all services; a call that is allowed is UNIMPLEMENTED.
func withoutHandlers(r grpc.ServiceRegistrar) {
	leasev1.RegisterLeaseServiceServer(r, leasev1.UnimplementedLeaseServiceServer{})
	nodev1.RegisterNodeHealthServiceServer(r, nodev1.UnimplementedNodeHealthServiceServer{})
	slicev1.RegisterSliceServiceServer(r, slicev1.UnimplementedSliceServiceServer{})
	bootstrapv1.RegisterBaselineServiceServer(r, bootstrapv1.UnimplementedBaselineServiceServer{})
	bootstrapv1.RegisterAPIServerServiceServer(r, bootstrapv1.UnimplementedAPIServerServiceServer{})
	bootstrapv1.RegisterFindingServiceServer(r, bootstrapv1.UnimplementedFindingServiceServer{})
	bootstrapv1.RegisterRepairServiceServer(r, bootstrapv1.UnimplementedRepairServiceServer{})
	statusv1.RegisterStatusServiceServer(r, statusv1.UnimplementedStatusServiceServer{})
	statusv1.RegisterDecisionServiceServer(r, statusv1.UnimplementedDecisionServiceServer{})
	gatewayv1.RegisterClusterServiceServer(r, gatewayv1.UnimplementedClusterServiceServer{})
}

// sendAs sends a request of a caller and returns the status and the body.
func sendAs(t *testing.T, client *http.Client, method, url, body string, header http.Header) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		request.Header = header
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	received, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(received)
}

// Each path of each RPC, for each caller. What is allowed is UNIMPLEMENTED or does not pass the
// validation, which comes after the decision about the caller.
func TestAccess_EachRPCForEachCaller(t *testing.T) {
	callers := httpaccesstest.New(t)
	address := servingTLS(t, callers, withoutHandlers)
	cells := 0
	for _, p := range paths(t) {
		access := proto.GetExtension(p.method.Options(), authv1.E_Access).(*authv1.Access)
		verb := access.GetResource().GetVerb()
		if verb == "" {
			t.Fatalf("%s has an HTTP path and no resource", p.method.FullName())
		}
		reads := verb == "get" || verb == "list" || verb == "watch"
		body := ""
		if p.verb == http.MethodPost {
			body = "{}"
		}
		for _, caller := range httpaccesstest.Callers() {
			cells++
			response, answer := sendAs(t, callers.Client(caller), p.verb, address+p.path, body, nil)
			want, reason := "501 400", "" // allowed
			switch {
			case caller == httpaccesstest.None || caller == httpaccesstest.Forger:
				want, reason = "401", "NOT_AUTHENTICATED"
			case caller == httpaccesstest.Stranger || caller == httpaccesstest.Viewer && !reads:
				want, reason = "403", "NOT_AUTHORIZED"
			}
			if !strings.Contains(want, response.Status[:3]) || !strings.Contains(answer, reason) {
				t.Errorf("%s %s by %s: %s %.300s, want %s %s", p.verb, p.path, caller, response.Status, answer, want, reason)
			}
			if reason == "NOT_AUTHORIZED" && !strings.Contains(answer, "kubectl auth can-i "+verb) {
				t.Errorf("%s %s by %s: the refusal has no command that shows it: %s", p.verb, p.path, caller, answer)
			}
			if challenge := response.Header.Get("WWW-Authenticate"); (want == "401") != strings.HasPrefix(challenge, "Bearer") {
				t.Errorf("%s %s by %s: %s with WWW-Authenticate %q", p.verb, p.path, caller, response.Status, challenge)
			}
		}
	}
	if cells < 100 {
		t.Errorf("%d cells are too few", cells)
	}
}

// The page and the document have no data of the cluster. Only health needs no caller.
func TestAccess_EachOtherPathForEachCaller(t *testing.T) {
	callers := httpaccesstest.New(t)
	address := servingTLS(t, callers, withoutHandlers)
	for path, known := range map[string]int{
		"/": 200, "/assets/a.js": 200, "/v1/openapi.json": 200, "/clusters/test/v1/openapi.json": 200,
		"/nothing": 404, "/v1/nothing": 404, "/clusters/other/v1/nodes": 404, "/livez": 200, "/readyz": 200,
	} {
		for _, caller := range httpaccesstest.Callers() {
			want := known
			if (caller == httpaccesstest.None || caller == httpaccesstest.Forger) && path != "/livez" && path != "/readyz" {
				want = http.StatusUnauthorized
			}
			if response, body := sendAs(t, callers.Client(caller), http.MethodGet, address+path, "", nil); response.StatusCode != want {
				t.Errorf("GET %s by %s: %s %.200s, want %d", path, caller, response.Status, body, want)
			}
		}
	}
}

func TestAccess_ATokenEndsTheLimitsOfStrangers(t *testing.T) {
	callers := httpaccesstest.New(t)
	callers.OnePlaceForStrangers(t)
	callers.CheckPlaces(t, strings.TrimPrefix(servingTLS(t, callers, withoutHandlers), "https://"), "/v1/openapi.json")
}

// A token that names hundreds of groups is long.
func TestAccess_TakesLongTokens(t *testing.T) {
	callers := httpaccesstest.New(t)
	callers.CheckLongTokens(t, servingTLS(t, callers, withoutHandlers)+"/v1/openapi.json")
}

func TestAccess_ABrowserWithoutCredentialsGetsText(t *testing.T) {
	callers := httpaccesstest.New(t)
	address := servingTLS(t, callers, withoutHandlers)
	response, body := sendAs(t, callers.Client(httpaccesstest.None), http.MethodGet, address+"/", "", http.Header{"Accept": {"text/html,*/*"}})
	if response.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain") || !strings.Contains(body, "trivet dashboard") {
		t.Errorf("%s, %s: %s; want 401 and text that names `trivet dashboard`", response.Status, response.Header.Get("Content-Type"), body)
	}
}

// Each watch of a combined stream is decided alone.
func TestAccess_CombinedWatches(t *testing.T) {
	callers := httpaccesstest.New(t)
	address := servingTLS(t, callers, func(r grpc.ServiceRegistrar) {
		gatewayv1.RegisterClusterServiceServer(r, recorder{})
		nodev1.RegisterNodeHealthServiceServer(r, nodev1.UnimplementedNodeHealthServiceServer{})
	})
	const both = "/v1/watch?watch=/v1/status:watch&watch=/v1/nodes:watch"
	if response, _ := sendAs(t, callers.Client(httpaccesstest.None), http.MethodGet, address+both, "", nil); response.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a caller: %s, want 401", response.Status)
	}
	_, refused := sendAs(t, callers.Client(httpaccesstest.Stranger), http.MethodGet, address+both, "", nil)
	for _, want := range []string{`{"watch":0,"error":`, `{"watch":1,"error":`, "can-i watch status.trivet.dev", "can-i watch nodes.trivet.dev"} {
		if !strings.Contains(refused, want) {
			t.Errorf("a stranger gets %s, want %s", refused, want)
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+both, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := callers.Client(httpaccesstest.Viewer).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for found := ""; !strings.Contains(found, `{"watch":0,"result":`) || !strings.Contains(found, `{"watch":1,"error":`); found += lines.Text() {
		if !lines.Scan() {
			t.Fatalf("the viewer's stream ended after %s", found)
		}
	}
}

// asked answers with the caller of the call.
type asked struct {
	gatewayv1.UnimplementedClusterServiceServer
	callers chan *authn.Caller
}

func (a asked) GetClusterStatus(ctx context.Context, _ *gatewayv1.GetClusterStatusRequest) (*gatewayv1.GetClusterStatusResponse, error) {
	a.callers <- authn.FromContext(ctx)
	return &gatewayv1.GetClusterStatusResponse{}, nil
}

// The handler of a call sees the caller of the HTTP request, and only a gateway may name another.
func TestAccess_TheCallOfARequestHasItsCaller(t *testing.T) {
	callers := httpaccesstest.New(t)
	handled := asked{callers: make(chan *authn.Caller, 1)}
	address := servingTLS(t, callers, func(r grpc.ServiceRegistrar) { gatewayv1.RegisterClusterServiceServer(r, handled) })
	gateway := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: callers.Authority.Pool(),
		Certificates: []tls.Certificate{callers.Authority.Certificate(t, "trivet:gateway", certs.GatewayGroup)},
	}}}
	claim := http.Header{
		"X-Remote-User": {"viewer"}, "X-Remote-Group": {"system:masters"}, "X-Remote-Gateway": {"gateway-2"}, "X-Http-Caller": {"1"},
	}
	for name, c := range map[string]struct {
		client                  *http.Client
		user, peer, replica     string
		credential              authn.Credential
		wantGroup, mayNotHaveIt string
	}{
		"a token":                       {client: callers.Client(httpaccesstest.Viewer), user: "viewer", peer: "viewer", credential: authn.Token, mayNotHaveIt: "system:masters"},
		"a certificate":                 {client: callers.Client(httpaccesstest.Admin), user: "admin", peer: "admin", credential: authn.Certificate, wantGroup: httpaccesstest.AdminGroup, mayNotHaveIt: "system:masters"},
		"a gateway in front of another": {client: gateway, user: "viewer", peer: "trivet:gateway", replica: "gateway-2", credential: authn.Certificate, wantGroup: "system:masters"},
	} {
		t.Run(name, func(t *testing.T) {
			if response, body := sendAs(t, c.client, http.MethodGet, address+"/v1/status", "", claim.Clone()); response.StatusCode != http.StatusOK {
				t.Fatalf("%s %s", response.Status, body)
			}
			got := <-handled.callers
			if got.User.Name != c.user || got.Peer.Name != c.peer || got.Gateway != c.replica || got.Credential != c.credential || got.Address == "" {
				t.Errorf("caller %+v, want user %s, peer %s, gateway %q", got, c.user, c.peer, c.replica)
			}
			if c.wantGroup != "" && !got.User.In(c.wantGroup) || c.mayNotHaveIt != "" && got.User.In(c.mayNotHaveIt) {
				t.Errorf("groups %v, want %q and not %q", got.User.Groups, c.wantGroup, c.mayNotHaveIt)
			}
			if (got.Credential == authn.Certificate) == got.Expires.IsZero() {
				t.Errorf("the end of the certificate is %v", got.Expires)
			}
		})
	}
	if response, _ := sendAs(t, callers.Client(httpaccesstest.Stranger), http.MethodGet, address+"/v1/status", "", claim.Clone()); response.StatusCode != http.StatusForbidden {
		t.Errorf("a stranger that claims to forward: %s, want 403", response.Status)
	}
}

// A browser presents the certificate of its user also to a request that another website makes.
func TestAccess_AnotherWebsiteChangesNothing(t *testing.T) {
	callers := httpaccesstest.New(t)
	address := servingTLS(t, callers, withoutHandlers)
	host := strings.TrimPrefix(address, "https://")
	for name, c := range map[string]struct {
		header http.Header
		want   string
	}{
		"the page itself":               {header: http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {address}}, want: "501 400"},
		"a command":                     {header: http.Header{}, want: "501 400"},
		"an older browser, same host":   {header: http.Header{"Origin": {"https://" + host}}, want: "501 400"},
		"another website":               {header: http.Header{"Sec-Fetch-Site": {"cross-site"}, "Origin": {"https://evil.example"}}, want: "403"},
		"another port of this host":     {header: http.Header{"Sec-Fetch-Site": {"same-site"}, "Origin": {"https://127.0.0.1:1"}}, want: "403"},
		"an older browser, other host":  {header: http.Header{"Origin": {"https://evil.example"}}, want: "403"},
		"a document without an address": {header: http.Header{"Origin": {"null"}}, want: "403"},
	} {
		t.Run(name, func(t *testing.T) {
			response, body := sendAs(t, callers.Client(httpaccesstest.Admin), http.MethodPost, address+"/v1/baseline:reconcile", "{}", c.header)
			if !strings.Contains(c.want, response.Status[:3]) || (c.want == "403") != strings.Contains(body, "CROSS_ORIGIN") {
				t.Errorf("%s %s, want %s", response.Status, body, c.want)
			}
		})
	}
}

// A caller that is not known sends a request with a body and never the body. Without a bound it
// holds the connection forever.
func TestAccess_AStrangersBodyIsNotAwaited(t *testing.T) {
	callers := httpaccesstest.New(t)
	address := servingTLS(t, callers, withoutHandlers)
	for _, line := range []string{"GET /livez", "POST /livez", "GET /readyz", "GET /v1/status", "GET /", "HEAD /", "POST /v1/baseline:reconcile", "PUT /"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			conn, err := tls.Dial("tcp", strings.TrimPrefix(address, "https://"), &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: callers.Authority.Pool()})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, line+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(8 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if answer, err := io.ReadAll(conn); err != nil {
				t.Errorf("after %q the connection is open: %v", answer, err)
			}
		})
	}
}
