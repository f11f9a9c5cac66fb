package nodes_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/nodes"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node returns a ready Node with a lease.
func node(name string, health nodev1.NodeHealth_Health, edits ...func(*nodev1.NodeHealth)) *nodev1.NodeHealth {
	n := &nodev1.NodeHealth{
		Name: "nodes/" + name, Health: health, Zone: "zones/eu:a", Ready: "True", Reason: "SIGNALS_RECEIVED", Message: "its lease is alive",
		Signals: signals(nodev1.SignalSource_SIGNAL_SOURCE_KUBELET, commandtest.Ago(time.Hour), nil), LeaseState: leasev1.Lease_STATE_ALIVE,
		ChangeTime: commandtest.Ago(5 * time.Hour), Uid: "uid-" + name, ResourceVersion: "812",
		Owner: &metav1.Owner{ReplicaId: "node-1-x7k2p", Shard: proto.Int32(3), Epoch: 18231},
	}
	for _, edit := range edits {
		edit(n)
	}
	return n
}

func signals(source nodev1.SignalSource, seen, expires *timestamppb.Timestamp) []*nodev1.Signal {
	return []*nodev1.Signal{{Source: source, SeenTime: seen, ExpireTime: expires}}
}

func message(text string) func(*nodev1.NodeHealth) {
	return func(n *nodev1.NodeHealth) { n.Message = text }
}

// markedUnknown edits a Node as after its grace period.
func markedUnknown(n *nodev1.NodeHealth) {
	n.Ready, n.LeaseState, n.Reason, n.Message = "Unknown", leasev1.Lease_STATE_EXPIRED, "LEASE_EXPIRED", "no signal of life since its lease expired"
	n.Signals = signals(nodev1.SignalSource_SIGNAL_SOURCE_KUBELET, commandtest.Ago(26*time.Hour), commandtest.Ago(25*time.Hour))
	n.Taints = []string{"node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"}
}

// everyHealth returns one Node of each health, and a second ready one.
func everyHealth() []*nodev1.NodeHealth {
	return []*nodev1.NodeHealth{
		node("node-1", nodev1.NodeHealth_HEALTH_READY, agentOf("trivet-agent", "endpoint")),
		node("node-2", nodev1.NodeHealth_HEALTH_READY, func(n *nodev1.NodeHealth) {
			n.Signals[0].Source, n.LeaseState, n.Message, n.Zone = nodev1.SignalSource_SIGNAL_SOURCE_LEASE_OBJECT, 0, "its kubelet renews its Lease", "zones/none"
		}),
		node("node-3", nodev1.NodeHealth_HEALTH_NOT_READY, message("the container runtime is down"), agentOf("own-agent", ""), func(n *nodev1.NodeHealth) {
			n.Ready = "False"
			n.Taints = []string{"node.kubernetes.io/disk-pressure:NoSchedule", "node.kubernetes.io/not-ready:NoExecute", "node.kubernetes.io/not-ready:NoSchedule"}
		}),
		node("node-4", nodev1.NodeHealth_HEALTH_SILENT, message("no sign of life for two hours"), func(n *nodev1.NodeHealth) {
			n.Conditions = held("MarkingSuspended", "12 nodes of zone eu:a became silent within 5s")
		}),
		node("node-5", nodev1.NodeHealth_HEALTH_STARTING, func(n *nodev1.NodeHealth) {
			n.LeaseState, n.Ready, n.Reason, n.Message = 0, "", "STARTUP_GRACE", "it has no Ready condition yet"
			n.Signals = signals(nodev1.SignalSource_SIGNAL_SOURCE_NONE, commandtest.Ago(time.Hour), commandtest.Ahead(90*time.Minute))
		}),
		node("node-6", nodev1.NodeHealth_HEALTH_SUSPECT, message("two beats are missing"), withAgent, agentOf("trivet-agent", "probe")),
		node("node-7.example.com", nodev1.NodeHealth_HEALTH_UNKNOWN, markedUnknown),
	}
}

func readyNodes() []*nodev1.NodeHealth { return everyHealth()[:2] }

