package repair_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/repair"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/test/lab/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	planned   = metav1.Change_OUTCOME_PLANNED
	applied   = metav1.Change_OUTCOME_APPLIED
	notNeeded = metav1.Change_OUTCOME_NOT_NEEDED
	failed    = metav1.Change_OUTCOME_FAILED

	running   = bootstrapv1.Repair_STATE_RUNNING
	succeeded = bootstrapv1.Repair_STATE_SUCCEEDED
	cancelled = bootstrapv1.Repair_STATE_CANCELLED
)

// steps returns three steps with the given outcomes; planned without.
func steps(outcomes ...metav1.Change_Outcome) []*bootstrapv1.RepairStep {
	step := func(finding string, verb metav1.Change_Verb, kind, name, message string) *bootstrapv1.RepairStep {
		return &bootstrapv1.RepairStep{
			Finding: "findings/" + finding, RepairMode: bootstrapv1.Finding_REPAIR_MODE_PLAN,
			Change: &metav1.Change{
				Verb: verb, Object: &metav1.ObjectReference{Kind: kind, Name: name}, Reason: "LEAKED", Message: message, BaseVersion: "4711", Outcome: planned,
			},
		}
	}
	all := []*bootstrapv1.RepairStep{
		step("not-allocated.ip-addresses.10.96.0.17", metav1.Change_VERB_CREATE, "IPAddress", "10.96.0.17", "for Service shop/web"),
		step("leaked.node-ports.30081", metav1.Change_VERB_UPDATE, "RangeAllocation", "servicenodeports", "clear 30081"),
		step("wrong-reference.ip-addresses.10.96.0.9", metav1.Change_VERB_DELETE, "IPAddress", "10.96.0.9", "its reference\x1b[2J is empty"),
	}
	all[0].RepairMode = bootstrapv1.Finding_REPAIR_MODE_AUTO
	all[2].Risk = "for a moment the address is free"
	for i, outcome := range outcomes {
		all[i].Change.Outcome = outcome
		if outcome == failed {
			all[i].Change.Error, all[i].AttemptCount = "resourceVersion is 4712 now", 3
		}
	}
	return all
}

func plan() *bootstrapv1.RepairPlan {
	return &bootstrapv1.RepairPlan{
		Name: "repairplans/p1", Etag: "6f1c", Steps: steps(), ExpireTime: timestamppb.New(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)),
		SkippedFindings: []*bootstrapv1.Finding{
			{Name: "findings/duplicate-owner.node-ports.30080", RepairModeMessage: "one of the two Services must be recreated"},
			{Name: "findings/unreadable.node-ports", Message: "the value is truncated"},
		},
		SkippedFindingCount: 2, Requester: &metav1.Caller{User: "ada"}, CreateTime: commandtest.Ago(time.Hour),
	}
}

// repairIn returns a repair of the plan in a state.
func repairIn(state bootstrapv1.Repair_State, outcomes ...metav1.Change_Outcome) *bootstrapv1.Repair {
	return &bootstrapv1.Repair{
		Name: "repairs/a1", Plan: "repairplans/p1", State: state, Steps: steps(outcomes...), Requester: &metav1.Caller{User: "ada"},
		AttemptCount: 1, StartTime: commandtest.Ago(time.Hour),
	}
}

// allWithoutNames adds --all to arguments without the name of a finding.
func allWithoutNames(args []string) []string {
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return args
	}
	return append([]string{"--all"}, args...)
}

