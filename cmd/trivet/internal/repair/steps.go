package repair

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/findings"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
)

// showSteps draws the steps of a plan; those of a repair also say how they stand.
func showSteps(streams printer.Streams, flags *client.Flags, steps []*bootstrapv1.RepairStep) error {
	if len(steps) == 0 {
		_, err := fmt.Fprintln(streams.Out, "nothing to write")
		return err
	}
	isRepair := false
	for _, step := range steps {
		isRepair = isRepair || step.GetState() > bootstrapv1.RepairStep_STATE_PENDING
	}
	rows := &printer.Table{Ink: streams.Ink(flags.Color), Width: streams.Width()}
	titles := []string{"STEP", "CHANGE", "OBJECT", "FINDING", "ALONE", "DETAIL"}
	if isRepair {
		titles[4] = "STATE"
	}
	rows.AddAll(printer.Strong, titles...)
	for i, step := range steps {
		verb, tone := printer.Verb(step.GetChange().GetVerb())
		rows.Add(printer.Cell{Text: fmt.Sprint(i + 1)}, printer.Cell{Text: verb, Tone: tone}, printer.Cell{Text: objectOf(step.GetChange().GetObject())},
			printer.Cell{Text: findings.ShortName(step.GetFinding())}, standing(step, isRepair), printer.Cell{Text: detail(step)})
	}
	_, err := rows.WriteTo(streams.Out)
	return err
}

// standing is how a step stands; while it is only planned, whether the service would take it without being asked.
func standing(step *bootstrapv1.RepairStep, isRepair bool) printer.Cell {
	if !isRepair {
		if step.GetSafe() {
			return printer.Cell{Text: "yes"}
		}
		return printer.Cell{Text: "no", Tone: printer.Fair}
	}
	switch step.GetState() {
	case bootstrapv1.RepairStep_STATE_DONE:
		return printer.Cell{Text: "done", Tone: printer.Good}
	case bootstrapv1.RepairStep_STATE_UNNEEDED:
		return printer.Cell{Text: "not needed", Tone: printer.Faint}
	case bootstrapv1.RepairStep_STATE_FAILED:
		return printer.Cell{Text: "failed", Tone: printer.Bad}
	default:
		return printer.Cell{Text: "to do", Tone: printer.Fair}
	}
}

// detail is what a step failed with, else what it is for; what can go wrong by it comes after.
func detail(step *bootstrapv1.RepairStep) string {
	words := cmp.Or(step.GetError(), step.GetChange().GetDetail(), step.GetChange().GetReason())
	if risk := step.GetRisk(); risk != "" {
		words += "; risk: " + risk
	}
	return words
}

func objectOf(object *statusv1.ObjectReference) string {
	name := object.GetName()
	if namespace := object.GetNamespace(); namespace != "" {
		name = namespace + "/" + name
	}
	return cmp.Or(strings.TrimSpace(object.GetKind()+" "+name), "-")
}
