package slices_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/slices"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service returns a Service with the given number of endpoints in each slice.
func service(name string, edit func(*slicev1.ServiceSlices), endpoints ...int32) *slicev1.ServiceSlices {
	s := &slicev1.ServiceSlices{
		Name: "namespaces/shop/serviceslices/" + name, Uid: "uid-" + name,
		Owner: &metav1.Owner{ReplicaId: "node-1-x7k2p", Shard: proto.Int32(27), Epoch: 18231},
		Syncs: []*slicev1.ServiceSlices_Sync{{
			Source: slicev1.SliceSource_SLICE_SOURCE_SELECTOR, LastSuccessTime: commandtest.Ago(time.Hour),
			LastPlan: &slicev1.ServiceSlices_LastPlan{StartTime: commandtest.Ago(time.Hour), Trigger: "POD", Latency: durationpb.New(7 * time.Millisecond), UpdateCount: 1},
		}},
	}
	for i, count := range endpoints {
		s.Slices = append(s.Slices, &slicev1.SliceSummary{
			Name: fmt.Sprintf("%s-%d", name, i), AddressType: "IPv4", EndpointCount: count, ReadyEndpointCount: count, Capacity: 100,
			Source: slicev1.SliceSource_SLICE_SOURCE_SELECTOR,
		})
		s.EndpointCount += count
		s.ReadyEndpointCount += count
	}
	s.IdealSliceCount = max(1, (s.EndpointCount+99)/100)
	if edit != nil {
		edit(s)
	}
	return s
}

func condition(conditionType string, status metav1.Condition_Status, reason, message string) []*metav1.Condition {
	return []*metav1.Condition{{Type: conditionType, Status: status, Reason: reason, Message: message}}
}

func healthy() []*slicev1.ServiceSlices {
	return []*slicev1.ServiceSlices{
		service("api", func(s *slicev1.ServiceSlices) {
			s.Topology, s.Conditions = "Auto", condition("TopologyHints", metav1.Condition_STATUS_FALSE, "TOO_FEW_ENDPOINTS", "3 endpoints are too few for 4 zones")
		}, 100, 14),
		service("legacy", func(s *slicev1.ServiceSlices) {
			s.Conditions = condition("Managed", metav1.Condition_STATUS_FALSE, "NO_SELECTOR", "it has no selector")
			s.IdealSliceCount, s.Syncs = 0, nil
		}),
		service("web", nil, 57),
	}
}

func unhealthy() []*slicev1.ServiceSlices {
	return append(healthy(),
		service("x-fails", func(s *slicev1.ServiceSlices) {
			s.Syncs[0].FailureCount, s.Syncs[0].LastError = 3, "update slice: kube-apiserver does not\x1b[2J answer"
			s.Syncs[0].DroppedAddressCount = 12
		}, 5),
		service("y-contended", func(s *slicev1.ServiceSlices) {
			s.Conditions = condition("Contended", metav1.Condition_STATUS_TRUE, "ANOTHER_WRITER", "kube-controller-manager changes the same slices")
		}, 5),
	)
}

// mirrored are Services whose slices come from Endpoints objects.
func mirrored() []*slicev1.ServiceSlices {
	fromEndpoints := func(conditions []*metav1.Condition, dropped int32) func(*slicev1.ServiceSlices) {
		return func(s *slicev1.ServiceSlices) {
			s.Syncs[0].Source, s.Syncs[0].LastPlan.Trigger, s.Syncs[0].DroppedAddressCount = slicev1.SliceSource_SLICE_SOURCE_ENDPOINTS, "ENDPOINTS", dropped
			for _, slice := range s.Slices {
				slice.Source, slice.Capacity = slicev1.SliceSource_SLICE_SOURCE_ENDPOINTS, 1000
			}
			s.IdealSliceCount, s.Conditions = int32(len(s.Slices)), conditions
		}
	}
	const tooMany = "500 addresses of the Endpoints object are in no slice, because a subset may have 1000. With --mirroring-spill, further slices hold them."
	large := condition("AddressesDropped", metav1.Condition_STATUS_TRUE, "TOO_MANY_ADDRESSES", tooMany)
	return []*slicev1.ServiceSlices{
		service("database", fromEndpoints(condition("Managed", metav1.Condition_STATUS_TRUE, "MIRRORED", "it is mirrored"), 0), 3),
		service("kubelets", fromEndpoints(large, 500), 1000),
		service("kubelets-elsewhere", func(s *slicev1.ServiceSlices) { fromEndpoints(large, 0)(s); s.Syncs = nil }, 1000),
		service("migrated", func(s *slicev1.ServiceSlices) {
			s.Conditions = condition("SourcesOverlap", metav1.Condition_STATUS_TRUE, "SELECTOR_REMOVED",
				"The Service has lost its selector, and 1 slice is left of the Pods that it selected. Delete it, or start slicesvc with --cleanup-selectorless.")
			s.Slices[1].Source = slicev1.SliceSource_SLICE_SOURCE_ENDPOINTS
			s.Syncs = append(s.Syncs, &slicev1.ServiceSlices_Sync{
				Source: slicev1.SliceSource_SLICE_SOURCE_ENDPOINTS, LastSuccessTime: commandtest.Ago(time.Hour),
				LastPlan: &slicev1.ServiceSlices_LastPlan{StartTime: commandtest.Ago(time.Hour), Trigger: "ENDPOINTS", CreateCount: 1},
			})
		}, 4, 2),
	}
}

