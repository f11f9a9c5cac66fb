package apiservers_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/apiservers"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server returns a ready kube-apiserver. Its probe is half a minute older than an hour, so that the
// age does not depend on the duration of a test.
func server(address string, edit func(*bootstrapv1.APIServer)) *bootstrapv1.APIServer {
	s := &bootstrapv1.APIServer{
		Name: "apiservers/" + address, Address: address, Port: 6443, Ready: true, ProbeDetail: "ok",
		ProbeTime: timestamppb.New(time.Now().Add(-time.Hour - 30*time.Second)), ReplicaId: "node-1-x7k2p",
		Ttl: durationpb.New(9 * time.Second), RegistrationSource: bootstrapv1.APIServer_REGISTRATION_SOURCE_SIDECAR,
		Conditions: []*metav1.Condition{published(metav1.Condition_STATUS_TRUE, "it is ready")}, EtcdKey: "/trivet/main/apiservers/" + address,
	}
	if edit != nil {
		edit(s)
	}
	return s
}

func published(status metav1.Condition_Status, message string) *metav1.Condition {
	return &metav1.Condition{Type: "Published", Status: status, Reason: "READINESS", Message: message}
}

func notReady(s *bootstrapv1.APIServer) {
	s.Ready, s.ReplicaId, s.Ttl, s.ProbeTime = false, "", nil, nil
	s.RegistrationSource, s.EtcdKey = bootstrapv1.APIServer_REGISTRATION_SOURCE_MASTER_LEASE, "/registry/masterleases/"+s.Address
	s.ProbeDetail = "connection refused\x1b[2J"
	s.Conditions = []*metav1.Condition{
		published(metav1.Condition_STATUS_FALSE, "it is not ready"),
		{Type: "Registered", Status: metav1.Condition_STATUS_FALSE, Reason: "APISERVER_KEY_UNLEASED", Message: "its key has no lease, as after a restore"},
	}
}

func mixed() []*bootstrapv1.APIServer {
	return []*bootstrapv1.APIServer{
		server("10.1.0.1", nil),
		server("10.1.0.2", func(s *bootstrapv1.APIServer) {
			s.Conditions[0] = published(metav1.Condition_STATUS_FALSE, "its port differs from the majority")
		}),
		server("10.1.0.3", notReady),
		server("10.1.0.4", func(s *bootstrapv1.APIServer) {
			s.Ready, s.Conditions, s.ProbeDetail, s.RegistrationSource = false, nil, "status 500", 0
		}),
	}
}

func TestAPIServers_Transcripts(t *testing.T) {
	pipe := commandtest.Terminal{}
	tests := []struct {
		name   string
		serves *commandtest.Gateway
		where  commandtest.Terminal
		args   []string
		code   int
	}{
		{name: "unhealthy", serves: &commandtest.Gateway{APIServers: mixed()}, code: exit.Findings},
		{name: "wide", serves: &commandtest.Gateway{APIServers: mixed()}, args: []string{"-o", "wide"}, code: exit.Findings},
		{name: "terminal", serves: &commandtest.Gateway{APIServers: mixed()}, where: commandtest.Terminal{Width: 90, Height: 24}, code: exit.Findings},
		{name: "healthy", serves: &commandtest.Gateway{APIServers: mixed()[:2]}, code: exit.OK},
		{name: "none", serves: &commandtest.Gateway{}, code: exit.Findings},
		{name: "missing", serves: &commandtest.Gateway{Missing: []*metav1.MissingPart{{Service: "bootstrapsvc", Code: code.Code_UNAVAILABLE}}}, code: exit.Undetermined},
		{name: "names", serves: &commandtest.Gateway{APIServers: mixed()[:2]}, args: []string{"-o", "name"}, code: exit.OK},
		{name: "json", serves: &commandtest.Gateway{APIServers: []*bootstrapv1.APIServer{{Name: "apiservers/10.1.0.1", Address: "10.1.0.1", Ready: true}}}, args: []string{"-o", "json"}, code: exit.OK},
		{name: "one", serves: &commandtest.Gateway{APIServers: mixed()}, args: []string{"::ffff:10.1.0.3"}, code: exit.Findings},
		{name: "not-found", serves: &commandtest.Gateway{APIServers: mixed()}, args: []string{"10.1.0.9"}, code: exit.Findings},
		{name: "etcd-unreachable", serves: &commandtest.Gateway{Err: rpcerror.New(codes.Unavailable, "ETCD_UNREACHABLE", "etcd did not answer within 5s")}, code: exit.Undetermined},
		{name: "usage", serves: &commandtest.Gateway{}, args: []string{"node-1", "-o", "xml"}, code: exit.Usage},
		{name: "help", serves: &commandtest.Gateway{}, args: []string{"--help"}, code: exit.OK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address := commandtest.Serve(t, test.serves)
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

// changes returns a gateway with a watch in which one item is probed again, becomes not ready and
// disappears, and one is added.
func changes() *commandtest.Gateway {
	event := func(kind metav1.EventType, s *bootstrapv1.APIServer) *bootstrapv1.WatchAPIServersResponse {
		return &bootstrapv1.WatchAPIServersResponse{Type: kind, Apiserver: s}
	}
	probed := server("10.1.0.1", func(s *bootstrapv1.APIServer) { s.Ttl, s.ProbeTime = durationpb.New(7*time.Second), timestamppb.Now() })
	const added, modified, deleted = metav1.EventType_EVENT_TYPE_ADDED, metav1.EventType_EVENT_TYPE_MODIFIED, metav1.EventType_EVENT_TYPE_DELETED
	return &commandtest.Gateway{APIServerWatches: []commandtest.Watch[bootstrapv1.WatchAPIServersResponse]{{Events: []*bootstrapv1.WatchAPIServersResponse{
		event(added, server("10.1.0.1", nil)), event(added, server("10.1.0.2", nil)),
		{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{InitialEventsEnd: true}},
		event(modified, probed), event(modified, server("10.1.0.2", notReady)), event(added, server("10.1.0.3", nil)),
		event(deleted, server("10.1.0.2", notReady)),
	}}}}
}

func TestAPIServers_WatchShowsChanges(t *testing.T) {
	address := commandtest.Serve(t, changes())
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"deleted"}}, apiservers.NewCommand, "-w", "--server", address)
	commandtest.Golden(t, "watch.txt", got.String())
	if got.Code != exit.Interrupted {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Interrupted)
	}
}

func TestAPIServers_JSONWatchPrintsEvents(t *testing.T) {
	address := commandtest.Serve(t, changes())
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"TYPE_DELETED"}}, apiservers.NewCommand, "-w", "-o", "json", "--server", address)
	events := regexp.MustCompile("TYPE_[A-Z]+").FindAllString(got.Stdout, -1)
	if want := "TYPE_ADDED TYPE_ADDED TYPE_BOOKMARK TYPE_MODIFIED TYPE_MODIFIED TYPE_ADDED TYPE_DELETED"; strings.Join(events, " ") != want {
		t.Errorf("events %v, want %s", events, want)
	}
}
