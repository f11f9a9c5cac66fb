package leasesvc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

// secured is a service behind TLS that knows its callers by their certificates.
type secured struct {
	*fixture
	ca      *certs.Authority
	dir     string
	address string
}

// away is a kube-apiserver that does not answer: heartbeats of nodes do not need it.
type away struct{}

func (away) Review(context.Context, authn.User, authz.Attributes) (authz.Decision, error) {
	return authz.Decision{}, errors.New("connection refused")
}

func newSecured(t *testing.T, s setup) *secured {
	t.Helper()
	f := &secured{fixture: newFixture(t, s), dir: t.TempDir()}
	var err error
	if f.ca, err = certs.NewAuthority("test", time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	f.write("ca.crt", f.ca.CertPEM())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = listener.Addr().String()
	cfg := rpcserver.DefaultConfig(f.address)
	cfg.TLS = f.issue("server", certs.ServerLeaf("leasesvc", "trivet-system", "cluster.local"), time.Hour)
	server, err := rpcserver.New(cfg, rpcserver.Deps{
		Logger: slog.New(slog.DiscardHandler), Unvalidated: leasesvc.Unvalidated(), Authorizer: authz.New(away{}), Holders: f.service.Holders(),
		Authenticator: authn.New(authn.Config{GatewayGroup: certs.GatewayGroup, ServerGroup: certs.ServerGroup}),
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Register(f.service.Register)
	stop := background(func(ctx context.Context) error { return server.Serve(ctx, listener) })
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return f
}

// write replaces a file at once, as a rotation does.
func (f *secured) write(name string, content []byte) (path string) {
	f.t.Helper()
	path = filepath.Join(f.dir, name)
	if err := errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path)); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// issue writes a certificate; a second one of the same name replaces the first.
func (f *secured) issue(name string, leaf certs.Leaf, lifetime time.Duration) identity.Files {
	f.t.Helper()
	pair, err := f.ca.Issue(leaf, lifetime, time.Now())
	if err != nil {
		f.t.Fatal(err)
	}
	return identity.Files{
		CAFile: filepath.Join(f.dir, "ca.crt"), KeyFile: f.write(name+".key", pair.KeyPEM), CertFile: f.write(name+".crt", pair.CertPEM),
	}
}

func (f *secured) dial(files identity.Files) func(string) (*grpc.ClientConn, error) {
	return func(target string) (*grpc.ClientConn, error) {
		return rpcclient.Dial(target, rpcclient.Config{TLS: files, ServerName: leasesvc.ServiceName}, slog.New(slog.DiscardHandler))
	}
}

func (f *secured) connect(files identity.Files) *grpc.ClientConn {
	f.t.Helper()
	connection, err := f.dial(files)(f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { connection.Close() })
	return connection
}

// beat runs the agent of a Node.
func (f *secured) beat(t *testing.T, node string, files identity.Files) *agent.Agent {
	t.Helper()
	a, err := agent.New(agent.Config{
		Targets: []string{f.address}, Dial: f.dial(files), Holders: []agent.Holder{{Class: "node", Name: node, BootID: "1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := background(a.Run)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("agent: %v", err)
		}
	})
	return a
}

func TestAccess_AStolenNodeCertificateDisturbsNoOtherNode(t *testing.T) { // not parallel, because its beats are late on a busy machine
	const real, attacked = 20, 1000
	f := newSecured(t, setup{config: func(c *leasesvc.Config) { c.Classes[0].HeartbeatInterval = 200 * time.Millisecond }})
	name := func(i int) string { return fmt.Sprintf("node-%d", i) }
	var agents []*agent.Agent
	for i := range real {
		agents = append(agents, f.beat(t, name(i), f.issue(name(i), certs.NodeLeaf(name(i)), time.Hour)))
	}
	awaitRegistered(t, agents...)

	stolen := f.connect(f.issue("stolen", certs.NodeLeaf("stolen"), time.Hour))
	request := &leasev1.HeartbeatRequest{}
	for i := range attacked {
		request.Beats = append(request.Beats, &leasev1.Beat{Holder: holder(name(i), "evil"), Sequence: 1 << 40})
	}
	response, err := leasev1.NewHeartbeatServiceClient(stolen).Heartbeat(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	for i, result := range response.Results {
		if result.GetRejection().GetReason() != "NOT_AUTHORIZED" {
			t.Fatalf("%s: %v, want NOT_AUTHORIZED", name(i), result)
		}
	}
	// What servers say of each other is not for a node.
	forwarded := &leasev1.ForwardHeartbeatsRequest{ReplicaId: "r", Beats: []*leasev1.ForwardedBeat{
		{Beat: request.Beats[0], Age: durationpb.New(time.Second)},
	}}
	_, err = leasev1.NewPeerServiceClient(stolen).ForwardHeartbeats(t.Context(), forwarded)
	expectError(t, "ForwardHeartbeats of a node", err, codes.PermissionDenied, "NOT_AUTHORIZED")
	_, err = leasev1.NewHeartbeatServiceClient(stolen).ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder(name(0), "1")})
	expectError(t, "ReleaseLease of another node", err, codes.PermissionDenied, "NOT_AUTHORIZED")

	begin := time.Now()
	for i, a := range agents {
		f.eventually(func() error { // two more beats
			if s := a.Status(); s.LastAnswer.Before(begin.Add(300 * time.Millisecond)) {
				return fmt.Errorf("%s: last answer %v", name(i), s.LastAnswer)
			}
			return nil
		})
		if s := a.Status(); s.Registered != 1 || len(s.Superseded) > 0 || s.Streams != 1 {
			t.Errorf("%s: %+v", name(i), s)
		}
		if lease := f.get(name(i)); lease.Holder.BootId != "1" {
			t.Errorf("%s has boot %q", name(i), lease.Holder.BootId)
		}
	}
	f.expectCounts(map[string]int64{"leases": real, "alive": real})

	server := f.connect(f.issue("replica", certs.ServerLeaf("leasesvc", "trivet-system", "cluster.local"), time.Hour))
	answer, err := leasev1.NewPeerServiceClient(server).ForwardHeartbeats(t.Context(), &leasev1.ForwardHeartbeatsRequest{
		ReplicaId: "r", Beats: []*leasev1.ForwardedBeat{{Beat: &leasev1.Beat{Holder: holder("n1", "1"), Sequence: 1}, Age: durationpb.New(time.Second)}},
	})
	if err != nil || answer.Results[0].GetGrant() == nil {
		t.Errorf("ForwardHeartbeats of a server: %v, %v", answer, err)
	}
}

// The agent presents the certificate that is in its file when the old one ends.
func TestAccess_ARenewedCertificateCostsNoBeat(t *testing.T) { // not parallel, because its beats are late on a busy machine
	const beats, lifetime = 200 * time.Millisecond, 5 * time.Second
	f := newSecured(t, setup{config: func(c *leasesvc.Config) {
		c.Classes[0].HeartbeatInterval, c.Classes[0].Grace = beats, 10*time.Second
	}})
	a := f.beat(t, "n1", f.issue("n1", certs.NodeLeaf("n1"), lifetime))
	awaitRegistered(t, a)
	f.issue("n1", certs.NodeLeaf("n1"), time.Hour)
	longest := time.Duration(0)
	f.eventually(func() error {
		s := a.Status()
		longest = max(longest, time.Since(s.LastAnswer))
		if s.Streams < 2 || s.Registered != 1 {
			return fmt.Errorf("%d streams, last error %q", s.Streams, s.LastError)
		}
		return nil
	})
	if lease := f.get("n1"); lease.State != leasev1.Lease_STATE_ALIVE || lease.Holder.BootId != "1" {
		t.Errorf("lease %v", lease)
	}
	if last := a.Status().LastError; !strings.Contains(last, "asks for new credentials") {
		t.Errorf("the first stream ended with %q, want the request for new credentials", last)
	}
	t.Logf("the longest time without an answer was %v", longest)
}