func missing() []*metav1.MissingPart {
	return []*metav1.MissingPart{{
		Service: "slicesvc", ReplicaId: "node-2-slow1", Shards: []int32{8, 9, 10, 31}, Code: code.Code_DEADLINE_EXCEEDED, Message: "no answer within 1s",
	}}
}

// withPlan returns the error of a sync that failed after its first write.
func withPlan(t *testing.T, plan *metav1.Plan) error {
	t.Helper()
	failed := status.Convert(rpcerror.New(codes.Aborted, "CONFLICT", "slice shop/web-0 changed between read and write"))
	failed, err := failed.WithDetails(plan)
	if err != nil {
		t.Fatal(err)
	}
	return failed.Err()
}

func TestSlices_Transcripts(t *testing.T) {
	pipe, narrow := commandtest.Terminal{}, commandtest.Terminal{Width: 110, Height: 24}
	all := &commandtest.Gateway{Services: unhealthy(), PageSize: 2}
	change := func(verb metav1.Change_Verb, name, reason, message string, outcome metav1.Change_Outcome) *metav1.Change {
		return &metav1.Change{Verb: verb, Object: &metav1.ObjectReference{Kind: "EndpointSlice", Namespace: "shop", Name: name}, Reason: reason, Message: message, Outcome: outcome}
	}
	plan := func(outcomes ...metav1.Change_Outcome) *metav1.Plan {
		changes := []*metav1.Change{
			change(metav1.Change_VERB_CREATE, "web-x7k2p", "NEW_ENDPOINTS", "3 IPv4 endpoints for ports http 8080/TCP", outcomes[0]),
			change(metav1.Change_VERB_UPDATE, "web-0", "ENDPOINTS_CHANGED", "+0 ~1 -2 endpoints", outcomes[1]),
			change(metav1.Change_VERB_DELETE, "web-1", "EMPTIED", "no endpoint is left", outcomes[2]),
		}
		changes[1].FieldChanges = []*metav1.FieldChange{{Path: "endpoints[1]", Before: `{"addresses":["10.0.0.9"]}`}, {Path: "ports[0].port", Before: "80", After: "8080"}}
		return &metav1.Plan{Changes: changes, Etag: "6f1c", Mode: metav1.Mode_MODE_ENFORCE}
	}
	const planned, applied, skipped = metav1.Change_OUTCOME_PLANNED, metav1.Change_OUTCOME_APPLIED, metav1.Change_OUTCOME_SKIPPED
	partial := plan(applied, metav1.Change_OUTCOME_FAILED, skipped)
	partial.Changes[1].Error = "conflict: the slice has changed"
	waiting := []*metav1.IncompleteReason{{Reason: "NODE_UNKNOWN", Message: `Node "node-z" does not exist, though pods of the Service are bound to it.`}}
	incomplete := plan(planned, planned, planned)
	incomplete.IncompleteReasons, incomplete.Mode = waiting, metav1.Mode_MODE_SHADOW
	absent := &commandtest.Gateway{Err: rpcerror.New(codes.NotFound, "SERVICE_NOT_FOUND", "no service \"namespaces/shop/serviceslices/none\"")}
	tests := []struct {
		name   string
		slices *commandtest.Gateway
		where  commandtest.Terminal
		args   []string
		code   int
	}{
		{name: "all", slices: all, where: pipe, code: exit.Findings},
		{name: "wide", slices: all, where: pipe, args: []string{"-o", "wide"}, code: exit.Findings},
		{name: "terminal", slices: all, where: narrow, code: exit.Findings},
		{name: "names", slices: all, where: pipe, args: []string{"-o", "name", "-n", "shop"}, code: exit.Findings},
		{name: "healthy", slices: &commandtest.Gateway{Services: healthy()}, where: pipe, code: exit.OK},
		{name: "mirrored", slices: &commandtest.Gateway{Services: mirrored()}, where: pipe, code: exit.OK},
		{name: "mirrored-wide", slices: &commandtest.Gateway{Services: mirrored()}, where: pipe, args: []string{"-o", "wide"}, code: exit.OK},
		{name: "none", slices: &commandtest.Gateway{}, where: pipe, code: exit.OK},
		{name: "missing", slices: &commandtest.Gateway{Services: healthy(), Missing: missing()}, where: pipe, code: exit.Undetermined},
		{name: "one", slices: all, where: pipe, args: []string{"web", "-n", "shop"}, code: exit.OK},
		{name: "one-json", slices: &commandtest.Gateway{Services: []*slicev1.ServiceSlices{{Name: "namespaces/shop/serviceslices/web"}}}, where: pipe, args: []string{"shop/web", "-o", "json"}, code: exit.OK},
		{name: "not-found", slices: absent, where: pipe, args: []string{"shop/none"}, code: exit.Findings},
		{name: "plan", slices: &commandtest.Gateway{SlicesPlan: incomplete}, where: pipe, args: []string{"plan", "shop/web"}, code: exit.Findings},
		{name: "plan-wide", slices: &commandtest.Gateway{SlicesPlan: plan(planned, planned, planned)}, where: narrow, args: []string{"plan", "shop/web", "-o", "wide", "--color=never"}, code: exit.Findings},
		{name: "plan-json", slices: &commandtest.Gateway{SlicesPlan: &metav1.Plan{Changes: plan(planned, planned, planned).Changes[:1]}}, where: pipe, args: []string{"plan", "shop/web", "-o", "json"}, code: exit.Findings},
		{name: "plan-nothing", slices: &commandtest.Gateway{SlicesPlan: &metav1.Plan{}}, where: pipe, args: []string{"plan", "web", "-n", "shop"}, code: exit.OK},
		{name: "plan-waiting", slices: &commandtest.Gateway{SlicesPlan: &metav1.Plan{IncompleteReasons: waiting}}, where: pipe, args: []string{"plan", "shop/web"}, code: exit.Undetermined},
		{name: "plan-not-found", slices: absent, where: pipe, args: []string{"plan", "shop/none"}, code: exit.Undetermined},
		{name: "reconcile", slices: &commandtest.Gateway{Reconciled: plan(applied, applied, metav1.Change_OUTCOME_NOT_NEEDED)}, where: pipe, args: []string{"reconcile", "shop/web"}, code: exit.OK},
		{name: "reconcile-dry-run", slices: &commandtest.Gateway{Reconciled: plan(planned, planned, planned)}, where: pipe, args: []string{"reconcile", "shop/web", "--dry-run"}, code: exit.OK},
		{name: "reconcile-partial", slices: &commandtest.Gateway{Reconciled: partial}, where: pipe, args: []string{"reconcile", "shop/web"}, code: exit.Undetermined},
		{name: "reconcile-failed", slices: &commandtest.Gateway{Err: withPlan(t, partial)}, where: pipe, args: []string{"reconcile", "shop/web"}, code: exit.Undetermined},
		{name: "usage", slices: all, where: pipe, args: []string{"-o", "xml", "-n", "Shop", "a/b/c"}, code: exit.Usage},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, test.slices)
			got := commandtest.Run(t, test.where, slices.NewCommand, append(test.args, "--server", server)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

type (
	watch  = commandtest.Watch[slicev1.WatchServiceSlicesResponse]
	events = []*slicev1.WatchServiceSlicesResponse
)

func event(kind metav1.EventType, s *slicev1.ServiceSlices) *slicev1.WatchServiceSlicesResponse {
	return &slicev1.WatchServiceSlicesResponse{Type: kind, ServiceSlices: s}
}

func bookmark() *slicev1.WatchServiceSlicesResponse {
	return &slicev1.WatchServiceSlicesResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{InitialEventsEnd: true}}
}

func TestSlices_WatchShowsWhatChanges(t *testing.T) {
	const added, modified, deleted = metav1.EventType_EVENT_TYPE_ADDED, metav1.EventType_EVENT_TYPE_MODIFIED, metav1.EventType_EVENT_TYPE_DELETED
	idle := func(s *slicev1.ServiceSlices) { s.Syncs[0].LastPlan.UpdateCount = 0 }
	again := service("web", func(s *slicev1.ServiceSlices) {
		s.Syncs[0].LastPlan.UpdateCount, s.Syncs[0].LastPlan.StartTime = 0, commandtest.Ago(0)
		s.Syncs[0].LastSuccessTime, s.Owner.Epoch = commandtest.Ago(0), 99999
	}, 57)
	server := commandtest.Serve(t, &commandtest.Gateway{SliceWatches: []watch{{Events: events{
		event(added, service("api", nil, 3)), event(added, service("web", idle, 57)), bookmark(),
		event(modified, again), event(modified, service("web", nil, 58)), event(deleted, service("api", nil, 3)),
	}}}})
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"deleted"}}, slices.NewCommand, "-w", "--server", server)
	commandtest.Golden(t, "watch.txt", got.String())
	if got.Code != exit.Interrupted {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Interrupted)
	}
}

