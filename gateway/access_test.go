package gateway_test

import (
	"context"
	"crypto/tls"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/gateway/internal/api"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/httpaccesstest"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

// filesOf returns the certificate of a server in a group, and the authority of its peers.
func filesOf(t testing.TB, authority *identitytest.Authority, name, group string) identity.Files {
	t.Helper()
	files := authority.Files(t, name, authority)
	certificate, key := authority.Issue(t, name, group)
	identitytest.Replace(t, files.CertFile, certificate)
	identitytest.Replace(t, files.KeyFile, key)
	return files
}

// accessOfReplicas is how replicas of a fake service find callers and decide. It records the
// callers by method.
type accessOfReplicas struct {
	callers       *httpaccesstest.Fixture
	authenticator *authn.Authenticator
	authorizer    *authz.Authorizer

	mu   sync.Mutex // guards seen
	seen map[string][]authn.Caller
}

func newAccessOfReplicas(callers *httpaccesstest.Fixture) *accessOfReplicas {
	return &accessOfReplicas{callers: callers, authenticator: callers.Authenticator, authorizer: callers.Authorizer, seen: map[string][]authn.Caller{}}
}

func (a *accessOfReplicas) server(t testing.TB, service string) (rpcserver.Config, rpcserver.Deps) {
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.TLS = filesOf(t, a.callers.Authority, service, certs.ServerGroup)
	return cfg, rpcserver.Deps{Logger: discard(), Authenticator: a, Authorizer: a.authorizer}
}

// Authenticate records the caller of a call.
func (a *accessOfReplicas) Authenticate(ctx context.Context, request authn.Request) (*authn.Caller, error) {
	caller, err := a.authenticator.Authenticate(ctx, request)
	if method, _ := grpc.Method(ctx); err == nil && !strings.HasPrefix(method, "/grpc.health") {
		a.mu.Lock()
		defer a.mu.Unlock()
		name := method[strings.LastIndex(method, "/")+1:]
		a.seen[name] = append(a.seen[name], *caller)
	}
	return caller, err
}

// callersOf returns the callers of a method as "user by peer via replica", each once, and forgets
// them.
func (a *accessOfReplicas) callersOf(method string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var texts []string
	for _, caller := range a.seen[method] {
		text := caller.User.Name + " by " + caller.Peer.Name
		if caller.Gateway != "" {
			text += " via " + caller.Gateway
		}
		texts = append(texts, text)
	}
	a.seen[method] = nil
	slices.Sort(texts)
	return slices.Compact(texts)
}

// decide makes the replicas decide by a function instead of the rights of the fixture.
func (a *accessOfReplicas) decide(allows func(user authn.User, asked authz.Attributes) bool) {
	a.authorizer = authz.New(decision(allows))
}

type decision func(user authn.User, asked authz.Attributes) bool

func (d decision) Review(_ context.Context, user authn.User, asked authz.Attributes) (authz.Decision, error) {
	return authz.Decision{Allowed: d(user, asked)}, nil
}

// securedGateway is a gateway with TLS for gRPC and HTTP.
type securedGateway struct {
	callers *httpaccesstest.Fixture
	service *gateway.Service
	address string // of gRPC
}

// startSecured runs a gateway over the members, with certificates for its calls to them.
func startSecured(t *testing.T, callers *httpaccesstest.Fixture, members *directory, peers identity.Files) securedGateway {
	t.Helper()
	deps := deps(members)
	deps.Peers = rpcclient.Config{TLS: peers}
	deps.Access = callers.Access
	service, err := gateway.New(gateway.Config{HTTPListen: "127.0.0.1:0", BackendTimeout: longTimeout}, deps)
	if err != nil {
		t.Fatal(err)
	}
	run(t, service)
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.TLS = filesOf(t, callers.Authority, "gateway", certs.GatewayGroup)
	at := serveWith(t, cfg, rpcserver.Deps{Logger: discard(), Authenticator: callers.Authenticator, Authorizer: callers.Authorizer}, replica("gateway", "g1"),
		func(r grpc.ServiceRegistrar) {
			service.Register(r)
			statusv1.RegisterStatusServiceServer(r, listsShards{service: service})
		})
	return securedGateway{callers: callers, service: service, address: at.GRPCAddress}
}

type listsShards struct {
	statusv1.UnimplementedStatusServiceServer
	service *gateway.Service
}

func (l listsShards) ListShards(ctx context.Context, request *statusv1.ListShardsRequest) (*statusv1.ListShardsResponse, error) {
	return l.service.ListShards(ctx, request)
}

// dial connects with a certificate, or without.
func dial(t *testing.T, authority *identitytest.Authority, address string, certificates ...tls.Certificate) *grpc.ClientConn {
	t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: authority.Pool(), Certificates: certificates}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func withMetadata(t *testing.T, pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), pairs...)
}