// withAgent adds a signal of the agent, which is later than that of the kubelet.
func withAgent(n *nodev1.NodeHealth) {
	n.Signals[0].SeenTime = commandtest.Ago(2 * time.Hour)
	n.Signals = append(signals(nodev1.SignalSource_SIGNAL_SOURCE_AGENT, commandtest.Ago(time.Hour), nil), n.Signals...)
}

func agentOf(name, mode string) func(*nodev1.NodeHealth) {
	return func(n *nodev1.NodeHealth) { n.Agent = &leasev1.Lease_Agent{Name: name, Version: "v1.0.0", Mode: mode} }
}

func held(conditionType, message string) []*metav1.Condition {
	return []*metav1.Condition{{Type: conditionType, Status: metav1.Condition_STATUS_TRUE, Reason: "SILENT_TOGETHER", Message: message}}
}

func missing() []*metav1.MissingPart {
	return []*metav1.MissingPart{{Service: "leasesvc", Shards: []int32{3, 7}, Code: code.Code_UNAVAILABLE, Message: "no leader"}}
}

func normalZones() *nodev1.ListZonesResponse {
	return &nodev1.ListZonesResponse{Zones: []*nodev1.Zone{{Name: "zones/eu:a", State: nodev1.Zone_STATE_NORMAL, NodeCount: 7}}}
}

func disruptedZones() *nodev1.ListZonesResponse {
	const paused = "the process was paused for 7s"
	return &nodev1.ListZonesResponse{
		Conditions: held("MarkingSuspended", paused),
		Zones: []*nodev1.Zone{
			{Name: "zones/eu:a", State: nodev1.Zone_STATE_PARTIAL_DISRUPTION, NodeCount: 7, NotReadyNodeCount: 4, WaitingNodeCount: 2, TaintsPerSecond: 0.01,
				Conditions: held("MarkingSuspended", "12 nodes became silent within 5s")},
			{Name: "zones/eu:b", State: nodev1.Zone_STATE_NORMAL, NodeCount: 3, Conditions: held("MarkingSuspended", paused)},
			{Name: "zones/none", State: nodev1.Zone_STATE_FULL_DISRUPTION, NodeCount: 1, NotReadyNodeCount: 1},
		},
	}
}