// The watch of one Service asks for its namespace only, which matters in a large cluster.
func TestSlices_WatchOfOneServiceIsOfItsNamespace(t *testing.T) {
	for _, args := range [][]string{{"shop/web"}, {"web", "-n", "shop"}} {
		gateway := &commandtest.Gateway{SliceWatches: []watch{{Events: events{event(metav1.EventType_EVENT_TYPE_ADDED, service("web", nil, 57)), bookmark()}}}}
		server := commandtest.Serve(t, gateway)
		got := commandtest.Run(t, commandtest.Terminal{Until: []string{"shop/web"}}, slices.NewCommand, append(args, "-w", "--server", server)...)
		requests := commandtest.RequestsOf[*slicev1.WatchServiceSlicesRequest](gateway)
		if !strings.Contains(got.Stdout, "shop/web") || len(requests) != 1 || requests[0].GetParent() != "namespaces/shop" {
			t.Errorf("%q: %v: %s", args, requests, got.String())
		}
	}
}

// A retry of a lost call has the same request ID, another run of the command another one.
func TestSlicesReconcile_RequestHasAnIDAndTheEtag(t *testing.T) {
	gateway := &commandtest.Gateway{Reconciled: &metav1.Plan{}}
	server := commandtest.Serve(t, gateway)
	for range 2 {
		commandtest.Run(t, commandtest.Terminal{}, slices.NewCommand, "reconcile", "shop/web", "--etag=6f1c", "--dry-run", "--server", server)
	}
	requests := commandtest.RequestsOf[*slicev1.ReconcileServiceSlicesRequest](gateway)
	if len(requests) != 2 || requests[0].GetRequestId() == "" || requests[0].GetRequestId() == requests[1].GetRequestId() {
		t.Fatalf("requests %v, want two with different request IDs", requests)
	}
	if requests[0].GetEtag() != "6f1c" || !requests[0].GetValidateOnly() || requests[0].GetName() != "namespaces/shop/serviceslices/web" {
		t.Errorf("request %v", requests[0])
	}
}

