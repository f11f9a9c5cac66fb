package api

import (
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	networkingv1 "k8s.io/api/networking/v1"

	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

func storesOf(snapshot *allocationcontroller.Snapshot) []*bootstrapv1.AuditResponse_StoreAudit {
	var converted []*bootstrapv1.AuditResponse_StoreAudit
	for _, state := range snapshot.Stores {
		converted = append(converted, &bootstrapv1.AuditResponse_StoreAudit{
			Store: bootstrapv1.Finding_Store(state.Store), Present: state.Present, Ranges: state.Ranges,
			Allocated: state.Allocated, Capacity: state.Capacity, Services: state.Services,
			Duration: durationpb.New(snapshot.CompareDuration), Problem: state.Problem,
		})
	}
	return converted
}

// findingOf converts a finding that replica knows. An open finding was last seen by the last audit.
func findingOf(f allocation.Finding, audited time.Time, replica string) *bootstrapv1.Finding {
	converted := &bootstrapv1.Finding{
		Name: f.Name, Code: bootstrapv1.Finding_Code(f.Code), Store: bootstrapv1.Finding_Store(f.Store), Subject: f.Subject,
		Message: f.Message, FirstSeenTime: timeOf(f.FirstSeen), LastSeenTime: timeOf(f.LastSeen), Sightings: int32(f.Observations),
		Repair: f.Repair, Safe: f.Safe, UnsafeReason: f.UnsafeReason, EndTime: timeOf(f.Ended), State: stateOf(f),
	}
	if f.End == allocation.NotEnded && !audited.IsZero() {
		converted.LastSeenTime = timeOf(audited)
	}
	if f.RepairedBy != "" {
		converted.RepairedBy = repairName(f.RepairedBy)
	}
	for _, owner := range f.Owners {
		converted.Owners = append(converted.Owners, serviceReference(owner))
	}
	for _, evidence := range f.Evidence {
		converted.Evidence = append(converted.Evidence, evidenceOf(evidence, f.LastSeen, replica))
	}
	return converted
}

func stateOf(f allocation.Finding) bootstrapv1.Finding_State {
	switch {
	case f.End == allocation.EndRepaired:
		return bootstrapv1.Finding_STATE_REPAIRED
	case f.End == allocation.EndGone:
		return bootstrapv1.Finding_STATE_GONE
	case f.State == allocation.StatePending:
		return bootstrapv1.Finding_STATE_PENDING
	default:
		return bootstrapv1.Finding_STATE_OPEN
	}
}

func evidenceOf(e allocation.Evidence, seen time.Time, replica string) *statusv1.Evidence {
	converted := &statusv1.Evidence{
		Code: string(e.Code), Verdict: statusv1.Evidence_VERDICT_GOOD, Finding: e.Finding, Next: e.Next, Source: e.Source,
		ReplicaId: replica, Version: e.Version, ObserveTime: timeOf(seen),
	}
	if e.Broken {
		converted.Verdict = statusv1.Evidence_VERDICT_BROKEN
	}
	switch {
	case e.Service != nil:
		converted.Object = serviceReference(*e.Service)
	case e.IPAddress != nil:
		converted.Object = addressReference(e.IPAddress.Name, e.IPAddress.UID)
	}
	return converted
}

func serviceReference(owner allocation.Owner) *statusv1.ObjectReference {
	return &statusv1.ObjectReference{
		ApiVersion: "v1", Kind: "Service", Namespace: owner.Namespace, Name: owner.Name, Uid: owner.UID,
	}
}

func addressReference(name, uid string) *statusv1.ObjectReference {
	return &statusv1.ObjectReference{
		ApiVersion: networkingv1.SchemeGroupVersion.String(), Kind: "IPAddress", Name: name, Uid: uid,
	}
}

func stepOf(step allocation.Step, outcome repairstore.StepResult) *bootstrapv1.RepairStep {
	return &bootstrapv1.RepairStep{
		Finding: step.Finding, Safe: step.Safe, Risk: step.Risk, Version: versionOf(step), Error: outcome.Error,
		State: stepStateOf(outcome.State), Time: timeOf(outcome.Time),
		Change: &statusv1.Change{Verb: stepVerbOf(step.Verb), Object: targetOf(step), Reason: string(step.Reason), Detail: detailOf(step)},
	}
}

// detailOf also says what happens to a bit: that its range is updated does not tell.
func detailOf(step allocation.Step) string {
	switch step.Verb {
	case allocation.SetBit:
		return "set its bit: " + step.Detail
	case allocation.ClearBit:
		return "clear its bit: " + step.Detail
	default:
		return step.Detail
	}
}

// versionOf is empty for an object that must not exist yet.
func versionOf(step allocation.Step) string {
	if step.Store.IsBitmap() {
		return strconv.FormatInt(step.Guard.Revision, 10)
	}
	return step.Guard.ResourceVersion
}

func targetOf(step allocation.Step) *statusv1.ObjectReference {
	if step.Store.IsBitmap() {
		return &statusv1.ObjectReference{ApiVersion: "v1", Kind: "RangeAllocation", Name: string(allocationcontroller.RangeName(step.Store))}
	}
	return addressReference(step.Object.Name, step.Guard.UID)
}

func stepVerbOf(verb allocation.Verb) statusv1.Change_Verb {
	switch verb {
	case allocation.Create:
		return statusv1.Change_VERB_CREATE
	case allocation.Delete:
		return statusv1.Change_VERB_DELETE
	default:
		return statusv1.Change_VERB_UPDATE
	}
}

func stepStateOf(state repairstore.StepState) bootstrapv1.RepairStep_State {
	switch state {
	case repairstore.StepDone:
		return bootstrapv1.RepairStep_STATE_DONE
	case repairstore.StepUnneeded:
		return bootstrapv1.RepairStep_STATE_UNNEEDED
	case repairstore.StepFailed:
		return bootstrapv1.RepairStep_STATE_FAILED
	default:
		return bootstrapv1.RepairStep_STATE_PENDING
	}
}

func repairOf(repair repairstore.Repair) *bootstrapv1.Repair {
	converted := &bootstrapv1.Repair{
		Name: repairName(repair.ID), Requester: repair.Requester, StartTime: timestamppb.New(repair.Started),
		EndTime: timeOf(repair.Ended), Complete: repair.Complete(),
	}
	for i, step := range repair.Steps {
		converted.Steps = append(converted.Steps, stepOf(step, repair.Results[i]))
	}
	return converted
}

func repairName(id string) string { return "repairs/" + id }
