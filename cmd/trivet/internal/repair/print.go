package repair

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// printPlan writes the steps of a plan; the findings that it skips and how to apply it go to
// standard error.
func printPlan(streams printer.Streams, flags *client.Flags, response proto.Message, plan *bootstrapv1.RepairPlan) error {
	if written, err := printer.WriteMessage(streams.Out, flags.Output, response); written || err != nil {
		return err
	}
	if flags.Output == "name" {
		if plan.GetName() == "" || len(plan.GetSteps()) == 0 {
			return nil
		}
		_, err := fmt.Fprintln(streams.Out, printer.Sanitize(plan.GetName()))
		return err
	}
	if err := printSteps(streams, flags, plan.GetSteps(), false); err != nil {
		return err
	}
	printSkipped(streams, plan)
	switch {
	case len(plan.GetSteps()) == 0 || plan.GetName() == "":
	case plan.GetRepair() != "":
		fmt.Fprintf(streams.Err, "applied by %s\n", printer.Sanitize(plan.GetRepair()))
	default:
		fmt.Fprintf(streams.Err, "to apply it%s: trivet repair apply %s\n", expiry(plan), printer.Sanitize(plan.GetName()))
	}
	return nil
}

func printSkipped(streams printer.Streams, plan *bootstrapv1.RepairPlan) {
	for _, finding := range plan.GetSkippedFindings() {
		reason := cmp.Or(finding.GetRepairModeMessage(), finding.GetMessage(), "no write would repair it")
		fmt.Fprintf(streams.Err, "skipped: %s: %s\n", printer.Sanitize(findings.ShortName(finding.GetName())), printer.Sanitize(reason))
	}
	if more := int(plan.GetSkippedFindingCount()) - len(plan.GetSkippedFindings()); more > 0 {
		fmt.Fprintf(streams.Err, "skipped: %d more; `trivet findings` lists them\n", more)
	}
}

// expiry returns the moment, not the remaining time, because the line may be read later.
func expiry(plan *bootstrapv1.RepairPlan) string {
	if plan.GetExpireTime() == nil {
		return ""
	}
	return ", until " + plan.GetExpireTime().AsTime().UTC().Format(time.DateTime) + " UTC"
}

// printRepair writes the steps of a repair with what came of each, and a summary.
func printRepair(streams printer.Streams, flags *client.Flags, response proto.Message, repair *bootstrapv1.Repair) error {
	if written, err := printer.WriteMessage(streams.Out, flags.Output, response); written || err != nil {
		return err
	}
	if err := printSteps(streams, flags, repair.GetSteps(), true); err != nil {
		return err
	}
	fmt.Fprintln(streams.Err, printer.Sanitize(summaryOf(repair)))
	return nil
}

// summaryOf returns the state of a repair: "repairs/a1: running: 3 steps: 1 applied, 2 planned".
func summaryOf(repair *bootstrapv1.Repair) string {
	counts := map[string]int{}
	for _, step := range repair.GetSteps() {
		counts[printer.Outcome(step.GetChange().GetOutcome()).Text]++
	}
	return fmt.Sprintf("%s: %s: %s: %s", cmp.Or(repair.GetName(), "repair"), stateOf(repair), printer.Count(len(repair.GetSteps()), "step"),
		printer.Counts(counts, "applied", "not-needed", "failed", "skipped", "planned", "-"))
}

// printSteps writes the steps of a plan with the repair mode, or of a repair with the outcome.
func printSteps(streams printer.Streams, flags *client.Flags, steps []*bootstrapv1.RepairStep, outcomes bool) error {
	if len(steps) == 0 {
		_, err := fmt.Fprintln(streams.Out, "nothing to write")
		return err
	}
	table := &printer.Table{Colors: streams.Colors(flags.Color), Width: streams.Width()}
	title, stateCell := "REPAIR", modeCell
	if outcomes {
		title, stateCell = "OUTCOME", func(step *bootstrapv1.RepairStep) printer.Cell { return printer.Outcome(step.GetChange().GetOutcome()) }
	}
	table.AddStyled(printer.Bold, "STEP", "CHANGE", "OBJECT", "FINDING", title, "MESSAGE")
	for i, step := range steps {
		object := cmp.Or(printer.ObjectWithKind(step.GetChange().GetObject()), "-")
		table.Add(printer.Cell{Text: fmt.Sprint(i + 1)}, printer.Verb(step.GetChange().GetVerb()), printer.Cell{Text: object},
			printer.Cell{Text: findings.ShortName(step.GetFinding())}, stateCell(step), printer.Cell{Text: stepMessage(step)})
	}
	_, err := table.WriteTo(streams.Out)
	return err
}

// modeCell says whether the service would apply a step by itself.
func modeCell(step *bootstrapv1.RepairStep) printer.Cell {
	cell := printer.Cell{Text: printer.EnumWord(step.GetRepairMode(), "REPAIR_MODE_")}
	if step.GetRepairMode() != bootstrapv1.Finding_REPAIR_MODE_AUTO {
		cell.Style = printer.Warning
	}
	return cell
}

// stepMessage returns the error of a step or its purpose, its risk, and the number of attempts.
func stepMessage(step *bootstrapv1.RepairStep) string {
	message := cmp.Or(step.GetChange().GetError(), step.GetChange().GetMessage(), step.GetChange().GetReason())
	if attempts := step.GetAttemptCount(); attempts > 1 {
		message += fmt.Sprintf(" (%d attempts)", attempts)
	}
	if risk := step.GetRisk(); risk != "" {
		message += "; risk: " + risk
	}
	return message
}
