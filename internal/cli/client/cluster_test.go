package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	"github.com/trivet-dev/trivet/test/lab/clustertest"
	"github.com/trivet-dev/trivet/test/lab/identitytest"
)

// secret is the token of a kubeconfig, which only kube-apiserver may receive.
const secret = "token-of-the-kubeconfig"

// gatewayServer is a gateway with TLS that records the identities of its callers.
type gatewayServer struct {
	gatewayv1.UnimplementedClusterServiceServer
	address string

	mu       sync.Mutex // guards the fields below
	users    []string   // common names of certificates, or the authorization
	metadata []metadata.MD
}

func (s *gatewayServer) GetClusterStatus(ctx context.Context, _ *gatewayv1.GetClusterStatusRequest) (*gatewayv1.GetClusterStatusResponse, error) {
	s.record(ctx)
	return &gatewayv1.GetClusterStatusResponse{}, nil
}

func (s *gatewayServer) WatchClusterStatus(_ *gatewayv1.WatchClusterStatusRequest, stream grpc.ServerStreamingServer[gatewayv1.WatchClusterStatusResponse]) error {
	s.record(stream.Context())
	if err := stream.Send(&gatewayv1.WatchClusterStatusResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return context.Cause(stream.Context())
}

func (s *gatewayServer) record(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	received, _ := metadata.FromIncomingContext(ctx)
	s.metadata = append(s.metadata, received)
	caller, _ := peer.FromContext(ctx)
	user := strings.Join(received.Get("authorization"), ",")
	for _, certificate := range caller.AuthInfo.(credentials.TLSInfo).State.PeerCertificates {
		user += certificate.Subject.CommonName
	}
	s.users = append(s.users, user)
}

// received returns the identities of the callers, and all that was received as a text.
func (s *gatewayServer) received() (users []string, all string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users), fmt.Sprint(s.users, s.metadata)
}

// fixture is a cluster with one ready gateway.
type fixture struct {
	*clustertest.Cluster
	gateway                 *gatewayServer
	servers, clients, other *identitytest.Authority
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		Cluster: clustertest.New(t),
		servers: identitytest.NewAuthority(t, "servers"), clients: identitytest.NewAuthority(t, "clients"), other: identitytest.NewAuthority(t, "other"),
	}
	f.SetAuthorities(identitytest.Bundle(f.other, f.servers)) // two, as during a rotation
	f.gateway = f.serve(t, f.servers)
	f.SetPod("gateway-1", true, map[string]string{"grpc": f.gateway.address})
	return f
}

// serve serves a gateway with a certificate of an authority.
func (f *fixture) serve(t *testing.T, authority *identitytest.Authority) *gatewayServer {
	t.Helper()
	certificate, err := tls.X509KeyPair(authority.Issue(t, "gateway"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(identitytest.Bundle(f.clients))
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven,
	})))
	recorder := &gatewayServer{}
	gatewayv1.RegisterClusterServiceServer(server, recorder)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	recorder.address = listener.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("gateway: %v", err)
		}
	})
	return recorder
}

// person returns the kubeconfig of a person with a client certificate, whose token is the secret.
func (f *fixture) person(t *testing.T) string {
	t.Helper()
	certificate, key := f.clients.Issue(t, "person")
	return f.Kubeconfig(t, &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key, Token: secret})
}

// tokenOnly returns the kubeconfig of a person with a token only.
func (f *fixture) tokenOnly(t *testing.T) string {
	t.Helper()
	return f.Kubeconfig(t, &clientcmdapi.AuthInfo{Token: secret})
}

// flags returns the flags of a command line.
func flags(t *testing.T, env map[string]string, args ...string) *client.Flags {
	t.Helper()
	parsed := &client.Flags{Timeout: 20 * time.Second}
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	parsed.Gateway.RegisterFlags(set, func(name string) string { return env[name] })
	set.DurationVar(&parsed.Timeout, "timeout", parsed.Timeout, "")
	if err := set.Parse(args); err != nil {
		t.Fatalf("parse %q: %v", args, err)
	}
	return parsed
}

// get calls the gateway once, as a command does.
func get(t *testing.T, flags *client.Flags) error {
	t.Helper()
	_, err := client.Call(t.Context(), flags, "status", func(ctx context.Context, conn grpc.ClientConnInterface) (*gatewayv1.GetClusterStatusResponse, error) {
		return gatewayv1.NewClusterServiceClient(conn).GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
	})
	return err
}

