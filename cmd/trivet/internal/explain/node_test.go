package explain_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/commandtest"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/explain"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	good     = statusv1.Evidence_VERDICT_GOOD
	doubtful = statusv1.Evidence_VERDICT_DOUBTFUL
	bad      = statusv1.Evidence_VERDICT_BROKEN
	unknown  = statusv1.Evidence_VERDICT_UNKNOWN
	absent   = statusv1.Evidence_VERDICT_ABSENT
)

var noon = time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)

func link(code string, verdict statusv1.Evidence_Verdict, finding string, edits ...func(*statusv1.Evidence)) *statusv1.Evidence {
	l := &statusv1.Evidence{
		Code: code, Verdict: verdict, Finding: finding, Source: "node", ReplicaId: "node-1-x7k2p", Version: "812",
		ObserveTime: timestamppb.New(noon.Add(-72 * time.Second)),
	}
	for _, edit := range edits {
		edit(l)
	}
	return l
}

func next(text string) func(*statusv1.Evidence) {
	return func(l *statusv1.Evidence) { l.Next = text }
}

func object(kind, namespace, name string) func(*statusv1.Evidence) {
	return func(l *statusv1.Evidence) {
		l.Object = &statusv1.ObjectReference{Kind: kind, Namespace: namespace, Name: name}
	}
}

func explanation(health leasev1.NodeHealth_Health, why string, firstBroken int32, links ...*statusv1.Evidence) *gatewayv1.ExplainNodeHealthResponse {
	return &gatewayv1.ExplainNodeHealthResponse{
		Node: &leasev1.NodeHealth{Name: "nodes/node-7", Health: health, Reason: why}, Evidence: links, FirstBroken: firstBroken,
		Freshness: &statusv1.Freshness{ReplicaId: "node-1-x7k2p", Epoch: 18231, ReadTime: timestamppb.New(noon), ResourceVersion: "9001"},
	}
}

func markedUnknown() *gatewayv1.ExplainNodeHealthResponse {
	response := explanation(leasev1.NodeHealth_HEALTH_UNKNOWN, "its session expired and no other sign of life came", 1,
		link("SESSION", good, "registered by boot 7f3c at shard 3", func(l *statusv1.Evidence) { l.Source, l.Version = "session", "18231" }),
		link("LAST_BEAT", bad, "the last of 4,711 beats came 72s ago; one is due every 5s", next("check that the agent runs on the Node and reaches 10.0.0.7:7601")),
		link("DEADLINE", bad, "it passed 52s ago"),
		link("LEASE_OBJECT", good, "left as it was last written", object("Lease", "kube-node-lease", "node-7")),
		link("READY_CONDITION", bad, "Unknown since 52s", object("Node", "", "node-7")),
		link("NO_SCHEDULE_TAINT", bad, "unreachable"),
		link("ZONE", doubtful, "eu:a is partially disrupted, 3 of 5 nodes not ready"),
		link("NO_EXECUTE_TAINT", unknown, "shard 0 has no holder"),
		link("PODS", bad, "12 pods marked not ready"),
		link("EVICTION", absent, "the loop taint-eviction does not run here", func(l *statusv1.Evidence) {
			l.Source, l.ReplicaId, l.Version, l.ObserveTime = "", "", "", nil
		}))
	response.Silence = durationpb.New(72 * time.Second)
	return response
}

func ready() *gatewayv1.ExplainNodeHealthResponse {
	return explanation(leasev1.NodeHealth_HEALTH_READY, "its session is alive", -1,
		link("SESSION", good, "registered by boot 7f3c"), link("LAST_BEAT", good, "it came 2s ago"), link("EVICTION", absent, "nothing is to be evicted"))
}

