package explain_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/explain"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	good     = metav1.Evidence_RESULT_OK
	doubtful = metav1.Evidence_RESULT_WARNING
	bad      = metav1.Evidence_RESULT_FAILED
	unknown  = metav1.Evidence_RESULT_UNKNOWN
	absent   = metav1.Evidence_RESULT_NOT_APPLICABLE
)

var noon = time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC)

func link(code string, result metav1.Evidence_Result, message string, edits ...func(*metav1.Evidence)) *metav1.Evidence {
	l := &metav1.Evidence{
		Code: code, Result: result, Message: message, Source: "node", ReplicaId: "node-1-x7k2p", Version: "812",
		ObserveTime: timestamppb.New(noon.Add(-72 * time.Second)),
	}
	for _, edit := range edits {
		edit(l)
	}
	return l
}

func next(text string) func(*metav1.Evidence) {
	return func(l *metav1.Evidence) { l.Next = text }
}

func object(kind, namespace, name string) func(*metav1.Evidence) {
	return func(l *metav1.Evidence) {
		l.Object = &metav1.ObjectReference{Kind: kind, Namespace: namespace, Name: name}
	}
}

// none is the index of the first failed link of a chain without one.
const none = -1

func explanation(health nodev1.NodeHealth_Health, why string, firstFailed int32, links ...*metav1.Evidence) *nodev1.ExplainNodeHealthResponse {
	return &nodev1.ExplainNodeHealthResponse{
		Node: &nodev1.NodeHealth{Name: "nodes/node-7", Health: health, Message: why}, Evidence: links, BrokenIndex: index(firstFailed), Sources: sources("leasesvc", "Node"),
	}
}

func index(firstFailed int32) *int32 {
	if firstFailed == none {
		return nil
	}
	return &firstFailed
}

func sources(service, kind string) []*metav1.Source {
	return []*metav1.Source{{
		Service: service, ReplicaId: "node-1-x7k2p", Epoch: 18231, Shards: []int32{3}, ReadTime: timestamppb.New(noon),
		Caches: []*metav1.CacheStatus{
			{Kind: kind, ResourceVersion: "9001", Lag: durationpb.New(time.Second)},
			{Kind: "Pod", ResourceVersion: "8121", Lag: durationpb.New(7 * time.Minute)},
		},
	}}
}

func markedUnknown() *nodev1.ExplainNodeHealthResponse {
	response := explanation(nodev1.NodeHealth_HEALTH_UNKNOWN, "its lease expired and no other signal of life came", 1,
		link("LEASE", good, "registered by boot 7f3c at shard 3", func(l *metav1.Evidence) { l.Source, l.Version = "lease", "18231" }),
		link("LAST_BEAT", bad, "the last of 4,711 beats came 72s ago; one is due every 5s", next("check that the agent runs on the Node and reaches 10.0.0.7:7601")),
		link("EXPIRE_TIME", bad, "it passed 52s ago"),
		link("LEASE_OBJECT", good, "left as it was last written", object("Lease", "kube-node-lease", "node-7")),
		link("READY_CONDITION", bad, "Unknown since 52s", object("Node", "", "node-7")),
		link("NO_SCHEDULE_TAINT", bad, "unreachable"),
		link("ZONE", doubtful, "eu:a is partially disrupted, 3 of 5 nodes not ready"),
		link("NO_EXECUTE_TAINT", unknown, "shard 0 has no leader"),
		link("PODS", bad, "12 pods marked not ready"),
		link("EVICTION", absent, "the loop taint-eviction does not run here", func(l *metav1.Evidence) {
			l.Source, l.ReplicaId, l.Version, l.ObserveTime = "", "", "", nil
		}))
	response.Silence = durationpb.New(72 * time.Second)
	return response
}

func ready() *nodev1.ExplainNodeHealthResponse {
	return explanation(nodev1.NodeHealth_HEALTH_READY, "its lease is alive", none,
		link("LEASE", good, "registered by boot 7f3c"), link("LAST_BEAT", good, "it came 2s ago"), link("EVICTION", absent, "nothing is to be evicted"))
}