// report returns what a person reads about an error.
func report(err error) string {
	var text strings.Builder
	exit.Report(&text, err)
	return text.String()
}

func TestCall_AKubeconfigIsEnough(t *testing.T) {
	f := newFixture(t)
	person, tokenOnly := f.person(t), f.tokenOnly(t)
	certificate, key := f.clients.Issue(t, "from-plugin")
	plugin := f.Kubeconfig(t, plugin(t, certificate, key))
	files := f.clients.Files(t, "from-file", f.servers)
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		want string
	}{
		"--kubeconfig":                       {args: []string{"--kubeconfig", person}, want: "person"},
		"KUBECONFIG":                         {env: map[string]string{"KUBECONFIG": person}, want: "person"},
		"--kubeconfig wins over KUBECONFIG":  {env: map[string]string{"KUBECONFIG": tokenOnly}, args: []string{"--kubeconfig", person}, want: "person"},
		"--context":                          {args: []string{"--kubeconfig", person, "--context", "test"}, want: "person"},
		"certificate of an exec plugin":      {args: []string{"--kubeconfig", plugin}, want: "from-plugin"},
		"certificate of a file":              {args: []string{"--kubeconfig", tokenOnly, "--cert-file", files.CertFile, "--key-file", files.KeyFile}, want: "from-file"},
		"authorities of a file":              {args: []string{"--kubeconfig", person, "--ca-file", files.CAFile}, want: "person"},
		"--token":                            {args: []string{"--kubeconfig", tokenOnly, "--token", "given"}, want: "Bearer given"},
		"--token wins over the certificate":  {args: []string{"--kubeconfig", person, "--token", "given"}, want: "Bearer given"},
		"TRIVET_TOKEN with a line end":       {env: map[string]string{"TRIVET_TOKEN": "of-file\r\n"}, args: []string{"--kubeconfig", tokenOnly}, want: "Bearer of-file"},
		"TRIVET_TOKEN":                       {env: map[string]string{"TRIVET_TOKEN": "of-env"}, args: []string{"--kubeconfig", tokenOnly}, want: "Bearer of-env"},
		"--as-serviceaccount":                {args: []string{"--kubeconfig", tokenOnly, "--as-serviceaccount", "ci/robot"}, want: "Bearer token-"},
		"--as-serviceaccount over the env":   {env: map[string]string{"TRIVET_TOKEN": "of-env"}, args: []string{"--kubeconfig", person, "--as-serviceaccount", "ci/robot"}, want: "Bearer token-"},
		"server with a ServiceAccount token": {args: []string{"--kubeconfig", tokenOnly, "--server", f.gateway.address, "--ca-file", files.CAFile, "--as-serviceaccount", "ci/robot"}, want: "Bearer token-"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := get(t, flags(t, c.env, c.args...)); err != nil {
				t.Fatalf("call: %v\n%s", err, report(err))
			}
			users, all := f.gateway.received()
			if last := users[len(users)-1]; !strings.HasPrefix(last, c.want) {
				t.Errorf("the gateway was called by %q, want %q", last, c.want)
			}
			if strings.Contains(all, secret) {
				t.Errorf("the gateway received the token of the kubeconfig: %s", all)
			}
		})
	}
	if !slices.Contains(f.Bearers(), secret) {
		t.Error("kube-apiserver did not receive the token of the kubeconfig, so the test shows nothing")
	}
	for _, request := range f.TokenRequests() {
		if !slices.Equal(request.Spec.Audiences, []string{"trivet"}) || request.Namespace != "ci" || request.Name != "robot" {
			t.Errorf("request for a token: %+v, want audience trivet and ci/robot", request)
		}
	}
}

// plugin returns a user whose certificate comes from an exec plugin, beside the secret as a token.
func plugin(t *testing.T, certificate, key []byte) *clientcmdapi.AuthInfo {
	t.Helper()
	quote := func(text []byte) string { return strings.ReplaceAll(string(text), "\n", `\n`) }
	answer := fmt.Sprintf(`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":%q,"clientCertificateData":"%s","clientKeyData":"%s"}}`,
		secret, quote(certificate), quote(key))
	file := filepath.Join(t.TempDir(), "credential.json")
	if err := os.WriteFile(file, []byte(answer), 0o600); err != nil {
		t.Fatal(err)
	}
	return &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: "cat", Args: []string{file}, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}}
}

