package allocationcontroller

import (
	"fmt"
	"strings"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

func (r *reconciler) recordFinding(action decisions.Action, finding allocation.Finding, message string) {
	r.recordFindingNamed(action, finding.Name, message)
}

func (r *reconciler) recordFindingNamed(action decisions.Action, name, message string) {
	r.Decisions.Record(decisions.Decision{
		Action: action, Object: decisions.Object{Kind: "Finding", Name: strings.TrimPrefix(name, "findings/")}, Message: message,
	})
}

// recordClosed records the open findings among those that end now.
func (r *reconciler) recordClosed(ended []allocation.Finding) {
	for _, finding := range ended {
		current := r.findings.current[finding.Name]
		if current == nil || current.State != allocation.StateOpen {
			continue
		}
		message := "what is used and what is allocated agree again"
		if repair, repaired := r.findings.repairedBy[finding.Name]; repaired {
			message = "repair " + repair + " removed it"
		}
		r.recordFinding(decisions.FindingClosed, finding, message)
	}
}

func (r *reconciler) recordRepair(action decisions.Action, id, message string) {
	r.Decisions.Record(decisions.Decision{Action: action, Object: decisions.Object{Kind: "Repair", Name: id}, Message: message})
}

// recordRepairStep records a step that was written. Steps that were not are part of the end of the
// repair.
func (r *reconciler) recordRepairStep(id string, step allocation.Step, result repairstore.StepResult) {
	switch result.State {
	case repairstore.StepDone:
		r.recordFindingNamed(decisions.RepairApplied, step.Finding, fmt.Sprintf("repair %s: %s %s %s: %s", id, step.Verb, step.Store, step.Subject, step.Detail))
	case repairstore.StepFailed:
		r.recordFindingNamed(decisions.WriteRefused, step.Finding, fmt.Sprintf("repair %s: %s %s %s: %s", id, step.Verb, step.Store, step.Subject, result.Error))
	}
}
