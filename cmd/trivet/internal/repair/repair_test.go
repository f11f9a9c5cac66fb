package repair_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/commandtest"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/repair"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func steps(states ...bootstrapv1.RepairStep_State) []*bootstrapv1.RepairStep {
	step := func(finding string, verb statusv1.Change_Verb, kind, name, detail string) *bootstrapv1.RepairStep {
		return &bootstrapv1.RepairStep{
			Finding: "findings/" + finding, Version: "4711",
			Change: &statusv1.Change{Verb: verb, Object: &statusv1.ObjectReference{Kind: kind, Name: name}, Reason: "LEAKED", Detail: detail},
		}
	}
	all := []*bootstrapv1.RepairStep{
		step("not-allocated.ip-addresses.10.96.0.17", statusv1.Change_VERB_CREATE, "IPAddress", "10.96.0.17", "for Service shop/web"),
		step("leaked.node-ports.30081", statusv1.Change_VERB_UPDATE, "RangeAllocation", "servicenodeports", "clear 30081"),
		step("wrong-reference.ip-addresses.10.96.0.9", statusv1.Change_VERB_DELETE, "IPAddress", "10.96.0.9", "its reference\x1b[2J is empty"),
	}
	all[0].Safe = true
	all[2].Risk = "for a moment the address is free"
	for i, state := range states {
		all[i].State = state
		if state == bootstrapv1.RepairStep_STATE_FAILED {
			all[i].Error = "resourceVersion is 4712 now"
		}
	}
	return all
}

func planned() *gatewayv1.PlanRepairResponse {
	return &gatewayv1.PlanRepairResponse{
		Steps: steps(), Token: "eyJ2IjoxfQ", ExpireTime: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		Left: []*bootstrapv1.Finding{
			{Name: "findings/duplicate-owner.node-ports.30080", UnsafeReason: "one of the two Services must be recreated"},
			{Name: "findings/unreadable.node-ports", Message: "the value is truncated"},
		},
	}
}

func TestPlan_Transcripts(t *testing.T) {
	tests := []struct {
		name  string
		plan  *gatewayv1.PlanRepairResponse
		err   error
		args  []string
		where commandtest.Terminal
		code  int
	}{
		{name: "plan", plan: planned(), code: exit.Findings},
		{name: "plan-terminal", plan: planned(), where: commandtest.Terminal{Width: 120, Height: 24}, code: exit.Findings},
		{name: "plan-token", plan: planned(), args: []string{"-o", "token"}, code: exit.Findings},
		{name: "plan-json", plan: &gatewayv1.PlanRepairResponse{Steps: steps()[:1], Token: "eyJ2IjoxfQ"}, args: []string{"-o", "json"}, code: exit.Findings},
		{name: "plan-nothing", plan: &gatewayv1.PlanRepairResponse{}, code: exit.OK},
		{name: "plan-only-skipped", plan: &gatewayv1.PlanRepairResponse{Left: planned().Left, LeftOmitted: 19_500}, code: exit.OK},
		{name: "plan-not-found", err: rpcerror.New(codes.NotFound, "FINDING_NOT_FOUND", "findings/a is not open"), args: []string{"a"}, code: exit.Undetermined},
		{name: "plan-usage", args: []string{"A", "b/c", "-o", "yaml"}, code: exit.Usage},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			address := commandtest.Serve(t, &commandtest.Gateway{Bootstrap: &commandtest.Bootstrap{Plan: test.plan, Err: test.err}})
			got := commandtest.Run(t, test.where, repair.NewCommand, append([]string{"plan", "--server", address}, test.args...)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
		})
	}
}

func TestPlan_RequestHasTheNames(t *testing.T) {
	gateway := &commandtest.Gateway{Bootstrap: &commandtest.Bootstrap{Plan: &gatewayv1.PlanRepairResponse{}}}
	address := commandtest.Serve(t, gateway)
	commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, "plan", "--server", address, "findings/a", "b")
	commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, "plan", "--server", address)
	if diff := cmp.Diff([][]string{{"findings/a", "findings/b"}, nil}, gateway.Bootstrap.Planned()); diff != "" {
		t.Errorf("planned (-want +got):\n%s", diff)
	}
}

