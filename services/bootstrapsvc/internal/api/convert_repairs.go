package api

import (
	"maps"
	"strconv"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/internal/prototime"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

func (s *allocationServer) planOf(plan repairstore.Plan) *bootstrapv1.RepairPlan {
	converted := &bootstrapv1.RepairPlan{
		Steps: stepsOf(plan.Steps), SkippedFindingCount: int32(plan.SkippedCount), Etag: plan.Etag,
		Requester: callerMessage(plan.Requester), CreateTime: prototime.New(plan.Created), ExpireTime: prototime.New(plan.Expires),
	}
	if plan.ID != "" {
		converted.Name = planName(plan.ID)
	}
	if plan.Repair != "" {
		converted.Repair = repairName(plan.Repair)
	}
	for _, finding := range plan.Skipped {
		converted.SkippedFindings = append(converted.SkippedFindings, s.findingOf(finding, time.Time{}))
	}
	return converted
}

func repairOf(repair repairstore.Repair) *bootstrapv1.Repair {
	converted := &bootstrapv1.Repair{
		Name: repairName(repair.ID), Requester: callerMessage(repair.Requester), State: repairStateOf(repair), Steps: stepsOf(repair.Steps),
		AttemptCount: int32(repair.Progress.Attempts), StartTime: prototime.New(repair.Started), EndTime: prototime.New(repair.Ended), Etag: repair.Etag(),
	}
	if repair.Plan != "" {
		converted.Plan = planName(repair.Plan)
	}
	if repair.Cancelled != nil {
		converted.Canceller = callerMessage(repair.Cancelled.Caller)
	}
	for number, step := range converted.GetSteps() {
		progress := repair.Progress.Steps[number]
		step.AttemptCount = int32(progress.Attempts)
		setOutcome(step.GetChange(), repair.Results[number], progress.Error, repair.Cancelled != nil)
	}
	return converted
}

// listedPlanOf returns a plan as lists have it.
func (s *allocationServer) listedPlanOf(plan repairstore.Plan) *bootstrapv1.RepairPlan {
	plan.Skipped = nil
	converted := s.planOf(plan)
	dropFieldChanges(converted.GetSteps())
	return converted
}

// listedRepairOf returns a repair as lists and watches have it.
func listedRepairOf(repair repairstore.Repair) *bootstrapv1.Repair {
	converted := repairOf(repair)
	dropFieldChanges(converted.GetSteps())
	return converted
}

func dropFieldChanges(steps []*bootstrapv1.RepairStep) {
	for _, step := range steps {
		step.Change.FieldChanges = nil
	}
}

func repairStateOf(repair repairstore.Repair) bootstrapv1.Repair_State {
	switch repair.State() {
	case repairstore.Succeeded:
		return bootstrapv1.Repair_STATE_SUCCEEDED
	case repairstore.Failed:
		return bootstrapv1.Repair_STATE_FAILED
	case repairstore.Cancelled:
		return bootstrapv1.Repair_STATE_CANCELLED
	default:
		return bootstrapv1.Repair_STATE_RUNNING
	}
}

// setOutcome sets what came of a step. A pending step that was tried has failed so far.
func setOutcome(change *metav1.Change, result repairstore.StepResult, lastError string, cancelled bool) {
	switch {
	case result.State == repairstore.StepDone:
		change.Outcome, change.ApplyTime = metav1.Change_OUTCOME_APPLIED, prototime.New(result.Time)
	case result.State == repairstore.StepUnneeded:
		change.Outcome = metav1.Change_OUTCOME_NOT_NEEDED
	case result.State == repairstore.StepFailed:
		change.Outcome, change.Error = metav1.Change_OUTCOME_FAILED, result.Error
	case result.State == repairstore.StepSkipped:
		change.Outcome = metav1.Change_OUTCOME_SKIPPED
	case lastError != "":
		change.Outcome, change.Error = metav1.Change_OUTCOME_FAILED, lastError
	case cancelled:
		change.Outcome = metav1.Change_OUTCOME_SKIPPED
	}
}

// stepsOf converts the steps of a plan or a repair as they were planned.
func stepsOf(steps []allocation.Step) []*bootstrapv1.RepairStep {
	var converted []*bootstrapv1.RepairStep
	deleted := map[string]allocation.Step{}
	for _, step := range steps {
		message := stepOf(step)
		switch {
		case step.Verb == planned.Delete:
			deleted[step.Finding] = step
		case step.Verb == planned.Create && step.Reason == allocation.ReasonReference:
			if before, ok := deleted[step.Finding]; ok {
				message.Change.FieldChanges = referenceChange(before.Object.Parent, step.Object.Parent)
			}
		}
		converted = append(converted, message)
	}
	return converted
}

func stepOf(step allocation.Step) *bootstrapv1.RepairStep {
	mode := bootstrapv1.Finding_REPAIR_MODE_PLAN
	if step.Safe {
		mode = bootstrapv1.Finding_REPAIR_MODE_AUTO
	}
	return &bootstrapv1.RepairStep{
		Finding: step.Finding, RepairMode: mode, Risk: step.Risk,
		Change: &metav1.Change{
			Verb: step.Verb.Proto(), Object: targetOf(step), Reason: string(step.Reason), Message: stepMessage(step),
			BaseVersion: baseVersionOf(step), Outcome: metav1.Change_OUTCOME_PLANNED, FieldChanges: labelChanges(step),
		},
	}
}

// stepMessage also says what happens to a bit: that its range is updated does not tell.
func stepMessage(step allocation.Step) string {
	switch step.Verb {
	case planned.SetBit:
		return "set its bit: " + step.Detail
	case planned.ClearBit:
		return "clear its bit: " + step.Detail
	default:
		return step.Detail
	}
}

// baseVersionOf is empty for an object that must not exist yet.
func baseVersionOf(step allocation.Step) string {
	if step.Store.IsBitmap() {
		return strconv.FormatInt(step.Guard.Revision, 10)
	}
	return step.Guard.ResourceVersion
}

func targetOf(step allocation.Step) *metav1.ObjectReference {
	if step.Store.IsBitmap() {
		return &metav1.ObjectReference{ApiVersion: "v1", Kind: "RangeAllocation", Name: string(allocationcontroller.RangeName(step.Store))}
	}
	return addressReference(step.Object.Name, step.Guard.UID)
}

// labelChanges are the labels that a relabel writes. A step of an earlier version does not say
// which labels it found.
func labelChanges(step allocation.Step) []*metav1.FieldChange {
	if step.Verb != planned.Relabel || step.Previous == nil {
		return nil
	}
	var fields planned.Fields
	fields.CompareMaps("metadata.labels", labelsOf(step.Previous.Family, step.Previous.ManagedBy), labelsOf(step.Object.Family, step.Object.ManagedBy))
	fields.Sort()
	return fields.Proto()
}

// labelsOf leaves out a label without a value.
func labelsOf(family, managedBy string) map[string]string {
	labels := map[string]string{networkingv1.LabelIPAddressFamily: family, networkingv1.LabelManagedBy: managedBy}
	maps.DeleteFunc(labels, func(_, value string) bool { return value == "" })
	return labels
}

// referenceChange is the parent of an address that is deleted and created again.
func referenceChange(before, after allocation.Parent) []*metav1.FieldChange {
	return planned.Fields{{Path: "spec.parentRef", Before: planned.JSON(referenceOf(before)), After: planned.JSON(referenceOf(after))}}.Proto()
}

func referenceOf(parent allocation.Parent) networkingv1.ParentReference {
	return networkingv1.ParentReference{Group: parent.Group, Resource: parent.Resource, Namespace: parent.Namespace, Name: parent.Name}
}

func planName(id string) string   { return "repairplans/" + id }
func repairName(id string) string { return "repairs/" + id }