func TestExplainNode_Transcripts(t *testing.T) {
	suspect := explanation(leasev1.NodeHealth_HEALTH_SUSPECT, "two beats are missing", -1, link("SESSION", good, "open"), link("LAST_BEAT", doubtful, "12s ago"))
	undetermined := explanation(leasev1.NodeHealth_HEALTH_READY, "its session is alive", -1, link("SESSION", good, "open"), link("ZONE", unknown, "shard 0 has no holder"))
	delayed := explanation(leasev1.NodeHealth_HEALTH_SILENT, "", 0, link("LAST_BEAT", bad, "72s ago"))
	delayed.Node.HeldBy = "many Nodes of eu:a became silent at the same time"
	unusual := explanation(leasev1.NodeHealth_HEALTH_NOT_READY, "\x1b[2Jred\nline", 99, link("NEW\tCODE", 17, "\u202efound"))
	unusual.Freshness = nil
	pipe, narrow, small := commandtest.Terminal{}, commandtest.Terminal{Width: 72, Height: 24}, commandtest.Terminal{Width: 40, Height: 24}
	tests := []struct {
		name        string
		explanation *gatewayv1.ExplainNodeHealthResponse
		where       commandtest.Terminal
		args        []string
		code        int
	}{
		{name: "marked-unknown", explanation: markedUnknown(), where: pipe, args: []string{"node-7"}, code: exit.Findings},
		{name: "marked-unknown-colours", explanation: markedUnknown(), where: commandtest.Terminal{Width: 160, Height: 50}, args: []string{"node-7"}, code: exit.Findings},
		{name: "marked-unknown-narrow", explanation: markedUnknown(), where: narrow, args: []string{"node-7", "--color=never"}, code: exit.Findings},
		{name: "marked-unknown-small", explanation: markedUnknown(), where: small, args: []string{"node-7", "--color=never"}, code: exit.Findings},
		{name: "marked-unknown-json", explanation: markedUnknown(), where: narrow, args: []string{"node-7", "-o", "json"}, code: exit.Findings},
		{name: "ready", explanation: ready(), where: pipe, args: []string{"nodes/node-7"}, code: exit.OK},
		{name: "suspect", explanation: suspect, where: pipe, args: []string{"node-7"}, code: exit.OK},
		{name: "undetermined", explanation: undetermined, where: pipe, args: []string{"node-7"}, code: exit.Undetermined},
		{name: "delayed", explanation: delayed, where: pipe, args: []string{"node-7"}, code: exit.Findings},
		{name: "unusual", explanation: unusual, where: pipe, args: []string{"node-7"}, code: exit.Findings},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, &commandtest.Gateway{Explanation: test.explanation})
			got := commandtest.Run(t, test.where, explain.NewCommand, append([]string{"node", "--server", server}, test.args...)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			if test.name == "unusual" {
				return // its ages are relative to now; the next tests check its text
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

func TestExplainNode_NoColorChangesOnlyColours(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{Explanation: markedUnknown()})
	want := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, "node", "node-7", "--server", server)
	where := commandtest.Terminal{Width: 200, Height: 50, Env: map[string]string{"NO_COLOR": "1"}}
	if got := commandtest.Run(t, where, explain.NewCommand, "node", "node-7", "--server", server); got.String() != want.String() {
		t.Errorf("with NO_COLOR:\n%s, in a pipe:\n%s", got, want)
	}
}

func TestExplainNode_WithoutAnAnswer(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want string
	}{
		{
			name: "no such node", err: rpcerror.New(codes.NotFound, "NODE_NOT_FOUND", "there is no Node node-7"),
			want: "error[NODE_NOT_FOUND]: no explanation of nodes/node-7 from the gateway at ADDRESS\ncause: there is no Node node-7\n" +
				"try: list the Nodes with `trivet nodes`\n",
		},
		{
			name: "no replica", err: rpcerror.New(codes.Unavailable, "NO_SOURCE", "no replica of leasesvc is registered"),
			want: "error[NO_SOURCE]: no explanation of nodes/node-7 from the gateway at ADDRESS\ncause: no replica of leasesvc is registered\n" +
				"try: look at the logs of the replicas; without any, start one, or check its connection to etcd\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, &commandtest.Gateway{Err: test.err, Explanation: &gatewayv1.ExplainNodeHealthResponse{}})
			got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, "node", "node-7", "--server", server)
			if stderr := commandtest.HideAddresses(got.Stderr); got.Code != exit.Undetermined || got.Stdout != "" || stderr != test.want {
				t.Errorf("exit code %d, stdout %q, stderr\n%s; want %d, nothing and\n%s", got.Code, got.Stdout, stderr, exit.Undetermined, test.want)
			}
		})
	}
}

func TestExplain_WrongCommandLines(t *testing.T) {
	for _, args := range [][]string{{}, {"pod", "p"}, {"node"}, {"node", "a", "b"}, {"node", "UPPER"}, {"node", "a", "-o", "wide"}, {"node", "--sever=x"}, {"--sever=x"}} {
		if got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, args...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("%q: exit code = %d, stdout %q; want %d and nothing", args, got.Code, got.Stdout, exit.Usage)
		}
	}
}

func TestExplainNode_TextIsSanitized(t *testing.T) {
	response := proto.CloneOf(ready())
	response.Node.Name, response.Node.Reason, response.Node.HeldBy = "nodes/\x1b[2J", "\x1b[2J", "\u202e"
	response.Freshness.ReplicaId, response.Freshness.ResourceVersion = "\x1b", "\r"
	for _, l := range response.Evidence {
		l.Code, l.Finding, l.Next, l.Source, l.ReplicaId, l.Version = "\x1b", "\x1b\x1b", "\x1b", "\a", "\u202e", "\x9b"
		l.Object = &statusv1.ObjectReference{Kind: "\x1b", Namespace: "\x1b", Name: "\x1b"}
	}
	server := commandtest.Serve(t, &commandtest.Gateway{Explanation: response})
	got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, "node", "node-7", "--server", server)
	for _, r := range got.String() {
		if r == '\x1b' || r == '\a' || r == '\r' || r == '\u202e' || r == '\u009b' {
			t.Fatalf("%q is in the output:\n%q", r, got.String())
		}
	}
}

func TestExplain_Help(t *testing.T) {
	commandtest.Golden(t, "help.txt", commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, "node", "--help").String())
}