func TestExplainNode_Transcripts(t *testing.T) {
	suspect := explanation(nodev1.NodeHealth_HEALTH_SUSPECT, "two beats are missing", none, link("LEASE", good, "open"), link("LAST_BEAT", doubtful, "12s ago"))
	undetermined := explanation(nodev1.NodeHealth_HEALTH_READY, "its lease is alive", none, link("LEASE", good, "open"), link("ZONE", unknown, "shard 0 has no leader"))
	delayed := explanation(nodev1.NodeHealth_HEALTH_SILENT, "", 0, link("LAST_BEAT", bad, "72s ago"))
	delayed.Node.Conditions = []*metav1.Condition{{
		Type: "MarkingSuspended", Status: metav1.Condition_STATUS_TRUE, Reason: "SILENT_TOGETHER", Message: "many Nodes of eu:a became silent at the same time",
	}}
	unusual := explanation(nodev1.NodeHealth_HEALTH_NOT_READY, "\x1b[2Jred\nline", 99, link("NEW\tCODE", 17, "\u202efound"))
	unusual.Sources = nil
	pipe, narrow, small := commandtest.Terminal{}, commandtest.Terminal{Width: 72, Height: 24}, commandtest.Terminal{Width: 40, Height: 24}
	tests := []struct {
		name        string
		explanation *nodev1.ExplainNodeHealthResponse
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
			server := commandtest.Serve(t, &commandtest.Gateway{NodeExplanation: test.explanation})
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
	server := commandtest.Serve(t, &commandtest.Gateway{NodeExplanation: markedUnknown()})
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
		code int
		want string
	}{
		{
			name: "no such node", err: rpcerror.New(codes.NotFound, "NODE_NOT_FOUND", "there is no Node node-7"), code: exit.Findings,
			want: "error[NODE_NOT_FOUND]: no explanation of nodes/node-7 from the gateway at ADDRESS\ncause: there is no Node node-7\n" +
				"try: list the Nodes with `trivet nodes`\n",
		},
		{
			name: "no replica", err: rpcerror.New(codes.Unavailable, "REPLICAS_UNREACHABLE", "no replica of leasesvc is registered"), code: exit.Undetermined,
			want: "error[REPLICAS_UNREACHABLE]: no explanation of nodes/node-7 from the gateway at ADDRESS\ncause: no replica of leasesvc is registered\n" +
				"try: look at the logs of the replicas; without any, start one, or check its connection to etcd\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, &commandtest.Gateway{Err: test.err})
			got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, "node", "node-7", "--server", server)
			if stderr := commandtest.HideAddresses(got.Stderr); got.Code != test.code || got.Stdout != "" || stderr != test.want {
				t.Errorf("exit code %d, stdout %q, stderr\n%s; want %d, nothing and\n%s", got.Code, got.Stdout, stderr, test.code, test.want)
			}
		})
	}
}

func TestExplain_WrongCommandLines(t *testing.T) {
	for _, args := range [][]string{{}, {"endpoint", "p"}, {"node"}, {"node", "a", "b"}, {"node", "UPPER"}, {"node", "a", "-o", "wide"}, {"node", "--sever=x"}, {"--sever=x"}} {
		if got := commandtest.Run(t, commandtest.Terminal{}, explain.NewCommand, args...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("%q: exit code = %d, stdout %q; want %d and nothing", args, got.Code, got.Stdout, exit.Usage)
		}
	}
}

func TestExplainNode_TextIsSanitized(t *testing.T) {
	response := proto.CloneOf(ready())
	response.Node.Name, response.Node.Message = "nodes/\x1b[2J", "\x1b[2J"
	response.Node.Conditions = []*metav1.Condition{{Type: "EvictionSuspended", Status: metav1.Condition_STATUS_TRUE, Message: "\u202e"}}
	response.Sources[0].ReplicaId, response.Sources[0].Caches[0].ResourceVersion, response.Sources[0].Caches[0].Kind = "\x1b", "\r", "\x1b"
	for _, l := range response.Evidence {
		l.Code, l.Message, l.Next, l.Source, l.ReplicaId, l.Version = "\x1b", "\x1b\x1b", "\x1b", "\a", "\u202e", "\x9b"
		l.Object = &metav1.ObjectReference{Kind: "\x1b", Namespace: "\x1b", Name: "\x1b"}
	}
	server := commandtest.Serve(t, &commandtest.Gateway{NodeExplanation: response})
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