func TestPlan_Transcripts(t *testing.T) {
	onlySkipped := &bootstrapv1.RepairPlan{SkippedFindings: plan().SkippedFindings, SkippedFindingCount: 19_502}
	tests := []struct {
		name  string
		plan  *bootstrapv1.RepairPlan
		err   error
		args  []string
		where commandtest.Terminal
		code  int
	}{
		{name: "plan", plan: plan(), code: exit.Findings},
		{name: "plan-terminal", plan: plan(), where: commandtest.Terminal{Width: 120, Height: 24}, code: exit.Findings},
		{name: "plan-name", plan: plan(), args: []string{"-o", "name"}, code: exit.Findings},
		{name: "plan-dry-run", plan: plan(), args: []string{"--dry-run"}, code: exit.Findings},
		{name: "plan-json", plan: &bootstrapv1.RepairPlan{Name: "repairplans/p1", Etag: "6f1c", Steps: steps()[:1]}, args: []string{"-o", "json"}, code: exit.Findings},
		{name: "plan-nothing", plan: &bootstrapv1.RepairPlan{Name: "repairplans/p1"}, code: exit.OK},
		{name: "plan-nothing-name", plan: &bootstrapv1.RepairPlan{Name: "repairplans/p1"}, args: []string{"-o", "name"}, code: exit.OK},
		{name: "plan-only-skipped", plan: onlySkipped, code: exit.OK},
		{name: "plan-not-found", err: rpcerror.New(codes.NotFound, "FINDING_NOT_FOUND", "findings/a is not open"), args: []string{"a"}, code: exit.Undetermined},
		{name: "plan-usage", args: []string{"A", "b/c", "-o", "xml"}, code: exit.Usage},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address := commandtest.Serve(t, &commandtest.Gateway{Plan: test.plan, Err: test.err})
			got := commandtest.Run(t, test.where, repair.NewCommand, append([]string{"plan", "--server", address}, allWithoutNames(test.args)...)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

func TestPlan_RequestHasTheNames(t *testing.T) {
	gateway := &commandtest.Gateway{Plan: &bootstrapv1.RepairPlan{}}
	address := commandtest.Serve(t, gateway)
	commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, "plan", "--server", address, "findings/a", "b")
	commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, "plan", "--server", address, "--dry-run", "--all")
	want := []*bootstrapv1.CreateRepairPlanRequest{{Findings: []string{"findings/a", "findings/b"}}, {ValidateOnly: true}}
	got := commandtest.RequestsOf[*bootstrapv1.CreateRepairPlanRequest](gateway)
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&bootstrapv1.CreateRepairPlanRequest{}, "request_id")); diff != "" {
		t.Fatalf("requests (-want +got):\n%s", diff)
	}
	for _, request := range got {
		if uuid.Validate(request.GetRequestId()) != nil {
			t.Errorf("request ID %q is no UUID", request.GetRequestId())
		}
	}
}

// The command without a subcommand plans, shows the plan, asks, applies it with its etag, and
// follows the repair to its end.
func TestRepair_Transcripts(t *testing.T) {
	event := func(kind metav1.EventType, repair *bootstrapv1.Repair) *bootstrapv1.WatchRepairsResponse {
		return &bootstrapv1.WatchRepairsResponse{Type: kind, Repair: repair}
	}
	const added, modified = metav1.EventType_EVENT_TYPE_ADDED, metav1.EventType_EVENT_TYPE_MODIFIED
	bookmark := &bootstrapv1.WatchRepairsResponse{Type: metav1.EventType_EVENT_TYPE_BOOKMARK, ResumeToken: "t1", Bookmark: &metav1.Bookmark{InitialEventsEnd: true}}
	other := &bootstrapv1.Repair{Name: "repairs/b2", State: succeeded}
	watches := []commandtest.Watch[bootstrapv1.WatchRepairsResponse]{
		{Events: []*bootstrapv1.WatchRepairsResponse{event(added, repairIn(running, applied)), event(added, other), bookmark, event(modified, repairIn(running, applied, notNeeded))}, Err: rpcerror.ShuttingDown()},
		{Events: []*bootstrapv1.WatchRepairsResponse{event(modified, repairIn(succeeded, applied, notNeeded, applied))}},
	}
	forgotten := []commandtest.Watch[bootstrapv1.WatchRepairsResponse]{
		{Events: []*bootstrapv1.WatchRepairsResponse{event(metav1.EventType_EVENT_TYPE_DELETED, repairIn(running))}},
	}
	quiet := []commandtest.Watch[bootstrapv1.WatchRepairsResponse]{{Events: []*bootstrapv1.WatchRepairsResponse{bookmark}}}
	tests := []struct {
		name    string
		gateway *commandtest.Gateway
		args    []string
		typed   string
		code    int
		applies bool
	}{
		{name: "repair", gateway: &commandtest.Gateway{Plan: plan(), Applied: repairIn(succeeded, applied, notNeeded, applied)}, typed: "yes\n", code: exit.OK, applies: true},
		{name: "repair-yes", gateway: &commandtest.Gateway{Plan: plan(), Applied: repairIn(succeeded, applied, notNeeded, applied)}, args: []string{"--yes"}, code: exit.OK, applies: true},
		{name: "repair-json", gateway: &commandtest.Gateway{Plan: plan(), Applied: &bootstrapv1.Repair{Name: "repairs/a1", State: succeeded}}, args: []string{"-y", "-o", "json"}, code: exit.OK, applies: true},
		{name: "repair-followed", gateway: &commandtest.Gateway{Plan: plan(), Applied: repairIn(running), RepairWatches: watches}, args: []string{"-y"}, code: exit.OK, applies: true},
		{name: "repair-forgotten", gateway: &commandtest.Gateway{Plan: plan(), Applied: repairIn(running), RepairWatches: forgotten}, args: []string{"-y"}, code: exit.Undetermined, applies: true},
		{name: "repair-not-ended", gateway: &commandtest.Gateway{Plan: plan(), Applied: repairIn(running, applied), RepairWatches: quiet}, args: []string{"-y", "--wait-duration=300ms"}, code: exit.Undetermined, applies: true},
		{name: "repair-failed", gateway: &commandtest.Gateway{Plan: plan(), Applied: repairIn(bootstrapv1.Repair_STATE_FAILED, applied, failed, planned)}, args: []string{"-y"}, code: exit.Findings, applies: true},
		{name: "repair-drifted", gateway: &commandtest.Gateway{Plan: plan(), ApplyErrs: []error{rpcerror.New(codes.Aborted, "PLAN_DRIFTED", "step 2: port 30081 is used by shop/api now")}}, args: []string{"-y"}, code: exit.Undetermined, applies: true},
		{name: "repair-declined", gateway: &commandtest.Gateway{Plan: plan()}, typed: "no\n", code: exit.Interrupted},
		{name: "repair-dry-run", gateway: &commandtest.Gateway{Plan: plan()}, args: []string{"--dry-run"}, code: exit.Findings},
		{name: "repair-nothing", gateway: &commandtest.Gateway{Plan: &bootstrapv1.RepairPlan{Name: "repairplans/p1"}}, args: []string{"-y"}, code: exit.OK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address := commandtest.Serve(t, test.gateway)
			got := commandtest.Run(t, commandtest.Terminal{Typed: test.typed}, repair.NewCommand, append(allWithoutNames(test.args), "--server", address)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
			requests := commandtest.RequestsOf[*bootstrapv1.ApplyRepairPlanRequest](test.gateway)
			if !test.applies {
				if len(requests) != 0 {
					t.Errorf("applied: %v", requests)
				}
				return
			}
			if len(requests) != 1 || requests[0].GetName() != "repairplans/p1" || requests[0].GetEtag() != "6f1c" || requests[0].GetValidateOnly() {
				t.Errorf("requests %v, want one for repairplans/p1 with the etag 6f1c", requests)
			}
		})
	}
}

