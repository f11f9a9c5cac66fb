package events_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/events"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func decision(number int64, action statusv1.Decision_Action, message string, resources ...string) *statusv1.Decision {
	at := time.Date(2026, 11, 23, 3, 0, int(number), 123_000_000, time.UTC)
	return &statusv1.Decision{
		Name:       fmt.Sprintf("decisions/%s-leasesvc-a-x7k2p", at.Format("20060102T150405.000000000")),
		DecideTime: timestamppb.New(at), Service: "leasesvc", ReplicaId: "a-x7k2p", Action: action, Message: message, Resources: resources,
		Ring: statusv1.Decision_RING_OBJECTS, Number: number,
	}
}

func all() []*statusv1.Decision {
	marked := decision(2, statusv1.Decision_ACTION_NODE_MARKED_UNKNOWN, "no sign of life for 50s, the last was of its session", "nodes/node-1")
	marked.Shard, marked.Epoch, marked.ResourceVersion, marked.InputAge = proto.Int32(3), 42, "812", durationpb.New(50*time.Second)
	slices := decision(4, statusv1.Decision_ACTION_SLICES_WRITTEN, "EndpointSlices: 2 updated", "namespaces/shop/services/web")
	slices.Service, slices.ReplicaId = "slicesvc", "c-h3d9c"
	return []*statusv1.Decision{
		decision(1, statusv1.Decision_ACTION_TERM_TAKEN, "this replica leads the shard", "shards/leasesvc/3"),
		marked,
		decision(3, statusv1.Decision_ACTION_EVICTION_SCHEDULED, "hostile \x1b[2J text", "namespaces/shop/pods/web-1", "nodes/node-1"),
		slices,
		decision(5, statusv1.Decision_ACTION_MARKING_SUSPENDED, "the cache is behind"),
	}
}

