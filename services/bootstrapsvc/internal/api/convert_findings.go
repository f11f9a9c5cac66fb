package api

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/trivet-dev/trivet/internal/prototime"
	bootstrapv1 "github.com/trivet-dev/trivet/proto/trivet/bootstrap/v1"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
)

func storesOf(snapshot *allocationcontroller.Snapshot) []*bootstrapv1.AuditAllocationsResponse_StoreAudit {
	var converted []*bootstrapv1.AuditAllocationsResponse_StoreAudit
	for _, state := range snapshot.Stores {
		allocated, capacity := state.Total()
		converted = append(converted, &bootstrapv1.AuditAllocationsResponse_StoreAudit{
			Store: bootstrapv1.Store(state.Store), Present: state.Present, Ranges: state.Ranges,
			AllocatedCount: allocated, Capacity: capacity, ServiceCount: state.Services,
			Duration: durationpb.New(snapshot.CompareDuration), Error: state.Problem,
		})
	}
	return converted
}

// findingOf converts a finding. A finding that stands was last observed by the last audit.
func (s *allocationServer) findingOf(f allocation.Finding, audited time.Time) *bootstrapv1.Finding {
	converted := &bootstrapv1.Finding{
		Name: f.Name, Code: f.Code.APIName(), Store: bootstrapv1.Store(f.Store), Subject: f.Subject, Message: f.Message,
		FirstObserveTime: prototime.New(f.FirstSeen), LastObserveTime: prototime.New(f.LastSeen), ObservationCount: int32(f.Observations),
		Repair: f.Repair, RepairMode: repairModeOf(f), RepairModeMessage: f.UnsafeReason,
		State: stateOf(f), EndTime: prototime.New(f.Ended), Ignore: ignoreOf(f.Ignore), Etag: f.Etag(),
		Owner: &metav1.Owner{ReplicaId: s.ReplicaID, Shard: new(int32(0)), Epoch: s.epoch()},
	}
	if f.End == allocation.NotEnded && audited.After(f.LastSeen) {
		converted.LastObserveTime = prototime.New(audited)
	}
	if f.RepairedBy != "" {
		converted.RepairedBy = repairName(f.RepairedBy)
	}
	for _, owner := range f.Owners {
		converted.Objects = append(converted.Objects, serviceReference(owner))
	}
	return converted
}

// stateOf returns the state of a finding. An ignored finding stays ignored while its grace period
// begins again, as after a change of the leader.
func stateOf(f allocation.Finding) bootstrapv1.Finding_State {
	switch {
	case f.End == allocation.EndRepaired:
		return bootstrapv1.Finding_STATE_REPAIRED
	case f.End == allocation.EndResolved:
		return bootstrapv1.Finding_STATE_RESOLVED
	case f.Ignore != nil:
		return bootstrapv1.Finding_STATE_IGNORED
	case f.State == allocation.StatePending:
		return bootstrapv1.Finding_STATE_PENDING
	default:
		return bootstrapv1.Finding_STATE_OPEN
	}
}

func repairModeOf(f allocation.Finding) bootstrapv1.Finding_RepairMode {
	switch f.RepairMode() {
	case allocation.RepairAutomatic:
		return bootstrapv1.Finding_REPAIR_MODE_AUTO
	case allocation.RepairByPlan:
		return bootstrapv1.Finding_REPAIR_MODE_PLAN
	default:
		return bootstrapv1.Finding_REPAIR_MODE_MANUAL
	}
}

func ignoreOf(ignore *allocation.Ignore) *bootstrapv1.Finding_Ignore {
	if ignore == nil {
		return nil
	}
	return &bootstrapv1.Finding_Ignore{
		Caller: callerMessage(ignore.Caller), CreateTime: prototime.New(ignore.Created), ExpireTime: prototime.New(ignore.Expires), Comment: ignore.Comment,
	}
}

func callerMessage(caller allocation.Caller) *metav1.Caller {
	return &metav1.Caller{User: caller.User, Groups: caller.Groups, GatewayReplicaId: caller.Gateway}
}

func evidenceOf(e allocation.Evidence, seen time.Time, replica string) *metav1.Evidence {
	converted := &metav1.Evidence{
		Code: string(e.Code), Result: metav1.Evidence_RESULT_OK, Message: e.Finding, Next: e.Next, Source: e.Source,
		ReplicaId: replica, Version: e.Version, ObserveTime: prototime.New(seen),
	}
	if e.Broken {
		converted.Result = metav1.Evidence_RESULT_FAILED
	}
	switch {
	case e.Service != nil:
		converted.Object = serviceReference(*e.Service)
	case e.IPAddress != nil:
		converted.Object = addressReference(e.IPAddress.Name, e.IPAddress.UID)
	}
	return converted
}

func serviceReference(owner allocation.Owner) *metav1.ObjectReference {
	return &metav1.ObjectReference{
		ApiVersion: "v1", Kind: "Service", Namespace: owner.Namespace, Name: owner.Name, Uid: owner.UID,
	}
}

func addressReference(name, uid string) *metav1.ObjectReference {
	return &metav1.ObjectReference{
		ApiVersion: networkingv1.SchemeGroupVersion.String(), Kind: "IPAddress", Name: name, Uid: uid,
	}
}