func TestSlices_WrongCommandLines(t *testing.T) {
	for _, args := range [][]string{
		{"a", "b"}, {""}, {"web"}, {"../../etc"}, {"shop/"}, {"/web"}, {"shop/WEB"}, {"shop/web", "-n", "else"}, {"--sever=x"},
		{"plan"}, {"plan", "web"}, {"plan", "shop/a", "shop/b"}, {"plan", "shop/web", "-o", "name"}, {"reconcile"}, {"shop/" + strings.Repeat("n", 64)},
	} {
		if got := commandtest.Run(t, commandtest.Terminal{}, slices.NewCommand, args...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("%q: exit code = %d, stdout %q; want %d and nothing", args, got.Code, got.Stdout, exit.Usage)
		}
	}
}

func TestParseName_AcceptsTheNamesOfTheList(t *testing.T) {
	for _, test := range []struct{ text, within, want string }{
		{"shop/web", "", "namespaces/shop/serviceslices/web"}, {"web", "shop", "namespaces/shop/serviceslices/web"},
		{"namespaces/shop/serviceslices/web", "", "namespaces/shop/serviceslices/web"},
		{"serviceslices/web", "serviceslices", "namespaces/serviceslices/serviceslices/web"},
	} {
		if name, err := slices.ParseName(test.text, test.within); name != test.want || err != nil {
			t.Errorf("ParseName(%q) = %q, %v; want %q", test.text, name, err, test.want)
		}
	}
}