func TestEvents_Transcripts(t *testing.T) {
	gateway := &commandtest.Gateway{Decisions: all(), PageSize: 2}
	missing := []*metav1.MissingPart{{Service: "slicesvc", ReplicaId: "d-slow1", Message: "no answer within 1s"}}
	tests := []struct {
		name    string
		gateway *commandtest.Gateway
		args    []string
		code    int
	}{
		{name: "all", gateway: gateway},
		{name: "wide", gateway: gateway, args: []string{"-o", "wide"}},
		{name: "of-a-node", gateway: gateway, args: []string{"--for=node/node-1"}},
		{name: "of-a-service", gateway: gateway, args: []string{"--for=svc/shop/web", "--service=slicesvc"}},
		{name: "types", gateway: gateway, args: []string{"--types=term-taken,MARKING_SUSPENDED", "--no-headers"}},
		{name: "names", gateway: gateway, args: []string{"--types=term-taken", "-o", "name"}},
		{name: "json", gateway: gateway, args: []string{"--types=node-marked-unknown", "-o", "json"}},
		{name: "none", gateway: &commandtest.Gateway{}},
		{name: "missing", gateway: &commandtest.Gateway{Decisions: all()[:1], Missing: missing}, code: exit.Undetermined},
		{name: "usage", gateway: gateway, args: []string{"--for=node", "--for=pod/web", "--types=x", "--service=gateway", "--since=-1s"}, code: exit.Usage},
		{name: "help", gateway: gateway, args: []string{"--help"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := commandtest.Run(t, commandtest.Terminal{}, events.NewCommand, append(test.args, "--server", commandtest.Serve(t, test.gateway))...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

func TestEvents_SinceIsAStartTime(t *testing.T) {
	gateway := &commandtest.Gateway{Decisions: all()}
	begun := time.Now()
	commandtest.Run(t, commandtest.Terminal{}, events.NewCommand, "--server", commandtest.Serve(t, gateway), "--since=10m")
	requests := commandtest.RequestsOf[*statusv1.ListDecisionsRequest](gateway)
	if len(requests) != 1 {
		t.Fatalf("%d requests, want one", len(requests))
	}
	if start := requests[0].GetStartTime().AsTime(); start.Before(begun.Add(-10*time.Minute)) || start.After(time.Now().Add(-10*time.Minute)) {
		t.Errorf("start time %v, want ten minutes ago", start)
	}
}

func event(kind metav1.EventType, of *statusv1.Decision) *statusv1.WatchDecisionsResponse {
	return &statusv1.WatchDecisionsResponse{Type: kind, Decision: of}
}

// A watch prints each decision once, tells how many it missed, and says nothing of those that are
// not kept any more.
func TestEvents_WatchPrintsEachDecisionOnce(t *testing.T) {
	const added, deleted = metav1.EventType_EVENT_TYPE_ADDED, metav1.EventType_EVENT_TYPE_DELETED
	synced := &statusv1.WatchDecisionsResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{InitialEventsEnd: true}}
	decisions := all()
	last := decision(9, statusv1.Decision_ACTION_NODE_BACK, "it reports ready again", "nodes/node-1")
	gateway := &commandtest.Gateway{DecisionWatches: []commandtest.Watch[statusv1.WatchDecisionsResponse]{{Events: []*statusv1.WatchDecisionsResponse{
		event(added, decisions[0]), event(added, decisions[1]), synced,
		event(added, decisions[2]), event(deleted, decisions[0]), event(added, decisions[4]), event(added, last),
	}}}}
	for name, terminal := range map[string]commandtest.Terminal{
		"watch":          {Until: []string{"it reports ready again", "3 decisions"}},
		"watch-terminal": {Until: []string{"it reports ready again", "3 decisions"}, Width: 200, Height: 10, Env: map[string]string{"NO_COLOR": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			watched := &commandtest.Gateway{DecisionWatches: gateway.DecisionWatches}
			got := commandtest.Run(t, terminal, events.NewCommand, "-w", "--server", commandtest.Serve(t, watched))
			commandtest.Golden(t, name+".txt", got.String())
		})
	}
}

func TestEvents_WatchAsksForTheFilter(t *testing.T) {
	synced := &statusv1.WatchDecisionsResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{InitialEventsEnd: true}}
	gateway := &commandtest.Gateway{DecisionWatches: []commandtest.Watch[statusv1.WatchDecisionsResponse]{{Events: []*statusv1.WatchDecisionsResponse{
		event(metav1.EventType_EVENT_TYPE_ADDED, all()[1]), synced,
	}}}}
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"0 decisions"}}, events.NewCommand,
		"-w", "--server", commandtest.Serve(t, gateway), "--for=node/node-1,lease/node-1", "--types=node-back", "--service=leasesvc", "--since=1s")
	if got.Stdout != "" {
		t.Errorf("a decision that is older than --since was printed: %s", got.Stdout)
	}
	want := []*statusv1.WatchDecisionsRequest{{
		Resources: []string{"nodes/node-1", "namespaces/kube-node-lease/leases/node-1"},
		Actions:   []statusv1.Decision_Action{statusv1.Decision_ACTION_NODE_BACK}, Services: []string{"leasesvc"},
	}}
	if diff := cmp.Diff(want, commandtest.RequestsOf[*statusv1.WatchDecisionsRequest](gateway), protocmp.Transform()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestParseObject(t *testing.T) {
	for text, want := range map[string]string{
		"node/a": "nodes/a", "nodes/a": "nodes/a", "po/shop/web": "namespaces/shop/pods/web", "namespaces/shop/pods/web": "namespaces/shop/pods/web",
		"endpoints/shop/web": "namespaces/shop/endpoints/web", "lease/a": "namespaces/kube-node-lease/leases/a",
		"shard/leasesvc/3": "shards/leasesvc/3", "apiserver/10.0.0.1": "apiservers/10.0.0.1", "ns/kube-system": "namespaces/kube-system",
		"pod/web": "", "node/": "", "node": "", "node/a/b": "", "x/a": "", "": "", "shard/3": "",
	} {
		got, err := events.ParseObject(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("ParseObject(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
}