func TestNodes_Transcripts(t *testing.T) {
	everything := &commandtest.Gateway{Nodes: everyHealth(), Zones: disruptedZones(), PageSize: 3}
	hostile := node("node-1", nodev1.NodeHealth_HEALTH_READY, message("\x1b[2J\nowned"), func(n *nodev1.NodeHealth) { n.Zone = "zones/\u202eevil" })
	pipe, narrow, wide := commandtest.Terminal{}, commandtest.Terminal{Width: 100, Height: 24}, commandtest.Terminal{Width: 200, Height: 24}
	colourless := commandtest.Terminal{Width: 200, Height: 24, Env: map[string]string{"NO_COLOR": "1"}}
	disabled := rpcerror.New(codes.FailedPrecondition, "LOOP_DISABLED", "the loop node-health does not run on any replica")
	tests := []struct {
		name    string
		gateway *commandtest.Gateway
		where   commandtest.Terminal
		args    []string
		code    int
	}{
		{name: "every-health", gateway: everything, where: pipe, code: exit.Findings},
		{name: "wide", gateway: everything, where: narrow, args: []string{"-o", "wide", "--color=never"}, code: exit.Findings},
		{name: "names", gateway: everything, where: pipe, args: []string{"-o", "name"}, code: exit.Findings},
		{name: "terminal", gateway: everything, where: wide, code: exit.Findings},
		{name: "no-color", gateway: everything, where: colourless, code: exit.Findings},
		{name: "narrow", gateway: everything, where: narrow, args: []string{"--color=never"}, code: exit.Findings},
		{name: "no-headers", gateway: everything, where: pipe, args: []string{"--no-headers"}, code: exit.Findings},
		{name: "zone", gateway: everything, where: pipe, args: []string{"--zone=eu:a", "--health=unknown,suspect"}, code: exit.Findings},
		{name: "healthy", gateway: &commandtest.Gateway{Nodes: readyNodes(), Zones: normalZones()}, where: pipe, code: exit.OK},
		{name: "none", gateway: &commandtest.Gateway{Zones: normalZones()}, where: pipe, code: exit.OK},
		{name: "partial-healthy", gateway: &commandtest.Gateway{Nodes: readyNodes(), Zones: normalZones(), Missing: missing(), PageSize: 1}, where: pipe, code: exit.Undetermined},
		{name: "partial-unhealthy", gateway: &commandtest.Gateway{Nodes: everyHealth(), Missing: missing()}, where: pipe, code: exit.Findings},
		{name: "one", gateway: everything, where: pipe, args: []string{"node-1"}, code: exit.OK},
		{name: "one-unhealthy", gateway: everything, where: pipe, args: []string{"nodes/node-7.example.com"}, code: exit.Findings},
		{name: "not-found", gateway: everything, where: pipe, args: []string{"node-8"}, code: exit.Findings},
		{name: "loop-disabled", gateway: &commandtest.Gateway{Err: disabled}, where: pipe, code: exit.Undetermined},
		{name: "control-characters", gateway: &commandtest.Gateway{Nodes: []*nodev1.NodeHealth{hostile}, Zones: normalZones()}, where: pipe, code: exit.OK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			args := append([]string{"--server", commandtest.Serve(t, test.gateway)}, test.args...)
			got := commandtest.Run(t, test.where, nodes.NewCommand, args...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

func TestNodes_JSONIsTheGatewaysAnswer(t *testing.T) {
	one := &nodev1.NodeHealth{Name: "nodes/node-1", Health: nodev1.NodeHealth_HEALTH_READY}
	sources := []*metav1.Source{{Service: "leasesvc", ReplicaId: "node-1-x7k2p", Epoch: 18231, Shards: []int32{0, 1, 2}}}
	server := commandtest.Serve(t, &commandtest.Gateway{Nodes: []*nodev1.NodeHealth{one}, Sources: sources, Missing: missing()})
	commandtest.Golden(t, "list.json", commandtest.Run(t, commandtest.Terminal{}, nodes.NewCommand, "--server", server, "-o", "json").String())
	commandtest.Golden(t, "one.json", commandtest.Run(t, commandtest.Terminal{}, nodes.NewCommand, "--server", server, "-o", "json", "node-1").String())
}

func TestNodes_ReadsEveryPage(t *testing.T) {
	gateway := &commandtest.Gateway{Zones: normalZones(), PageSize: 400}
	for i := range 1000 {
		gateway.Nodes = append(gateway.Nodes, node(fmt.Sprintf("node-%04d", i), nodev1.NodeHealth_HEALTH_READY))
	}
	got := commandtest.Run(t, commandtest.Terminal{}, nodes.NewCommand, "--server", commandtest.Serve(t, gateway), "-o", "name", "--zone=eu:a", "--health=ready")
	if lines := strings.Count(got.Stdout, "\n"); got.Code != exit.OK || lines != 1000 {
		t.Errorf("exit code = %d, %d lines; want 0 and 1000\n%s", got.Code, lines, got.Stderr)
	}
	var want []*nodev1.ListNodeHealthRequest
	for _, token := range []string{"", "400", "800"} {
		want = append(want, &nodev1.ListNodeHealthRequest{
			Healths: []nodev1.NodeHealth_Health{nodev1.NodeHealth_HEALTH_READY}, Zones: []string{"zones/eu:a"}, PageSize: 5000, PageToken: token,
		})
	}
	if diff := cmp.Diff(want, commandtest.RequestsOf[*nodev1.ListNodeHealthRequest](gateway), protocmp.Transform()); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
}

func TestNodes_UsageErrorHasAllProblems(t *testing.T) {
	got := commandtest.Run(t, commandtest.Terminal{}, nodes.NewCommand,
		"--server=gateway", "-o", "xml", "--health=ready,fine", "--zone="+strings.Repeat("z", 257), "UPPER")
	commandtest.Golden(t, "usage.txt", got.String())
	if got.Code != exit.Usage {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Usage)
	}
}

func TestNodes_WrongCommandLines(t *testing.T) {
	for _, args := range [][]string{{"a", "b"}, {""}, {"../../etc"}, {"--sever=x"}, {"--timeout=soon"}, {strings.Repeat("n", 254)}, {"node-1", "--health=ready"}, {"--zone=a/b"}} {
		if got := commandtest.Run(t, commandtest.Terminal{}, nodes.NewCommand, args...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("%q: exit code = %d, stdout %q; want %d and nothing", args, got.Code, got.Stdout, exit.Usage)
		}
	}
}

func TestNodes_NoGateway(t *testing.T) {
	for _, args := range [][]string{{}, {"-w"}, {"node-1"}} {
		got := commandtest.Run(t, commandtest.Terminal{}, nodes.NewCommand, append(args, "--server", testkit.FreeAddress(t))...)
		if got.Code != exit.Undetermined || got.Stdout != "" || !strings.Contains(got.Stderr, "error[UNAVAILABLE]") {
			t.Errorf("%q: %+v, want exit code %d and the reason", args, got, exit.Undetermined)
		}
	}
}

func TestNodes_ErrorWithoutReasonIsUndetermined(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{Err: errors.New("broken")})
	if got := commandtest.Run(t, commandtest.Terminal{}, nodes.NewCommand, "--server", server); got.Code != exit.Undetermined {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Undetermined)
	}
}

// brokenWriter is an output that fails.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestNodes_OutputErrorEndsEveryFormat(t *testing.T) {
	for _, args := range [][]string{{}, {"-o", "json"}, {"-o", "name"}, {"node-1"}, {"-w"}, {"-w", "-o", "json"}, {"-w", "-o", "name"}} {
		server := commandtest.Serve(t, &commandtest.Gateway{
			Nodes: readyNodes(), Zones: normalZones(), NodeWatches: []watch{{Events: append(added(readyNodes()...), bookmark())}},
		})
		err := commandtest.Execute(t.Context(), commandtest.Pipe(brokenWriter{}, io.Discard), nodes.NewCommand, append(args, "--server", server)...)
		if code := exit.CodeOf(err); code != exit.Undetermined || !strings.Contains(err.Error(), "no space left on device") {
			t.Errorf("%q: exit code = %d (%v), want %d and the cause", args, code, err, exit.Undetermined)
		}
	}
}