func TestApply_Transcripts(t *testing.T) {
	done, unneeded := bootstrapv1.RepairStep_STATE_DONE, bootstrapv1.RepairStep_STATE_UNNEEDED
	failed, pending := bootstrapv1.RepairStep_STATE_FAILED, bootstrapv1.RepairStep_STATE_PENDING
	complete := &bootstrapv1.Repair{Name: "repairs/a1", Steps: steps(done, unneeded, done), Complete: true}
	tests := []struct {
		name   string
		repair *bootstrapv1.Repair
		err    error
		args   []string
		typed  string
		code   int
	}{
		{name: "apply", repair: complete, typed: "yes\n", code: exit.OK},
		{name: "apply-json", repair: &bootstrapv1.Repair{Name: "repairs/a1", Complete: true}, args: []string{"--yes", "-o", "json"}, code: exit.OK},
		{name: "apply-failed", repair: &bootstrapv1.Repair{Name: "repairs/a1", Steps: steps(done, failed, pending)}, args: []string{"-y"}, code: exit.Findings},
		{name: "apply-incomplete", repair: &bootstrapv1.Repair{Name: "repairs/a1", Steps: steps(done, pending, pending)}, args: []string{"-y"}, code: exit.Undetermined},
		{name: "apply-drifted", err: rpcerror.New(codes.FailedPrecondition, "REPAIR_DRIFTED", "step 2: port 30081 is used by shop/api now"), args: []string{"-y"}, code: exit.Undetermined},
		{name: "apply-declined", repair: complete, typed: "no\n", code: exit.Interrupted},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			gateway := &commandtest.Gateway{Bootstrap: &commandtest.Bootstrap{Repair: test.repair, Err: test.err}}
			address := commandtest.Serve(t, gateway)
			got := commandtest.Run(t, commandtest.Terminal{Typed: test.typed}, repair.NewCommand, append([]string{"apply", "eyJ2IjoxfQ", "--server", address}, test.args...)...)
			if got.Code != test.code {
				t.Errorf("exit code = %d, want %d", got.Code, test.code)
			}
			commandtest.Golden(t, test.name+".txt", got.String())
			var want []string
			if test.code != exit.Interrupted {
				want = []string{"eyJ2IjoxfQ"}
			}
			if diff := cmp.Diff(want, gateway.Bootstrap.Applied()); diff != "" {
				t.Errorf("applied (-want +got):\n%s", diff)
			}
		})
	}
}

// Only y and yes are accepted. Without a terminal, --yes is required.
func TestApply_WithoutYesNothingIsWritten(t *testing.T) {
	gateway := &commandtest.Gateway{Bootstrap: &commandtest.Bootstrap{Repair: &bootstrapv1.Repair{Complete: true}}}
	address := commandtest.Serve(t, gateway)
	for _, typed := range []string{"\n", "n\n", "yess\n", "yes please\n", " \x04"} {
		if got := commandtest.Run(t, commandtest.Terminal{Typed: typed}, repair.NewCommand, "apply", "t", "--server", address); got.Code != exit.Interrupted {
			t.Errorf("after %q: exit code = %d, want %d", typed, got.Code, exit.Interrupted)
		}
	}
	if got := commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, "apply", "t", "--server", address); got.Code != exit.Usage || !strings.Contains(got.Stderr, "--yes") {
		t.Errorf("without a terminal: %s, want exit code %d and --yes named", got, exit.Usage)
	}
	if applied := gateway.Bootstrap.Applied(); len(applied) != 0 {
		t.Errorf("applied %q", applied)
	}
	for _, typed := range []string{"y\n", "Yes\n", "y"} {
		if got := commandtest.Run(t, commandtest.Terminal{Typed: typed}, repair.NewCommand, "apply", "t", "--server", address); got.Code != exit.OK {
			t.Errorf("after %q: %s, want exit code 0", typed, got)
		}
	}
}

func TestRepair_WrongCommandLines(t *testing.T) {
	for _, args := range [][]string{
		{}, {"undo"}, {"apply", "-y"}, {"apply", "a", "b", "-y"}, {"apply", "", "-y"}, {"apply", "a b", "-y"}, {"apply", "ü", "-y"},
		{"apply", strings.Repeat("a", 65537), "-y"}, {"apply", "a", "-y", "-o", "token"}, {"plan", "--yes"},
		append([]string{"plan"}, strings.Fields(strings.Repeat("a ", 1001))...),
	} {
		if got := commandtest.Run(t, commandtest.Terminal{}, repair.NewCommand, args...); got.Code != exit.Usage || got.Stdout != "" {
			t.Errorf("%.60q: exit code = %d, stdout %q; want %d and nothing", args, got.Code, got.Stdout, exit.Usage)
		}
	}
}
