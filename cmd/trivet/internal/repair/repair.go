// Package repair is `trivet repair`: it plans what would repair findings, and applies a plan.
//
// A plan writes nothing and returns a token. Apply takes the token and writes what the plan showed,
// or nothing. The same token continues an interrupted repair. On a terminal apply asks before it
// writes; elsewhere it needs --yes.
package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/exit"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// NewCommand returns `trivet repair`. Its errors carry their exit code and are not printed.
func NewCommand(streams printer.Streams) *cobra.Command {
	command := &cobra.Command{
		Use:   "repair",
		Short: "Plan the repair of findings, and apply a plan",
		Long: `Plan the repair of the findings of "trivet findings", and apply a plan. Findings with REPAIR auto are repaired
without it, unless --auto-repair=off.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.UsageError(fmt.Errorf("repair does not know %q; it knows plan and apply", args[0]))
			}
			return exit.UsageError(errors.New("give plan [NAME…] or apply TOKEN"))
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit.UsageError(err) })
	command.AddCommand(newPlanCommand(streams), newApplyCommand(streams))
	return command
}

// maxNames is the API's limit of findings in one plan.
const maxNames = 1000

func newPlanCommand(streams printer.Streams) *cobra.Command {
	var flags client.Flags
	command := &cobra.Command{
		Use:   "plan [NAME…]",
		Short: "Show what would be written to repair findings, and why",
		Long: `Show in order what would be written to repair the named findings, or all open ones, and which findings are
skipped. Nothing is written. "trivet repair apply" takes the token in the last line, which stands for exactly
these steps and expires.

Exit codes, as those of kubectl diff:
  0   Nothing to write.
  1   Steps.
  2   There is no answer.
  64  The command line is wrong.`,
		Example: `  trivet repair plan
  trivet repair plan leaked.node-ports.30080
  trivet repair apply --yes "$(trivet repair plan -o token)"`,
		RunE: func(command *cobra.Command, args []string) error {
			names, err := parseNames(&flags, args)
			if err != nil {
				return err
			}
			return plan(command.Context(), streams, &flags, names)
		},
	}
	flags.Register(command, streams, "table", "json", "token")
	command.ValidArgsFunction = findings.Complete(&flags)
	return command
}

func parseNames(flags *client.Flags, args []string) ([]string, error) {
	problems := flags.Validate()
	if len(args) > maxNames {
		problems = append(problems, fmt.Errorf("repair plan takes at most %d names, got %d; without names it takes all open findings", maxNames, len(args)))
	}
	var names []string
	for _, arg := range args {
		name, err := findings.ParseName(arg)
		problems = append(problems, err)
		names = append(names, name)
	}
	return names, exit.UsageError(problems...)
}

func plan(ctx context.Context, streams printer.Streams, flags *client.Flags, names []string) error {
	response, err := client.Call(ctx, flags, "plan", func(ctx context.Context, conn grpc.ClientConnInterface) (*gatewayv1.PlanRepairResponse, error) {
		return gatewayv1.NewBootstrapServiceClient(conn).PlanRepair(ctx, &gatewayv1.PlanRepairRequest{Names: names})
	})
	if err != nil {
		return err
	}
	if err := printPlan(streams, flags, response); err != nil {
		return client.CannotPrint("plan", err)
	}
	if steps := len(response.GetSteps()); steps > 0 {
		return &exit.Error{Code: exit.Findings, Summary: printer.Count(steps, "step") + " to be applied"}
	}
	return nil
}

func printPlan(streams printer.Streams, flags *client.Flags, response *gatewayv1.PlanRepairResponse) error {
	switch flags.Output {
	case "json":
		return printer.WriteJSON(streams.Out, response)
	case "token":
		if response.GetToken() == "" {
			return nil
		}
		_, err := fmt.Fprintln(streams.Out, printer.Sanitize(response.GetToken()))
		return err
	}
	if err := printSteps(streams, flags, response.GetSteps()); err != nil {
		return err
	}
	for _, finding := range response.GetLeft() {
		reason := cmp.Or(finding.GetUnsafeReason(), finding.GetMessage(), "no write would repair it")
		fmt.Fprintf(streams.Err, "skipped: %s: %s\n", printer.Sanitize(findings.ShortName(finding.GetName())), printer.Sanitize(reason))
	}
	if more := response.GetLeftOmitted(); more > 0 {
		fmt.Fprintf(streams.Err, "skipped: %d more; `trivet findings` lists them\n", more)
	}
	if response.GetToken() != "" {
		fmt.Fprintf(streams.Err, "to apply it%s: trivet repair apply %s\n", expiry(response), printer.Sanitize(response.GetToken()))
	}
	return nil
}

// expiry returns the moment, not the remaining time, because the line may be read later.
func expiry(response *gatewayv1.PlanRepairResponse) string {
	if response.GetExpireTime() == nil {
		return ""
	}
	return ", until " + response.GetExpireTime().AsTime().UTC().Format(time.DateTime) + " UTC"
}

// printSteps prints the steps of a plan, or of a repair with their states.
func printSteps(streams printer.Streams, flags *client.Flags, steps []*bootstrapv1.RepairStep) error {
	if len(steps) == 0 {
		_, err := fmt.Fprintln(streams.Out, "nothing to write")
		return err
	}
	isRepair := false
	for _, step := range steps {
		isRepair = isRepair || step.GetState() > bootstrapv1.RepairStep_STATE_PENDING
	}
	table := &printer.Table{Colors: streams.Colors(flags.Color), Width: streams.Width()}
	titles, stateCell := []string{"STEP", "CHANGE", "OBJECT", "FINDING", "AUTO", "DETAIL"}, autoCell
	if isRepair {
		titles[4], stateCell = "STATE", stepStateCell
	}
	table.AddStyled(printer.Bold, titles...)
	for i, step := range steps {
		verb, style := printer.Verb(step.GetChange().GetVerb())
		object := cmp.Or(printer.ObjectWithKind(step.GetChange().GetObject()), "-")
		table.Add(printer.Cell{Text: fmt.Sprint(i + 1)}, printer.Cell{Text: verb, Style: style}, printer.Cell{Text: object},
			printer.Cell{Text: findings.ShortName(step.GetFinding())}, stateCell(step), printer.Cell{Text: stepDetail(step)})
	}
	_, err := table.WriteTo(streams.Out)
	return err
}

// autoCell says whether the service would apply a step by itself.
func autoCell(step *bootstrapv1.RepairStep) printer.Cell {
	if step.GetSafe() {
		return printer.Cell{Text: "yes"}
	}
	return printer.Cell{Text: "no", Style: printer.Warning}
}

func stepStateCell(step *bootstrapv1.RepairStep) printer.Cell {
	style := printer.Warning
	switch step.GetState() {
	case bootstrapv1.RepairStep_STATE_DONE:
		style = printer.Success
	case bootstrapv1.RepairStep_STATE_UNNEEDED:
		style = printer.Dim
	case bootstrapv1.RepairStep_STATE_FAILED:
		style = printer.Failure
	}
	return printer.Cell{Text: stepState(step.GetState()), Style: style}
}

func stepState(state bootstrapv1.RepairStep_State) string {
	switch state {
	case bootstrapv1.RepairStep_STATE_DONE:
		return "done"
	case bootstrapv1.RepairStep_STATE_UNNEEDED:
		return "not needed"
	case bootstrapv1.RepairStep_STATE_FAILED:
		return "failed"
	default:
		return "pending"
	}
}

// stepDetail returns the error of a step or its purpose, and its risk.
func stepDetail(step *bootstrapv1.RepairStep) string {
	detail := cmp.Or(step.GetError(), step.GetChange().GetDetail(), step.GetChange().GetReason())
	if risk := step.GetRisk(); risk != "" {
		detail += "; risk: " + risk
	}
	return detail
}
