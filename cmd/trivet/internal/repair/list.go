package repair

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/list"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// pageSize is the API's limit.
const pageSize = 500

// NewListCommand returns `trivet repair list` under the given name.
func NewListCommand(streams printer.Streams, name string) *cobra.Command {
	var flags list.Flags
	var states []string
	return list.NewCommand(streams, list.Command[*bootstrapv1.Repair]{
		Flags: &flags,
		Use:   name,
		Short: "List the repairs that are remembered, the newest first",
		Long: `List the repairs that are remembered, the newest first: those of people, and those that bootstrapsvc made by
itself. STEPS has the steps that are applied or not needed, and all steps.`,
		Example: `  trivet repair list
  trivet repair list --state running,failed
  trivet repair list -w`,
		NotChanges: "Further attempts of a step are not changes.",
		RegisterFlags: func(command *cobra.Command) {
			command.Flags().StringSliceVar(&states, "state", nil, "Only repairs in these states: "+strings.Join(stateWords(), ", ")+".")
			client.CompleteListFlag(command, "state", stateWords()...)
		},
		Validate: func() []error { return []error{client.EachOf("--state", states, stateWords()...)} },
		Kind:     repairKind,
		Source: func(conn grpc.ClientConnInterface) list.Source[*bootstrapv1.Repair] {
			return repairs(conn, printer.EnumsOf[bootstrapv1.Repair_State](states, statePrefix, bootstrapv1.Repair_State_value))
		},
		Selects: func(repair *bootstrapv1.Repair) bool {
			return len(states) == 0 || slices.Contains(states, stateOf(repair))
		},
	})
}

// statePrefix begins the names of states in the API.
const statePrefix = "STATE_"

func stateOf(repair *bootstrapv1.Repair) string {
	return printer.EnumWord(repair.GetState(), statePrefix)
}

// stateWords returns the values of --state.
func stateWords() []string { return printer.EnumWords[bootstrapv1.Repair_State](statePrefix) }

func repairs(conn grpc.ClientConnInterface, states []bootstrapv1.Repair_State) list.Source[*bootstrapv1.Repair] {
	service := bootstrapv1.NewRepairServiceClient(conn)
	return list.Source[*bootstrapv1.Repair]{
		Page: func(ctx context.Context, token string) (list.Page[*bootstrapv1.Repair], error) {
			response, err := service.ListRepairs(ctx, &bootstrapv1.ListRepairsRequest{States: states, PageSize: pageSize, PageToken: token})
			return list.PageOf(response, response.GetRepairs(), err)
		},
		Response: func(all list.Page[*bootstrapv1.Repair]) proto.Message {
			return &bootstrapv1.ListRepairsResponse{Repairs: all.Items, ResumeToken: all.ResumeToken, Sources: all.Sources, Missing: all.Missing}
		},
		Watch: openRepairs(conn, states),
	}
}

// completeRepair completes the name of a repair.
func completeRepair(flags *client.Flags) cobra.CompletionFunc {
	return list.CompleteName(flags, repairKind, func(conn grpc.ClientConnInterface) list.Source[*bootstrapv1.Repair] {
		return repairs(conn, nil)
	}, func(repair *bootstrapv1.Repair) string { return strings.TrimPrefix(repair.GetName(), repairPrefix) })
}

func repairKind() list.Kind[*bootstrapv1.Repair] {
	return list.Kind[*bootstrapv1.Repair]{
		Noun: "repair",
		Columns: []list.Column{
			{Title: "NAME"}, {Title: "STATE", State: true, MinWidth: len("succeeded")}, {Title: "STEPS", MinWidth: len("100/100")},
			{Title: "AGE", MinWidth: len("59m59s")}, {Title: "ENDED", MinWidth: len("59m59s")}, {Title: "ATTEMPTS", Wide: true},
			{Title: "PLAN", Wide: true}, {Title: "BY"}, {Title: "MESSAGE"},
		},
		Row:             repairRow,
		State:           stateOf,
		Severity:        repairSeverity,
		Problem:         repairMessage,
		Summary:         repairSummary,
		WithoutVolatile: withoutAttempts,
	}
}

// repairSeverity is never critical: a failed repair is history, and its finding is observed anew.
func repairSeverity(repair *bootstrapv1.Repair) list.Severity {
	if repair.GetState() == bootstrapv1.Repair_STATE_SUCCEEDED {
		return list.Fine
	}
	return list.Warning
}

