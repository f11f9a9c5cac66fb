package slices_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"google.golang.org/grpc/codes"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/commandtest"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/slices"
	"github.com/trivet-dev/trivet/internal/rpcerror"

	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service returns a Service with the given number of endpoints in each slice.
func service(name string, edit func(*slicev1.ServiceSlices), endpoints ...int32) *slicev1.ServiceSlices {
	s := &slicev1.ServiceSlices{
		Name: "namespaces/shop/services/" + name, Uid: "uid-" + name, Managed: true, IdealSlices: 1, Shard: 27, Epoch: 18231,
		LastSyncTime: commandtest.Ago(time.Hour),
		LastPlan:     &slicev1.ServiceSlices_LastPlan{Time: commandtest.Ago(time.Hour), Trigger: "POD", Latency: durationpb.New(7 * time.Millisecond), Updates: 1},
	}
	for i, count := range endpoints {
		s.Slices = append(s.Slices, &slicev1.EndpointSlice{
			Name: fmt.Sprintf("%s-%d", name, i), AddressType: "IPv4", Endpoints: count, ReadyEndpoints: count, Capacity: 100,
		})
		s.Endpoints += count
		s.ReadyEndpoints += count
	}
	s.IdealSlices = max(1, (s.Endpoints+99)/100)
	if edit != nil {
		edit(s)
	}
	return s
}

func healthy() []*slicev1.ServiceSlices {
	return []*slicev1.ServiceSlices{
		service("api", func(s *slicev1.ServiceSlices) {
			s.Topology, s.TopologyProblem = "Auto", "3 endpoints are too few for 4 zones"
		}, 100, 14),
		service("legacy", func(s *slicev1.ServiceSlices) {
			s.Managed, s.UnmanagedReason, s.IdealSlices, s.LastPlan, s.LastSyncTime = false, "NO_SELECTOR", 0, nil, nil
		}),
		service("web", nil, 57),
	}
}

func unhealthy() []*slicev1.ServiceSlices {
	return append(healthy(),
		service("x-fails", func(s *slicev1.ServiceSlices) {
			s.Failures, s.LastError = 3, "update slice: kube-apiserver does not\x1b[2J answer"
		}, 5),
		service("y-contended", func(s *slicev1.ServiceSlices) { s.ContendedBy = "kube-controller-manager" }, 5),
	)
}

func missing() []*gatewayv1.SourceStatus {
	return []*gatewayv1.SourceStatus{{
		Replica: &statusv1.Replica{Service: "slicesvc", Id: "node-2-slow1"}, Code: "DEADLINE_EXCEEDED", Message: "no answer within 1s",
	}}
}

