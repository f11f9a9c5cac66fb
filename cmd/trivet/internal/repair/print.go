package repair

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
)

// printPlan writes the steps of a plan; the findings that it skips and how to apply it go to
// standard error.
func printPlan(flags *client.Flags, response proto.Message, plan *bootstrapv1.RepairPlan) error {
	return flags.Print(response, func() error {
		hasSteps := len(plan.GetSteps()) > 0
		if flags.Output == "name" {
			if plan.GetName() == "" || !hasSteps {
				return nil
			}
			return flags.PrintLine(plan.GetName())
		}
		if err := printSteps(flags, plan.GetSteps(), false); err != nil {
			return err
		}
		printSkipped(flags, plan)
		switch {
		case !hasSteps || plan.GetName() == "":
		case plan.GetRepair() != "":
			flags.Note("applied by " + plan.GetRepair())
		default:
			flags.Note(fmt.Sprintf("to apply it%s: trivet repair apply %s", expiry(plan), plan.GetName()))
		}
		return nil
	})
}

func printSkipped(flags *client.Flags, plan *bootstrapv1.RepairPlan) {
	for _, finding := range plan.GetSkippedFindings() {
		reason := cmp.Or(finding.GetRepairModeMessage(), finding.GetMessage(), "no write would repair it")
		flags.Warn("skipped: " + findings.ShortName(finding.GetName()) + ": " + reason)
	}
	if more := int(plan.GetSkippedFindingCount()) - len(plan.GetSkippedFindings()); more > 0 {
		flags.Warn(fmt.Sprintf("skipped: %d more; `trivet findings` lists them", more))
	}
}

// expiry returns the moment, not the remaining time, because the line may be read later.
func expiry(plan *bootstrapv1.RepairPlan) string {
	if plan.GetExpireTime() == nil {
		return ""
	}
	return ", until " + plan.GetExpireTime().AsTime().UTC().Format(time.RFC3339)
}

// printRepair writes the steps of a repair with what came of each, and a summary.
func printRepair(flags *client.Flags, response proto.Message, repair *bootstrapv1.Repair) error {
	return flags.Print(response, func() error {
		if err := printSteps(flags, repair.GetSteps(), true); err != nil {
			return err
		}
		flags.Note(summaryOf(repair))
		return nil
	})
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
func printSteps(flags *client.Flags, steps []*bootstrapv1.RepairStep, outcomes bool) error {
	if len(steps) == 0 {
		return flags.PrintLine("nothing to write")
	}
	title, stateCell := "REPAIR", modeCell
	if outcomes {
		title, stateCell = "OUTCOME", func(step *bootstrapv1.RepairStep) printer.Cell { return printer.Outcome(step.GetChange().GetOutcome()) }
	}
	table := flags.NewTable("STEP", "CHANGE", "OBJECT", "FINDING", title, "MESSAGE")
	for i, step := range steps {
		object := cmp.Or(printer.ObjectWithKind(step.GetChange().GetObject()), "-")
		table.Add(printer.Cell{Text: fmt.Sprint(i + 1)}, printer.Verb(step.GetChange().GetVerb()), printer.Cell{Text: object},
			printer.Cell{Text: findings.ShortName(step.GetFinding())}, stateCell(step), printer.Cell{Text: stepMessage(step)})
	}
	return flags.WriteTable(table)
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