func repairRow(now time.Time, repair *bootstrapv1.Repair) []printer.Cell {
	done := 0
	for _, step := range repair.GetSteps() {
		switch step.GetChange().GetOutcome() {
		case metav1.Change_OUTCOME_APPLIED, metav1.Change_OUTCOME_NOT_NEEDED:
			done++
		}
	}
	return []printer.Cell{
		{Text: strings.TrimPrefix(repair.GetName(), repairPrefix)}, {Text: stateOf(repair), Style: repairSeverity(repair).Style()},
		{Text: fmt.Sprintf("%d/%d", done, len(repair.GetSteps()))}, {Text: printer.Since(now, repair.GetStartTime())},
		{Text: printer.Since(now, repair.GetEndTime())}, {Text: fmt.Sprint(repair.GetAttemptCount())}, {Text: cmp.Or(repair.GetPlan(), "-")},
		{Text: printer.Caller(repair.GetRequester())}, {Text: repairMessage(repair)},
	}
}

// repairMessage returns the error of the first failed step, or the user that cancelled the repair.
func repairMessage(repair *bootstrapv1.Repair) string {
	if canceller := repair.GetCanceller(); canceller != nil {
		return "cancelled by " + printer.Caller(canceller)
	}
	for _, step := range repair.GetSteps() {
		if step.GetChange().GetError() != "" {
			return step.GetChange().GetError()
		}
	}
	return ""
}

func repairSummary(repairs []*bootstrapv1.Repair) string {
	if len(repairs) == 0 {
		return "no repairs"
	}
	counts := map[string]int{}
	for _, repair := range repairs {
		counts[stateOf(repair)]++
	}
	return printer.Count(len(repairs), "repair") + ": " + printer.Counts(counts, append(stateWords(), "-")...)
}

// withoutAttempts omits what each attempt changes.
func withoutAttempts(repair *bootstrapv1.Repair) *bootstrapv1.Repair {
	copied := proto.CloneOf(repair)
	copied.AttemptCount, copied.Etag = 0, ""
	for _, step := range copied.GetSteps() {
		step.AttemptCount = 0
	}
	return copied
}

func newPlansCommand(streams printer.Streams) *cobra.Command {
	var flags list.Flags
	return list.NewCommand(streams, list.Command[*bootstrapv1.RepairPlan]{
		Flags:   &flags,
		Use:     "plans",
		Short:   "List the stored plans, the newest first",
		Long:    `List the stored plans, the newest first. "trivet repair show repairplans/NAME" shows the steps of one.`,
		Example: "  trivet repair plans\n  trivet repair plans -o name",
		Kind:    planKind,
		Source:  plans,
	})
}

func plans(conn grpc.ClientConnInterface) list.Source[*bootstrapv1.RepairPlan] {
	return list.Source[*bootstrapv1.RepairPlan]{
		Page: func(ctx context.Context, token string) (list.Page[*bootstrapv1.RepairPlan], error) {
			response, err := bootstrapv1.NewRepairServiceClient(conn).ListRepairPlans(ctx, &bootstrapv1.ListRepairPlansRequest{PageSize: pageSize, PageToken: token})
			return list.PageOf(response, response.GetRepairPlans(), err)
		},
		Response: func(all list.Page[*bootstrapv1.RepairPlan]) proto.Message {
			return &bootstrapv1.ListRepairPlansResponse{RepairPlans: all.Items, Sources: all.Sources, Missing: all.Missing}
		},
	}
}

// completePlan completes the name of a plan.
func completePlan(flags *client.Flags) cobra.CompletionFunc {
	return list.CompleteName(flags, planKind, plans, func(plan *bootstrapv1.RepairPlan) string { return strings.TrimPrefix(plan.GetName(), planPrefix) })
}

func planKind() list.Kind[*bootstrapv1.RepairPlan] {
	return list.Kind[*bootstrapv1.RepairPlan]{
		Noun: "plan",
		Columns: []list.Column{
			{Title: "NAME"}, {Title: "STATE", State: true}, {Title: "STEPS"}, {Title: "SKIPPED"}, {Title: "AGE"}, {Title: "EXPIRES"}, {Title: "BY"}, {Title: "REPAIR"},
		},
		Row:      planRow,
		State:    planState,
		Severity: func(*bootstrapv1.RepairPlan) list.Severity { return list.Fine },
		Problem:  planState,
		Summary:  func(plans []*bootstrapv1.RepairPlan) string { return printer.Count(len(plans), "plan") },
	}
}

func planState(plan *bootstrapv1.RepairPlan) string {
	if plan.GetRepair() != "" {
		return "applied"
	}
	return "stored"
}

func planRow(now time.Time, plan *bootstrapv1.RepairPlan) []printer.Cell {
	return []printer.Cell{
		{Text: strings.TrimPrefix(plan.GetName(), planPrefix)}, {Text: planState(plan)}, {Text: fmt.Sprint(len(plan.GetSteps()))},
		{Text: fmt.Sprint(plan.GetSkippedFindingCount())}, {Text: printer.Since(now, plan.GetCreateTime())}, {Text: printer.Due(now, plan.GetExpireTime())},
		{Text: printer.Caller(plan.GetRequester())}, {Text: cmp.Or(plan.GetRepair(), "-")},
	}
}