func TestSlices_Transcripts(t *testing.T) {
	pipe, narrow := commandtest.Terminal{}, commandtest.Terminal{Width: 110, Height: 24}
	all := &commandtest.Slices{Services: unhealthy(), PageSize: 2}
	change := func(verb statusv1.Change_Verb, name, reason, detail string) *statusv1.Change {
		return &statusv1.Change{Verb: verb, Object: &statusv1.ObjectReference{Kind: "EndpointSlice", Namespace: "shop", Name: name}, Reason: reason, Detail: detail}
	}
	changes := []*statusv1.Change{
		change(statusv1.Change_VERB_CREATE, "web-x7k2p", "NEW_ENDPOINTS", "3 IPv4 endpoints for ports http 8080/TCP"),
		change(statusv1.Change_VERB_UPDATE, "web-0", "ENDPOINTS_CHANGED", "+0 ~1 -2 endpoints"),
		change(statusv1.Change_VERB_DELETE, "web-1", "EMPTY", "no endpoint is left"),
	}
	waiting := []string{`Node "node-z" does not exist, though pods of the Service are bound to it.`}
	absent := &commandtest.Slices{Err: rpcerror.New(codes.NotFound, "SERVICE_NOT_FOUND", "no service \"namespaces/shop/services/none\"")}
	tests := []struct {
		name   string
		slices *commandtest.Slices
		where  commandtest.Terminal
		args   []string
		code   int
	}{
		{name: "all", slices: all, where: pipe, code: exit.Findings},
		{name: "wide", slices: all, where: pipe, args: []string{"-o", "wide"}, code: exit.Findings},
		{name: "terminal", slices: all, where: narrow, code: exit.Findings},
		{name: "names", slices: all, where: pipe, args: []string{"-o", "name", "-n", "shop"}, code: exit.Findings},
		{name: "healthy", slices: &commandtest.Slices{Services: healthy()}, where: pipe, code: exit.OK},
		{name: "none", slices: &commandtest.Slices{}, where: pipe, code: exit.OK},
		{name: "missing", slices: &commandtest.Slices{Services: healthy(), Missing: missing()}, where: pipe, code: exit.Undetermined},
		{name: "one", slices: all, where: pipe, args: []string{"web", "-n", "shop"}, code: exit.OK},
		{name: "one-json", slices: &commandtest.Slices{Services: []*slicev1.ServiceSlices{{Name: "namespaces/shop/services/web"}}}, where: pipe, args: []string{"shop/web", "-o", "json"}, code: exit.OK},
		{name: "not-found", slices: absent, where: pipe, args: []string{"shop/none"}, code: exit.Undetermined},
		{name: "plan", slices: &commandtest.Slices{Plan: &gatewayv1.PlanServiceResponse{Changes: changes, WaitingFor: waiting}}, where: pipe, args: []string{"plan", "shop/web"}, code: exit.Findings},
		{name: "plan-json", slices: &commandtest.Slices{Plan: &gatewayv1.PlanServiceResponse{Changes: changes[:1]}}, where: pipe, args: []string{"plan", "shop/web", "-o", "json"}, code: exit.Findings},
		{name: "plan-nothing", slices: &commandtest.Slices{Plan: &gatewayv1.PlanServiceResponse{}}, where: pipe, args: []string{"plan", "web", "-n", "shop"}, code: exit.OK},
		{name: "plan-waiting", slices: &commandtest.Slices{Plan: &gatewayv1.PlanServiceResponse{WaitingFor: waiting}}, where: pipe, args: []string{"plan", "shop/web"}, code: exit.Undetermined},
		{name: "plan-not-found", slices: absent, where: pipe, args: []string{"plan", "shop/none"}, code: exit.Undetermined},
		{name: "reconcile", slices: &commandtest.Slices{Reconciled: &gatewayv1.ReconcileServiceResponse{Changes: changes, Applied: true}}, where: pipe, args: []string{"reconcile", "shop/web"}, code: exit.OK},
		{name: "reconcile-dry-run", slices: &commandtest.Slices{Reconciled: &gatewayv1.ReconcileServiceResponse{Changes: changes}}, where: pipe, args: []string{"reconcile", "shop/web", "--dry-run"}, code: exit.OK},
		{name: "reconcile-partial", slices: &commandtest.Slices{Reconciled: &gatewayv1.ReconcileServiceResponse{Changes: changes}}, where: pipe, args: []string{"reconcile", "shop/web"}, code: exit.Undetermined},
		{name: "usage", slices: all, where: pipe, args: []string{"-o", "yaml", "-n", "Shop", "a/b/c"}, code: exit.Usage},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := commandtest.Serve(t, &commandtest.Gateway{Slices: test.slices})
			got := commandtest.Run(t, test.where, slices.NewCommand, append(test.args, "--server", server)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

func TestSlices_WatchShowsWhatChanges(t *testing.T) {
	event := func(kind slicev1.WatchServiceSlicesResponse_Type, s *slicev1.ServiceSlices) *gatewayv1.WatchServiceSlicesResponse {
		return &gatewayv1.WatchServiceSlicesResponse{Type: kind, ServiceSlices: s}
	}
	idle := service("web", func(s *slicev1.ServiceSlices) {
		s.LastPlan.Updates, s.LastPlan.Time, s.LastSyncTime, s.Epoch = 0, commandtest.Ago(0), commandtest.Ago(0), 99999
	}, 57)
	server := commandtest.Serve(t, &commandtest.Gateway{Slices: &commandtest.Slices{Watches: [][]*gatewayv1.WatchServiceSlicesResponse{{
		event(slicev1.WatchServiceSlicesResponse_TYPE_ADDED, service("api", nil, 3)),
		event(slicev1.WatchServiceSlicesResponse_TYPE_ADDED, service("web", func(s *slicev1.ServiceSlices) { s.LastPlan.Updates = 0 }, 57)),
		event(slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK, nil),
		event(slicev1.WatchServiceSlicesResponse_TYPE_MODIFIED, idle),
		event(slicev1.WatchServiceSlicesResponse_TYPE_MODIFIED, service("web", nil, 58)),
		event(slicev1.WatchServiceSlicesResponse_TYPE_DELETED, service("api", nil, 3)),
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
		server := commandtest.Serve(t, &commandtest.Gateway{Slices: &commandtest.Slices{
			WatchParent: "namespaces/shop",
			Watches: [][]*gatewayv1.WatchServiceSlicesResponse{{
				{Type: slicev1.WatchServiceSlicesResponse_TYPE_ADDED, ServiceSlices: service("web", nil, 57)},
				{Type: slicev1.WatchServiceSlicesResponse_TYPE_BOOKMARK},
			}},
		}})
		got := commandtest.Run(t, commandtest.Terminal{Until: []string{"shop/web"}}, slices.NewCommand, append(args, "-w", "--server", server)...)
		if !strings.Contains(got.Stdout, "shop/web") {
			t.Errorf("%q: %s", args, got.String())
		}
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
	for text, within := range map[string]string{
		"shop/web": "", "web": "shop", "namespaces/shop/services/web": "", "services/web": "services",
	} {
		name, err := slices.ParseName(text, within)
		if want := "namespaces/shop/services/web"; text == "services/web" {
			want = "namespaces/services/services/web"
			if name != want || err != nil {
				t.Errorf("ParseName(%q) = %q, %v; want %q", text, name, err, want)
			}
		} else if name != want || err != nil {
			t.Errorf("ParseName(%q) = %q, %v; want %q", text, name, err, want)
		}
	}
}