// A call whose connection is lost is repeated with the same request ID, so that it is applied once.
func TestApply_RepeatsALostCallWithItsRequestID(t *testing.T) {
	gateway := &commandtest.Gateway{
		Plans: []*bootstrapv1.RepairPlan{plan()}, Applied: repairIn(succeeded, applied, applied, applied),
		ApplyErrs: []error{status.Error(codes.Unavailable, "transport is closing")},
	}
	got := commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, "apply", "p1", "-y", "--server", commandtest.Serve(t, gateway))
	requests := commandtest.RequestsOf[*bootstrapv1.ApplyRepairPlanRequest](gateway)
	if got.Code != exit.OK || len(requests) != 2 || requests[0].GetRequestId() == "" || !proto.Equal(requests[0], requests[1]) {
		t.Errorf("requests %v, want the same one twice\n%s", requests, got)
	}
	refused := &commandtest.Gateway{
		Plans: []*bootstrapv1.RepairPlan{plan()}, ApplyErrs: []error{rpcerror.New(codes.Unavailable, "NO_LEADER", "no leader"), nil},
	}
	got = commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, "apply", "p1", "-y", "--server", commandtest.Serve(t, refused))
	if requests := commandtest.RequestsOf[*bootstrapv1.ApplyRepairPlanRequest](refused); got.Code != exit.Undetermined || len(requests) != 1 {
		t.Errorf("requests %v, want one, because a server refused it\n%s", requests, got)
	}
}

// A call that takes too long has begun the repair, which the command finds by its plan.
func TestApply_FollowsARepairAfterATimeout(t *testing.T) {
	begun := plan()
	begun.Repair = "repairs/a1"
	gateway := &commandtest.Gateway{
		Plans: []*bootstrapv1.RepairPlan{begun}, Repairs: []*bootstrapv1.Repair{repairIn(succeeded, applied, applied, applied)},
		ApplyErrs: []error{status.Error(codes.DeadlineExceeded, "too late")},
	}
	got := commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, "apply", "p1", "-y", "--server", commandtest.Serve(t, gateway))
	if got.Code != exit.OK || !strings.Contains(got.Stderr, "repairs/a1: succeeded: 3 steps: 3 applied") {
		t.Errorf("%s, want exit code 0 and the result", got)
	}
}