func TestNodes_InterruptedPrintsNoError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{}, {"node-1"}, {"-w"}} {
		args = append(args, "--server", testkit.FreeAddress(t))
		err := commandtest.Execute(ctx, commandtest.Pipe(io.Discard, io.Discard), nodes.NewCommand, args...)
		if code := exit.CodeOf(err); code != exit.Interrupted || err.Error() != "" {
			t.Errorf("%q: exit code = %d (%v), want %d and no text", args, code, err, exit.Interrupted)
		}
	}
}

func TestNodes_Help(t *testing.T) {
	commandtest.Golden(t, "help.txt", commandtest.Run(t, commandtest.Terminal{}, nodes.NewCommand, "--help").String())
}

func TestNodes_CompletesNamesFlagsAndValues(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{Nodes: everyHealth(), PageSize: 2})
	tests := []struct {
		name string
		args []string
		want string
	}{
		{name: "names", args: []string{"node-7"}, want: "node-7.example.com\tunknown\n:4\n"},
		{name: "only one name", args: []string{"node-1", ""}, want: ":4\n"},
		{name: "health", args: []string{"--health", "s"}, want: "starting\nready\nnot-ready\nsuspect\nsilent\nunknown\n:4\n"},
		{name: "second health", args: []string{"--health", "silent,"}, want: "silent,starting\nsilent,ready\nsilent,not-ready\nsilent,suspect\nsilent,unknown\n:4\n"},
		{name: "no gateway", args: []string{"--server", testkit.FreeAddress(t), ""}, want: ":4\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			commandtest.Complete(t, nodes.NewCommand, test.want, append([]string{"--server", server}, test.args...)...)
		})
	}
}

func BenchmarkNodes_List10000(b *testing.B) {
	gateway := &commandtest.Gateway{Zones: normalZones()}
	for i := range 10_000 {
		gateway.Nodes = append(gateway.Nodes, node(fmt.Sprintf("node-%05d", i), nodev1.NodeHealth_HEALTH_READY))
	}
	server := commandtest.Serve(b, gateway)
	for b.Loop() {
		if got := commandtest.Run(b, commandtest.Terminal{}, nodes.NewCommand, "--server", server); got.Code != exit.OK {
			b.Fatalf("%+v", got)
		}
	}
}