// execPlugin returns the kubeconfig of a person whose credentials come from a command.
func (f *fixture) execPlugin(t *testing.T, command string, args ...string) string {
	t.Helper()
	return f.Kubeconfig(t, &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: command, Args: args, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}})
}

// A gateway may end between the list of Pods and the call. The other one answers.
func TestCall_TriesAnotherGatewayOnce(t *testing.T) {
	f := newFixture(t)
	f.SetPod("gateway-0", true, map[string]string{"grpc": "127.0.0.1:1"})
	person := f.person(t)
	for range 8 { // the Pod is chosen at random
		if err := get(t, flags(t, nil, "--kubeconfig", person)); err != nil {
			t.Fatalf("%v\n%s", err, report(err))
		}
	}
	if upgrades := f.Upgrades(); !slices.Contains(upgrades, "websocket gateway-0") {
		t.Errorf("port-forwards %q, none to the Pod that has ended", upgrades)
	}
}

// An interrupt ends a call whose credential plugin hangs.
func TestCall_InterruptedWhileAPluginHangs(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(300*time.Millisecond, cancel)
	_, err := client.Call(ctx, flags(t, nil, "--kubeconfig", f.execPlugin(t, "sleep", "4")), "status",
		func(ctx context.Context, conn grpc.ClientConnInterface) (*gatewayv1.GetClusterStatusResponse, error) {
			return gatewayv1.NewClusterServiceClient(conn).GetClusterStatus(ctx, &gatewayv1.GetClusterStatusRequest{})
		})
	if exit.CodeOf(err) != exit.Interrupted {
		t.Errorf("%v has exit code %d, want %d", err, exit.CodeOf(err), exit.Interrupted)
	}
}