func TestApplyAndShow_Transcripts(t *testing.T) {
	ended := repairIn(cancelled, applied)
	ended.Canceller = &metav1.Caller{User: "grace"}
	applying := plan()
	applying.Name, applying.Repair = "repairplans/p2", "repairs/a1"
	gateway := &commandtest.Gateway{
		Plans: []*bootstrapv1.RepairPlan{plan(), applying}, Applied: repairIn(succeeded, applied, applied, applied),
		Repairs: []*bootstrapv1.Repair{repairIn(running, applied), {Name: "repairs/auto", State: succeeded, Steps: steps(applied)[:1], Requester: &metav1.Caller{User: "trivet:auto"}, StartTime: commandtest.Ago(2 * time.Hour), EndTime: commandtest.Ago(time.Hour)}, {Name: "repairs/c3", State: cancelled, Steps: ended.Steps, Canceller: ended.Canceller}},
	}
	tests := []struct {
		name  string
		args  []string
		typed string
		code  int
	}{
		{name: "apply", args: []string{"apply", "repairplans/p1"}, typed: "y\n", code: exit.OK},
		{name: "apply-dry-run", args: []string{"apply", "p1", "--dry-run"}, code: exit.OK},
		{name: "apply-not-found", args: []string{"apply", "p9", "-y"}, code: exit.Findings},
		{name: "show-running", args: []string{"show", "a1"}, code: exit.Undetermined},
		{name: "show-succeeded", args: []string{"show", "repairs/auto"}, code: exit.OK},
		{name: "show-cancelled", args: []string{"show", "c3"}, code: exit.Findings},
		{name: "show-plan", args: []string{"show", "repairplans/p1"}, code: exit.Findings},
		{name: "show-applied-plan", args: []string{"show", "repairplans/p2"}, code: exit.Findings},
		{name: "show-not-found", args: []string{"show", "a9"}, code: exit.Findings},
		{name: "list", args: []string{"list"}, code: exit.OK},
		{name: "list-wide", args: []string{"list", "--state=running,cancelled", "-o", "wide"}, code: exit.OK},
		{name: "cancel", args: []string{"cancel", "a1"}, code: exit.OK},
		{name: "cancel-dry-run", args: []string{"cancel", "a1", "--dry-run"}, code: exit.OK},
		{name: "cancel-ended", args: []string{"cancel", "repairs/auto"}, code: exit.Undetermined},
		{name: "help", args: []string{"--help"}, code: exit.OK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address := commandtest.Serve(t, gateway)
			got := commandtest.Run(t, commandtest.Terminal{Typed: test.typed}, repair.NewCommand, append(test.args, "--server", address)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
	requests := commandtest.RequestsOf[*bootstrapv1.CancelRepairRequest](gateway)
	if len(requests) != 3 || requests[0].GetName() != "repairs/a1" || requests[0].GetValidateOnly() || !requests[1].GetValidateOnly() || uuid.Validate(requests[2].GetRequestId()) != nil {
		t.Errorf("requests to cancel: %v", requests)
	}
}

func TestRepairPlans_Transcripts(t *testing.T) {
	stored, applying := plan(), plan()
	applying.Name, applying.Repair = "repairplans/p2", "repairs/a1"
	stored.ExpireTime, applying.ExpireTime = commandtest.Ahead(time.Hour), commandtest.Ahead(time.Hour)
	address := commandtest.Serve(t, &commandtest.Gateway{Plans: []*bootstrapv1.RepairPlan{stored, applying}, PageSize: 1})
	commandtest.Golden(t, "plans.txt", commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, "plans", "--server", address).String())
	commandtest.Golden(t, "plans-names.txt", commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, "plans", "-o", "name", "--server", address).String())
}

func TestRepairList_WatchShowsChanges(t *testing.T) {
	const added, modified = metav1.EventType_EVENT_TYPE_ADDED, metav1.EventType_EVENT_TYPE_MODIFIED
	first, again, last := repairIn(running, applied), repairIn(running, applied), repairIn(succeeded, applied, applied, applied)
	again.StartTime, last.StartTime = first.StartTime, first.StartTime
	again.AttemptCount = 2
	gateway := &commandtest.Gateway{RepairWatches: []commandtest.Watch[bootstrapv1.WatchRepairsResponse]{{Events: []*bootstrapv1.WatchRepairsResponse{
		{Type: added, Repair: first}, {Type: metav1.EventType_EVENT_TYPE_BOOKMARK, Bookmark: &metav1.Bookmark{InitialEventsEnd: true}},
		{Type: modified, Repair: again}, {Type: modified, Repair: last},
	}}}}
	got := commandtest.Run(t, commandtest.Terminal{Until: []string{"succeeded"}}, repair.NewCommand, "list", "-w", "--server", commandtest.Serve(t, gateway))
	commandtest.Golden(t, "list-watch.txt", got.String())
	if got.Code != exit.Interrupted {
		t.Errorf("exit code = %d, want %d", got.Code, exit.Interrupted)
	}
}

// Only y and yes are accepted. Without a terminal, --yes is required.
func TestRepair_WithoutYesNothingIsWritten(t *testing.T) {
	gateway := &commandtest.Gateway{Plan: plan(), Plans: []*bootstrapv1.RepairPlan{plan()}, Applied: repairIn(succeeded)}
	address := commandtest.Serve(t, gateway)
	for _, args := range [][]string{{"--all"}, {"apply", "p1"}} {
		args = append(args, "--server", address)
		for _, typed := range []string{"\n", "n\n", "yess\n", "yes please\n", " \x04"} {
			if got := commandtest.Run(t, commandtest.Terminal{Typed: typed}, repair.NewCommand, args...); got.Code != exit.Interrupted {
				t.Errorf("%q after %q: exit code = %d, want %d", args, typed, got.Code, exit.Interrupted)
			}
		}
		if got := commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, args...); got.Code != exit.Usage || !strings.Contains(got.Stderr, "--yes") {
			t.Errorf("%q without a terminal: %s, want exit code %d and --yes named", args, got, exit.Usage)
		}
	}
	if requests := commandtest.RequestsOf[*bootstrapv1.ApplyRepairPlanRequest](gateway); len(requests) != 0 {
		t.Errorf("applied %v", requests)
	}
	for _, typed := range []string{"y\n", "Yes\n", "y"} {
		if got := commandtest.Run(t, commandtest.Terminal{Typed: typed}, repair.NewCommand, "apply", "p1", "--server", address); got.Code != exit.OK {
			t.Errorf("after %q: %s, want exit code 0", typed, got)
		}
	}
}

