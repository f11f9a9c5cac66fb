package agent_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// Fresh credentials are presented before the next beat is due, wherever in the interval the server
// asks for them.
func TestRun_NewCredentialsCostNoBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		s.change = func(stream int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			if response.Grant != nil { // a beat, and not the registration
				response.Directive = leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH
			}
			return response
		}
		run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: nodes(50)})
		advance(20 * interval)
		last := time.Duration(0)
		registered := 0
		for _, m := range s.received() {
			if gap := m.At - last; gap > interval {
				t.Errorf("%v without a message before %v", gap, m.At)
			}
			if last = m.At; m.Registered > 0 {
				registered++
			}
		}
		if registered < 15 {
			t.Errorf("registered %d times in 20 intervals, want once for each beat", registered)
		}
	})
}

// A server that asks for other credentials at once, or accepts none, is not asked in a hot loop.
func TestRun_RefusedCredentialsAreTriedSeldom(t *testing.T) {
	for name, set := range map[string]func(*server){
		"asks at once": func(s *server) {
			s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
				response.Directive = leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH
				return response
			}
		},
		"accepts none": func(s *server) {
			s.end = func(int) error { return status.Error(codes.Unauthenticated, "the token is not valid") }
			s.change = func(int, *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse { return nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t)
				set(s)
				run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: nodes(5), MaxBackoff: 5 * time.Second})
				advance(10 * time.Minute)
				if n := len(s.received()); n < 20 || n > 600 {
					t.Errorf("%d messages in ten minutes, want one each few seconds", n)
				}
			})
		})
	}
}

func TestRun_ARefusedHolderDisturbsNoOtherAndReturnsOnANewStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		var mu sync.Mutex // guards refused
		refused := func(string) bool { return true }
		s.change = func(_ int, response *leasev1.StreamHeartbeatsResponse) *leasev1.StreamHeartbeatsResponse {
			mu.Lock()
			defer mu.Unlock()
			request := s.requests[len(s.requests)-1]
			for i, registration := range request.Registrations {
				if refused(registration.Holder.Name) {
					response.RegistrationResults[i] = &leasev1.RegistrationResult{Result: &leasev1.RegistrationResult_Rejection{
						Rejection: &leasev1.Rejection{Reason: "NOT_AUTHORIZED", Code: code.Code_PERMISSION_DENIED},
					}}
				}
			}
			return response
		}
		a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, Holders: nodes(3)})
		advance(time.Second)
		if got := a.Status(); len(got.Rejected) != 3 || got.Rejected[0].Reason != "NOT_AUTHORIZED" || got.Registered != 0 || len(got.Targets) != 0 {
			t.Errorf("status %+v, want three refused holders and no stream", got)
		}
		advance(10 * time.Minute)
		if n := len(s.received()); n < 6 || n > 40 {
			t.Errorf("%d messages in ten minutes, want one each minute or so", n)
		}
		mu.Lock()
		refused = func(name string) bool { return name == nodes(3)[1].Name }
		mu.Unlock()
		advance(2 * time.Minute)
		if got := a.Status(); got.Registered != 2 || len(got.Rejected) != 1 || len(got.Targets) != 1 {
			t.Errorf("status %+v, want two registered holders", got)
		}
	})
}

// tokens is a server that records the tokens of its streams.
type tokens struct {
	leasev1.UnimplementedHeartbeatServiceServer

	mu   sync.Mutex // guards seen
	seen []string
}

func (s *tokens) StreamHeartbeats(rpc grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
	s.mu.Lock()
	s.seen = append(s.seen, strings.Join(metadata.ValueFromIncomingContext(rpc.Context(), "authorization"), ","))
	s.mu.Unlock()
	for {
		request, err := rpc.Recv()
		if err != nil {
			return err
		}
		grant := &leasev1.Grant{NextInterval: durationpb.New(10 * time.Millisecond)}
		response := &leasev1.StreamHeartbeatsResponse{Sequence: request.Sequence}
		for i := range request.Registrations {
			response.RegistrationResults = append(response.RegistrationResults, &leasev1.RegistrationResult{
				Handle: uint32(i + 1), Result: &leasev1.RegistrationResult_Grant{Grant: grant},
			})
		}
		if len(request.Handles) > 0 {
			response.Grant, response.Directive = grant, leasev1.StreamHeartbeatsResponse_DIRECTIVE_REAUTH
		}
		if err := rpc.Send(response); err != nil {
			return err
		}
	}
}

func (s *tokens) await(t *testing.T, want string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !slices.Contains(s.seen, want) {
			return status.Errorf(codes.NotFound, "seen %q, not %q", s.seen, want)
		}
		return nil
	})
}

// A projected token changes on disk. Each stream has the one that is there.
func TestRun_EachStreamHasTheTokenThatIsInTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	s := &tokens{}
	dial := serveTLS(t, s)
	a := run(t, agent.Config{Targets: []string{"a"}, Dial: dial, TokenFile: path, Holders: nodes(1), MinBackoff: time.Millisecond})
	s.await(t, "Bearer first")
	write("second")
	s.await(t, "Bearer second")
	write(" ")
	testkit.Eventually(t, 20*time.Second, func() error {
		if text := a.Status().LastError; !strings.Contains(text, "the file is empty") {
			return status.Errorf(codes.NotFound, "last error %q", text)
		}
		return nil
	})
	write("third")
	s.await(t, "Bearer third")
}

// serveTLS returns a function that connects to a server with TLS.
func serveTLS(t *testing.T, s leasev1.HeartbeatServiceServer) func(string) (*grpc.ClientConn, error) {
	t.Helper()
	ca, err := certs.NewAuthority("test", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(certs.ServerLeaf("leasesvc", "trivet-system", "cluster.local"), time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	registry := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})))
	leasev1.RegisterHeartbeatServiceServer(registry, s)
	served := make(chan error, 1)
	go func() { served <- registry.Serve(listener) }()
	t.Cleanup(func() {
		registry.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.CertPEM())
	return func(string) (*grpc.ClientConn, error) {
		return grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: roots, ServerName: "leasesvc", MinVersion: tls.VersionTLS13,
		})))
	}
}

// A token is never sent in plain text.
func TestRun_ATokenNeedsTLS(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t)
	a := run(t, agent.Config{Targets: []string{"a"}, Dial: network{"a": s}.dial, TokenFile: path, Holders: nodes(1)})
	testkit.Eventually(t, 20*time.Second, func() error {
		if a.Status().LastError == "" {
			return status.Error(codes.NotFound, "no error yet")
		}
		return nil
	})
	if text := a.Status().LastError; strings.Contains(text, "canary") {
		t.Errorf("the error has the token: %s", text)
	}
	if got := s.received(); len(got) > 0 {
		t.Errorf("the server received %v", got)
	}
}