func TestCall_ErrorsSayWhatHelps(t *testing.T) {
	// Each case spoils a cluster or a command line of its own.
	for name, c := range map[string]struct {
		spoil func(*testing.T, *fixture)
		args  func(*testing.T, *fixture) []string
		code  int
		want  []string
	}{
		"token only": {
			args: func(t *testing.T, f *fixture) []string { return []string{"--kubeconfig", f.tokenOnly(t)} },
			code: exit.Usage, want: []string{`context "test" has no client certificate`, "--as-serviceaccount", "--token"},
		},
		"plugin with a token only": {
			args: func(t *testing.T, f *fixture) []string {
				return []string{"--kubeconfig", f.Kubeconfig(t, plugin(t, nil, nil))}
			},
			code: exit.Usage, want: []string{"has no client certificate", "--as-serviceaccount"},
		},
		"impersonation": {
			args: func(t *testing.T, f *fixture) []string {
				return []string{"--kubeconfig", f.Kubeconfig(t, &clientcmdapi.AuthInfo{Token: secret, Impersonate: "boss"})}
			},
			code: exit.Usage, want: []string{`impersonates "boss"`, "knows no impersonation"},
		},
		"no such context": {
			args: func(t *testing.T, f *fixture) []string {
				return []string{"--kubeconfig", f.person(t), "--context", "none"}
			},
			code: exit.Usage, want: []string{`the kubeconfig has no context "none"`, "give one of its contexts: test"},
		},
		"plugin that fails": {
			args: func(t *testing.T, f *fixture) []string {
				return []string{"--kubeconfig", f.execPlugin(t, "sh", "-c", "exit 3")}
			},
			want: []string{`credential plugin "sh" of the kubeconfig`, "exit code 3"},
		},
		"plugin that is missing": {
			args: func(t *testing.T, f *fixture) []string {
				return []string{"--kubeconfig", f.execPlugin(t, "no-such-plugin")}
			},
			want: []string{`credential plugin "no-such-plugin" of the kubeconfig`, "not found"},
		},
		"plugin that hangs": {
			args: func(t *testing.T, f *fixture) []string {
				return []string{"--kubeconfig", f.execPlugin(t, "sleep", "4"), "--timeout", "1s"}
			},
			want: []string{`credential plugin "sleep" of the kubeconfig has not answered`},
		},
		"token with a space": {
			args: func(t *testing.T, f *fixture) []string {
				return []string{"--kubeconfig", f.tokenOnly(t), "--token", "a b"}
			},
			code: exit.Usage, want: []string{"--token: a token has no spaces"},
		},
		"no kubeconfig": {
			args: func(*testing.T, *fixture) []string { return nil },
			code: exit.Usage, want: []string{"no gateway is known", "--kubeconfig", "--server", "trivet-lab up"},
		},
		"no ConfigMap": {
			spoil: func(_ *testing.T, f *fixture) { f.SetAuthorities(nil) },
			want:  []string{"no status from the gateway in namespace trivet-system of context test", "there is no ConfigMap trivet-ca", "trivet certs"},
		},
		"ConfigMap without a certificate": {
			spoil: func(_ *testing.T, f *fixture) { f.SetAuthorities([]byte("nothing")) },
			want:  []string{"has no certificate in its key ca.crt"},
		},
		"no Pod": {
			spoil: func(_ *testing.T, f *fixture) { f.DeletePod("gateway-1") },
			want:  []string{"there is no gateway in namespace trivet-system", "--trivet-namespace"},
		},
		"no ready Pod": {
			spoil: func(_ *testing.T, f *fixture) { f.SetPod("gateway-1", false, nil) },
			want:  []string{"no Pod of the gateway in namespace trivet-system is ready: gateway-1 is not ready", "kubectl -n trivet-system describe pods"},
		},
		"no port with the name": {
			spoil: func(_ *testing.T, f *fixture) {
				f.SetPod("gateway-1", true, map[string]string{"http": f.gateway.address})
			},
			want: []string{`port-forward: to Pod gateway-1: no container has a port with the name "grpc"`},
		},
		"may not list Pods": {
			spoil: func(_ *testing.T, f *fixture) { f.Forbid("GET /pods") },
			want:  []string{"kubectl auth can-i list pods -n trivet-system"},
		},
		"may not forward": {
			spoil: func(_ *testing.T, f *fixture) { f.Forbid("GET /portforward", "POST /portforward") },
			want:  []string{"kubectl auth can-i create pods/portforward -n trivet-system"},
		},
		"may not read the authorities": {
			spoil: func(_ *testing.T, f *fixture) { f.Forbid("GET /configmaps/trivet-ca") },
			want:  []string{"kubectl auth can-i get configmaps/trivet-ca -n trivet-system"},
		},
		"may not ask for a token": {
			spoil: func(_ *testing.T, f *fixture) { f.Forbid("POST /token") },
			args: func(t *testing.T, f *fixture) []string {
				return []string{"--kubeconfig", f.tokenOnly(t), "--as-serviceaccount", "ci/robot"}
			},
			want: []string{"token of ServiceAccount ci/robot", "kubectl auth can-i create serviceaccounts/robot --subresource=token -n ci"},
		},
		"nothing listens in the Pod": {
			spoil: func(_ *testing.T, f *fixture) { f.SetPod("gateway-1", true, map[string]string{"grpc": "127.0.0.1:1"}) },
			want:  []string{"port-forward to trivet-system/gateway-1:1: error forwarding port"},
		},
		"gateway of another authority": {
			spoil: func(_ *testing.T, f *fixture) { f.SetAuthorities(identitytest.Bundle(f.other)) },
			want:  []string{"TLS with the gateway", "certificate signed by unknown authority"},
		},
		"client of another authority": {
			args: func(t *testing.T, f *fixture) []string {
				certificate, key := f.other.Issue(t, "stranger")
				return []string{"--kubeconfig", f.Kubeconfig(t, &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key})}
			},
			want: []string{"--client-ca-file must have the authority"},
		},
		"token in plaintext": {
			args: func(_ *testing.T, f *fixture) []string {
				return []string{"--server", f.gateway.address, "--token", "given"}
			},
			code: exit.Usage, want: []string{"a token is not sent without TLS"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if c.spoil != nil {
				c.spoil(t, f)
			}
			args := []string{"--kubeconfig", f.person(t)}
			if c.args != nil {
				args = c.args(t, f)
			}
			if c.code == 0 {
				c.code = exit.Undetermined
			}
			err := get(t, flags(t, nil, args...))
			text := report(err)
			if exit.CodeOf(err) != c.code {
				t.Errorf("exit code %d, want %d", exit.CodeOf(err), c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("the report does not say %q:\n%s", want, text)
				}
			}
			if users, all := f.gateway.received(); len(users) > 0 || strings.Contains(text+all, secret) {
				t.Errorf("the gateway was called by %q: %s", users, all)
			}
		})
	}
}