func TestRepair_CompletesNames(t *testing.T) {
	server := commandtest.Serve(t, &commandtest.Gateway{
		Plans: []*bootstrapv1.RepairPlan{plan()}, Repairs: []*bootstrapv1.Repair{repairIn(running)},
		Findings: []*bootstrapv1.Finding{{Name: "findings/leaked.node-ports.30081", State: bootstrapv1.Finding_STATE_OPEN}},
	})
	for command, want := range map[string]string{
		"plan": "leaked.node-ports.30081\topen\n:4\n", "apply": "p1\tstored\n:4\n", "show": "a1\trunning\n:4\n", "cancel": "a1\trunning\n:4\n", "list": ":4\n", "plans": ":4\n",
	} {
		commandtest.Complete(t, repair.NewCommand, want, command, "--server", server, "")
	}
}

func TestRepair_WrongCommandLines(t *testing.T) {
	for _, args := range [][]string{
		{}, {"-y"}, {"--dry-run"}, {"plan"}, {"plan", "-o", "name"}, {"--all"}, {"--all", "-y", "a"}, {"plan", "--all", "a"},
		{"UNDO", "-y"}, {"--all", "-y", "--wait-duration=0s"}, {"--all", "-y", "-o", "name"}, {"apply", "-y"}, {"apply", "a", "b", "-y"}, {"apply", "", "-y"}, {"apply", "a b", "-y"},
		{"apply", "ü", "-y"}, {"apply", strings.Repeat("a", 250), "-y"}, {"apply", "a"}, {"plan", "--all", "--yes"}, {"show"}, {"show", "a", "b"}, {"show", "A"}, {"show", "repairplans/"},
		{"cancel"}, {"cancel", "repairplans/p1"}, {"list", "a"}, {"list", "--state=dead"}, {"plans", "a"}, {"plans", "-w"},
		append([]string{"plan"}, strings.Fields(strings.Repeat("a ", 1001))...),
	} {
		if got := commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, args...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("%.60q: exit code = %d, stdout %q; want %d and nothing", args, got.Code, got.Stdout, exit.Usage)
		}
	}
}
