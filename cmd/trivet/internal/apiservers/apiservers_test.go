package apiservers_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/apiservers"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/commandtest"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server returns a ready kube-apiserver. Its probe is half a minute older than an hour, so that the
// age does not depend on the duration of a test.
func server(address string, edit func(*bootstrapv1.APIServer)) *bootstrapv1.APIServer {
	s := &bootstrapv1.APIServer{
		Name: "apiservers/" + address, Address: address, Port: 6443, Ready: true, ProbeDetail: "ok",
		ProbeTime: timestamppb.New(time.Now().Add(-time.Hour - 30*time.Second)), ReplicaId: "node-1-x7k2p",
		Ttl: durationpb.New(9 * time.Second), Source: bootstrapv1.APIServer_SOURCE_SIDECAR, Published: true,
		Reason: "it is ready", Key: "/trivet/main/apiservers/" + address,
	}
	if edit != nil {
		edit(s)
	}
	return s
}

func notReady(s *bootstrapv1.APIServer) {
	s.Ready, s.Published, s.ReplicaId, s.Ttl, s.ProbeTime = false, false, "", nil, nil
	s.Source, s.Key = bootstrapv1.APIServer_SOURCE_MASTER_LEASE, "/registry/masterleases/"+s.Address
	s.ProbeDetail, s.Reason = "connection refused\x1b[2J", "it is not ready"
	s.Problems = []string{"its key has no lease, as after a restore"}
}

func mixed() []*bootstrapv1.APIServer {
	return []*bootstrapv1.APIServer{
		server("10.1.0.1", nil),
		server("10.1.0.2", func(s *bootstrapv1.APIServer) { s.Published, s.Reason = false, "its port differs from the majority" }),
		server("10.1.0.3", notReady),
		server("10.1.0.4", func(s *bootstrapv1.APIServer) {
			s.Ready, s.Reason, s.ProbeDetail, s.Source = false, "", "status 500", 0
		}),
	}
}

func TestAPIServers_Transcripts(t *testing.T) {
	pipe := commandtest.Terminal{}
	tests := []struct {
		name   string
		serves *commandtest.Bootstrap
		where  commandtest.Terminal
		args   []string
		code   int
	}{
		{name: "unhealthy", serves: &commandtest.Bootstrap{APIServers: mixed()}, code: exit.Findings},
		{name: "wide", serves: &commandtest.Bootstrap{APIServers: mixed()}, args: []string{"-o", "wide"}, code: exit.Findings},
		{name: "terminal", serves: &commandtest.Bootstrap{APIServers: mixed()}, where: commandtest.Terminal{Width: 90, Height: 24}, code: exit.Findings},
		{name: "healthy", serves: &commandtest.Bootstrap{APIServers: mixed()[:2]}, code: exit.OK},
		{name: "none", serves: &commandtest.Bootstrap{}, code: exit.Findings},
		{name: "names", serves: &commandtest.Bootstrap{APIServers: mixed()[:2]}, args: []string{"-o", "name"}, code: exit.OK},
		{name: "json", serves: &commandtest.Bootstrap{APIServers: []*bootstrapv1.APIServer{{Name: "apiservers/10.1.0.1", Address: "10.1.0.1", Ready: true}}}, args: []string{"-o", "json"}, code: exit.OK},
		{name: "one", serves: &commandtest.Bootstrap{APIServers: mixed()}, args: []string{"::ffff:10.1.0.3"}, code: exit.Findings},
		{name: "not-found", serves: &commandtest.Bootstrap{APIServers: mixed()}, args: []string{"10.1.0.9"}, code: exit.Undetermined},
		{name: "etcd-unreachable", serves: &commandtest.Bootstrap{Err: rpcerror.New(codes.Unavailable, "ETCD_UNREACHABLE", "etcd did not answer within 5s")}, code: exit.Undetermined},
		{name: "usage", serves: &commandtest.Bootstrap{}, args: []string{"node-1", "-o", "yaml"}, code: exit.Usage},
		{name: "help", serves: &commandtest.Bootstrap{}, args: []string{"--help"}, code: exit.OK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address := commandtest.Serve(t, &commandtest.Gateway{Bootstrap: test.serves})
			where := pipe
			if test.where.Width > 0 {
				where = test.where
			}
			got := commandtest.Run(t, where, apiservers.NewCommand, append(test.args, "--server", address)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

// changingLists returns a gateway whose watch sends whole lists: one item becomes not ready and
// disappears, one is added.
func changingLists() *commandtest.Gateway {
	list := func(servers ...*bootstrapv1.APIServer) *gatewayv1.WatchAPIServersResponse {
		return &gatewayv1.WatchAPIServersResponse{Apiservers: servers}
	}
	return &commandtest.Gateway{Bootstrap: &commandtest.Bootstrap{ServerWatches: [][]*gatewayv1.WatchAPIServersResponse{{
		list(server("10.1.0.1", nil), server("10.1.0.2", nil)),
		list(server("10.1.0.1", func(s *bootstrapv1.APIServer) { s.Ttl, s.ProbeTime = durationpb.New(7*time.Second), timestamppb.Now() }), server("10.1.0.2", nil)),
		list(server("10.1.0.1", nil), server("10.1.0.2", notReady), server("10.1.0.3", nil)),
		list(server("10.1.0.1", nil), server("10.1.0.3", nil)),
	}}}}
}

func TestAPIServers_WatchShowsChanges(t *testing.T) {
	address := commandtest.Serve(t, changingLists())
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"deleted"}}, apiservers.NewCommand, "-w", "--server", address)
	commandtest.Golden(t, "watch.txt", got.String())
	if got.Code != exit.Interrupted {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Interrupted)
	}
}

func TestAPIServers_JSONWatchPrintsWholeLists(t *testing.T) {
	address := commandtest.Serve(t, changingLists())
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"masterleases"}}, apiservers.NewCommand, "-w", "-o", "json", "--server", address)
	lines := strings.Split(strings.TrimSpace(got.Stdout), "\n")
	if len(lines) < 3 {
		t.Fatalf("got %d lines, want one for each of the first three lists at least:\n%s", len(lines), got.Stdout)
	}
	for i, servers := range []int{2, 2, 3} {
		if has := strings.Count(lines[i], `"name":"apiservers/`); has != servers {
			t.Errorf("line %d has %d kube-apiservers, want %d: %s", i, has, servers, lines[i])
		}
	}
}