func TestDial_SPDYWhereWebSocketsAreRefused(t *testing.T) {
	f := newFixture(t)
	if err := get(t, flags(t, nil, "--kubeconfig", f.person(t))); err != nil {
		t.Fatal(err)
	}
	f.RefuseWebSockets()
	if err := get(t, flags(t, nil, "--kubeconfig", f.person(t))); err != nil {
		t.Fatal(err)
	}
	if got, want := f.Upgrades(), []string{"websocket gateway-1", "spdy gateway-1"}; !slices.Equal(got, want) {
		t.Errorf("port-forwards: %q, want %q", got, want)
	}
}

// TestDial_AStreamContinuesAtAnotherPod loses the Pod of a watch; the authorities are rotated at
// the same time.
func TestDial_AStreamContinuesAtAnotherPod(t *testing.T) {
	f := newFixture(t)
	flags := flags(t, nil, "--kubeconfig", f.person(t))
	conn, err := flags.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	service := gatewayv1.NewClusterServiceClient(conn)
	watch := func() (grpc.ServerStreamingClient[gatewayv1.WatchClusterStatusResponse], error) {
		stream, err := service.WatchClusterStatus(t.Context(), &gatewayv1.WatchClusterStatusRequest{}, grpc.WaitForReady(true))
		if err == nil {
			_, err = stream.Recv()
		}
		return stream, err
	}
	stream, err := watch()
	if err != nil {
		t.Fatal(err)
	}

	second := f.serve(t, f.other)
	f.SetAuthorities(identitytest.Bundle(f.other))
	f.SetPod("gateway-0", false, map[string]string{"grpc": second.address})
	f.SetPod("gateway-2", true, map[string]string{"grpc": second.address})
	f.DeletePod("gateway-1")
	if _, err := stream.Recv(); err == nil {
		t.Fatal("the stream survives its Pod")
	}
	if _, err := watch(); err != nil {
		t.Fatalf("watch again: %v", err)
	}
	if users, _ := second.received(); !slices.Equal(users, []string{"person"}) {
		t.Errorf("the second gateway was called by %q, want the person", users)
	}
	if upgrades := f.Upgrades(); slices.Contains(upgrades, "websocket gateway-0") {
		t.Errorf("port-forwards: %q, one of a Pod that is not ready", upgrades)
	}
}

func TestDial_ABrokenPodHoldsNothingUp(t *testing.T) {
	f := newFixture(t)
	// A Pod whose port refuses gives an end at once, and the next connection is to another Pod.
	f.SetPod("gateway-0", true, map[string]string{"grpc": "127.0.0.1:1"})
	f.SetPod("gateway-2", true, map[string]string{"http": "127.0.0.1:1"})
	flags := flags(t, nil, "--kubeconfig", f.person(t))
	conn, err := flags.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := gatewayv1.NewClusterServiceClient(conn).GetClusterStatus(t.Context(), &gatewayv1.GetClusterStatusRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	if users, _ := f.gateway.received(); !slices.Equal(users, []string{"person"}) {
		t.Errorf("the gateway was called by %q", users)
	}
}

func TestToken_IsRenewedBeforeItsEnd(t *testing.T) {
	f := newFixture(t)
	f.SetTokenLife(2 * time.Second)
	flags := flags(t, nil, "--kubeconfig", f.tokenOnly(t), "--as-serviceaccount", "ci/robot")
	begin := time.Now()
	for calls := 0; len(f.TokenRequests()) < 2; calls++ {
		if err := get(t, flags); err != nil {
			t.Fatal(err)
		}
		if time.Since(begin) > 30*time.Second {
			t.Fatalf("%d calls, and no second token", calls)
		}
	}
	users, _ := f.gateway.received()
	if got := slices.Compact(users); !slices.Equal(got, []string{"Bearer token-1", "Bearer token-2"}) {
		t.Errorf("the gateway received %q, want the first token and then the second", got)
	}
}

func TestConnect_InterruptedWhileKubeAPIServerHangs(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	f := newFixture(t)
	kubeconfig := f.person(t)
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	_, server, _ := strings.Cut(string(text), "server: ")
	server, _, _ = strings.Cut(server, "\n")
	hanging := strings.ReplaceAll(string(text), server, "https://"+listener.Addr().String())
	if err := os.WriteFile(kubeconfig, []byte(hanging), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := flags(t, nil, "--kubeconfig", kubeconfig)
	flags.Timeout = 500 * time.Millisecond
	err = get(t, flags)
	if coded, ok := errors.AsType[*exit.Error](err); !ok || coded.Code != exit.Undetermined {
		t.Errorf("call = %v, want exit code %d", err, exit.Undetermined)
	}
}