func bearer(t *testing.T, caller httpaccesstest.Caller) context.Context {
	return withMetadata(t, "authorization", "Bearer "+httpaccesstest.Token(caller))
}

func httpGet(t *testing.T, g securedGateway, caller httpaccesstest.Caller, path string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+g.service.HTTPAddress()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := g.callers.Client(caller)
	response, text := doWith(t, client, request)
	return response.StatusCode, string(text)
}

const viaGateway = " by gateway via g1"

// What the gateway asks for a caller carries the caller, over gRPC and HTTP; what it asks for all
// or for itself carries no caller.
func TestAccess_ServicesSeeTheOriginalCaller(t *testing.T) {
	t.Parallel()
	callers := httpaccesstest.New(t)
	leasesvc := newLeasesvcWithNodes(4, "l1")
	leasesvc.access = newAccessOfReplicas(callers)
	_, l1 := leasesvc.start(t, "l1")
	g := startSecured(t, callers, newDirectory(l1), filesOf(t, callers.Authority, "gateway", certs.GatewayGroup))
	conn := dial(t, callers.Authority, g.address)
	nodes, viewer := nodev1.NewNodeHealthServiceClient(conn), bearer(t, httpaccesstest.Viewer)
	check := func(method, want string) {
		t.Helper()
		if got := leasesvc.access.callersOf(method); !slices.Equal(got, []string{want}) {
			t.Errorf("%s was called as %q, want %q", method, got, want)
		}
	}

	if _, err := nodes.GetNodeHealth(viewer, &nodev1.GetNodeHealthRequest{Name: "nodes/n00"}); err != nil {
		t.Fatal(err)
	}
	check("GetNodeHealth", "viewer"+viaGateway)
	for caller, user := range map[httpaccesstest.Caller]string{httpaccesstest.Viewer: "viewer", httpaccesstest.Admin: "admin"} {
		if code, body := httpGet(t, g, caller, "/v1/nodes/n00"); code != http.StatusOK {
			t.Fatalf("%s gets %d %s", caller, code, body)
		}
		check("GetNodeHealth", user+viaGateway)
	}
	answer, err := nodes.ListNodeHealth(viewer, &nodev1.ListNodeHealthRequest{})
	if err != nil || len(answer.Nodes) != 4 || len(answer.Missing) > 0 {
		t.Fatalf("ListNodeHealth() = %v, %v", answer, err)
	}
	check("ListNodeHealth", "viewer"+viaGateway)
	check("ListShards", "gateway by gateway") // for the leaders that a complete list needs
	if _, err := statusv1.NewStatusServiceClient(conn).ListShards(viewer, &statusv1.ListShardsRequest{}); err != nil {
		t.Fatal(err)
	}
	check("ListShards", "viewer"+viaGateway)
	watch, err := nodes.WatchNodeHealth(viewer, &nodev1.WatchNodeHealthRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	check("WatchNodeHealth", "gateway by gateway")
	if _, err := gatewayv1.NewClusterServiceClient(conn).GetClusterStatus(viewer, &gatewayv1.GetClusterStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	check("GetStatus", "gateway by gateway")
}

// The gateway believes another gateway, passes the original caller on, and ignores the claims of
// others.
func TestAccess_OnlyAGatewayNamesAnotherCaller(t *testing.T) {
	t.Parallel()
	callers := httpaccesstest.New(t)
	leasesvc := newLeasesvcWithNodes(1, "l1")
	leasesvc.access = newAccessOfReplicas(callers)
	_, l1 := leasesvc.start(t, "l1")
	g := startSecured(t, callers, newDirectory(l1), filesOf(t, callers.Authority, "gateway", certs.GatewayGroup))
	claim := withMetadata(t, authn.RemoteUserKey, "admin", authn.RemoteGroupKey, httpaccesstest.AdminGroup, authn.RemoteGatewayKey, "g0")
	for name, c := range map[string]struct {
		certificate tls.Certificate
		want        codes.Code
		caller      string
	}{
		"a stranger":             {certificate: callers.Authority.Certificate(t, "stranger"), want: codes.PermissionDenied},
		"a server":               {certificate: callers.Authority.Certificate(t, "trivet:leasesvc", certs.ServerGroup), want: codes.OK, caller: "gateway by gateway"},
		"another gateway":        {certificate: callers.Authority.Certificate(t, "trivet:gateway", certs.GatewayGroup), want: codes.OK, caller: "admin" + viaGateway},
		"an administrator alone": {certificate: callers.Authority.Certificate(t, "root", httpaccesstest.AdminGroup), want: codes.OK, caller: "root" + viaGateway},
	} {
		t.Run(name, func(t *testing.T) {
			client := nodev1.NewNodeHealthServiceClient(dial(t, callers.Authority, g.address, c.certificate))
			_, err := client.GetNodeHealth(claim, &nodev1.GetNodeHealthRequest{Name: "nodes/n00"})
			if grpcstatus.Code(err) != c.want {
				t.Errorf("GetNodeHealth() = %v, want %s", err, c.want)
			}
			if got := strings.Join(leasesvc.access.callersOf("GetNodeHealth"), ", "); got != c.caller {
				t.Errorf("leasesvc was called as %q, want %q", got, c.caller)
			}
		})
	}
	direct := nodev1.NewNodeHealthServiceClient(dial(t, callers.Authority, l1.GRPCAddress, callers.Authority.Certificate(t, "stranger")))
	if _, err := direct.GetNodeHealth(claim, &nodev1.GetNodeHealthRequest{Name: "nodes/n00"}); grpcstatus.Code(err) != codes.PermissionDenied {
		t.Errorf("a stranger that claims to be a gateway gets %v of leasesvc, want %s", err, codes.PermissionDenied)
	}
}

// A refusal by a service is the answer. It is no replica that does not answer.
func TestAccess_ARefusalByAServiceIsTheAnswer(t *testing.T) {
	t.Parallel()
	callers := httpaccesstest.New(t)
	leasesvc := newLeasesvcWithNodes(4, "l1", "l2")
	leasesvc.access = newAccessOfReplicas(callers)
	_, l1 := leasesvc.start(t, "l1")
	leasesvc.access.decide(func(user authn.User, _ authz.Attributes) bool { return user.Name != "viewer" })
	_, l2 := leasesvc.start(t, "l2") // its decision about the viewer is newer than that of l1
	members := newDirectory(l1, l2)
	g := startSecured(t, callers, members, filesOf(t, callers.Authority, "gateway", certs.GatewayGroup))
	conn, viewer := dial(t, callers.Authority, g.address), bearer(t, httpaccesstest.Viewer)
	nodes, shards := nodev1.NewNodeHealthServiceClient(conn), statusv1.NewStatusServiceClient(conn)

	_, err := nodes.ListNodeHealth(viewer, &nodev1.ListNodeHealthRequest{})
	checkReason(t, err, codes.PermissionDenied, rpcerror.NotAuthorizedReason)
	answer, err := shards.ListShards(viewer, &statusv1.ListShardsRequest{Services: []string{"leasesvc"}})
	if got := missingOf(answer.GetMissing()); err != nil || !slices.Equal(got, []string{"l2 PERMISSION_DENIED []"}) {
		t.Errorf("ListShards() misses %q, %v; want the replica that refuses", got, err)
	}

	members.set(l2)
	_, err = nodes.GetNodeHealth(viewer, &nodev1.GetNodeHealthRequest{Name: "nodes/n00"})
	checkReason(t, err, codes.PermissionDenied, rpcerror.NotAuthorizedReason)
	_, err = shards.ListShards(viewer, &statusv1.ListShardsRequest{Services: []string{"leasesvc"}})
	checkReason(t, err, codes.PermissionDenied, rpcerror.NotAuthorizedReason)
	if code, body := httpGet(t, g, httpaccesstest.Viewer, "/v1/nodes"); code != http.StatusForbidden || !strings.Contains(body, "can-i list nodes.trivet.dev") {
		t.Errorf("over HTTP: %d %s, want 403 with the command that shows it", code, body)
	}
}

// A caller cannot repair the credentials of the gateway, so that it does not get 401 or 403 for
// them.
func TestAccess_AGatewayThatServicesDoNotAcceptIsUnavailable(t *testing.T) {
	t.Parallel()
	callers := httpaccesstest.New(t)
	leasesvc := newLeasesvcWithNodes(1, "l1")
	leasesvc.access = newAccessOfReplicas(callers)
	_, l1 := leasesvc.start(t, "l1")
	files := filesOf(t, callers.Authority, "gateway", certs.GatewayGroup)
	for name, c := range map[string]identity.Files{
		"without a certificate":           {CAFile: files.CAFile},
		"with the certificate of another": filesOf(t, callers.Authority, "stranger", "strangers"),
	} {
		t.Run(name, func(t *testing.T) {
			g := startSecured(t, callers, newDirectory(l1), c)
			nodes, viewer := nodev1.NewNodeHealthServiceClient(dial(t, callers.Authority, g.address)), bearer(t, httpaccesstest.Viewer)
			watch, err := nodes.WatchNodeHealth(viewer, &nodev1.WatchNodeHealthRequest{})
			if err == nil {
				_, err = watch.Recv()
			}
			checkReason(t, err, codes.Unavailable, api.ReplicasUnreachableReason)
			if c.CertFile != "" {
				return
			}
			_, err = nodes.GetNodeHealth(viewer, &nodev1.GetNodeHealthRequest{Name: "nodes/n00"})
			checkReason(t, err, codes.Unavailable, api.ReplicasUnreachableReason)
			if !strings.Contains(err.Error(), "does not accept the credentials of the gateway") {
				t.Errorf("%v, want the cause", err)
			}
		})
	}
}
