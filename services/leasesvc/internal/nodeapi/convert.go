package nodeapi

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

func nodeHealthOf(snapshot *nodehealthcontroller.Snapshot, node *nodehealthcontroller.Node, nodeStatus *explain.NodeStatus) *leasev1.NodeHealth {
	return &leasev1.NodeHealth{
		Name:            "nodes/" + node.Object.Name,
		Health:          healthOf(nodeStatus.Health),
		Reason:          nodeStatus.Reason(),
		Zone:            zoneName(node.Zone),
		Ready:           string(node.Ready),
		SignSource:      signSourceOf(nodeStatus.By),
		SignTime:        api.Timestamp(nodeStatus.Heard),
		Deadline:        api.Timestamp(nodeStatus.Deadline),
		Session:         sessionStateOf(node.Session),
		ChangeTime:      api.Timestamp(snapshot.Wall(node.ChangedAt)),
		Taints:          taintsOf(node.Object),
		HeldBy:          nodeStatus.HeldBy,
		Uid:             string(node.Object.UID),
		ResourceVersion: node.Object.ResourceVersion,
		Shard:           int32(node.Shard),
		Epoch:           node.Epoch,
	}
}

// zoneName returns the name of a zone without the separators of upstream, which node health and its
// metrics use.
func zoneName(zone string) string { return strings.ReplaceAll(zone, ":\x00:", ":") }

func zoneOf(snapshot *nodehealthcontroller.Snapshot, zone nodehealth.Zone) *leasev1.Zone {
	return &leasev1.Zone{
		Name: zoneName(zone.Name), State: zoneStateOf(zone.State), Nodes: int32(zone.Size), NotReady: int32(zone.NotReady),
		TaintRate: zone.Rate, Waiting: int32(zone.Waiting), HeldBy: snapshot.HeldBy(zone.Name),
	}
}

func zoneStateOf(state nodehealth.ZoneState) leasev1.Zone_State {
	return [...]leasev1.Zone_State{
		nodehealth.Normal:            leasev1.Zone_STATE_NORMAL,
		nodehealth.PartialDisruption: leasev1.Zone_STATE_PARTIAL_DISRUPTION,
		nodehealth.FullDisruption:    leasev1.Zone_STATE_FULL_DISRUPTION,
	}[state]
}

func healthOf(health explain.Health) leasev1.NodeHealth_Health {
	return [...]leasev1.NodeHealth_Health{
		explain.Starting: leasev1.NodeHealth_HEALTH_STARTING,
		explain.Ready:    leasev1.NodeHealth_HEALTH_READY,
		explain.NotReady: leasev1.NodeHealth_HEALTH_NOT_READY,
		explain.Suspect:  leasev1.NodeHealth_HEALTH_SUSPECT,
		explain.Silent:   leasev1.NodeHealth_HEALTH_SILENT,
		explain.Unknown:  leasev1.NodeHealth_HEALTH_UNKNOWN,
	}[health]
}

func signSourceOf(by nodehealth.SignSource) leasev1.NodeHealth_SignSource {
	return [...]leasev1.NodeHealth_SignSource{
		nodehealth.SessionBeat:  leasev1.NodeHealth_SIGN_SOURCE_SESSION,
		nodehealth.LeaseRenewal: leasev1.NodeHealth_SIGN_SOURCE_LEASE,
		nodehealth.StatusUpdate: leasev1.NodeHealth_SIGN_SOURCE_STATUS,
	}[by]
}

func sessionStateOf(state session.State) leasev1.Lease_State {
	return [...]leasev1.Lease_State{
		session.Alive:   leasev1.Lease_STATE_ALIVE,
		session.Suspect: leasev1.Lease_STATE_SUSPECT,
		session.Expired: leasev1.Lease_STATE_EXPIRED,
	}[state]
}

// taintsOf returns the sorted taints that describe the health of a Node.
func taintsOf(node *corev1.Node) []string {
	var taints []string
	for _, t := range node.Spec.Taints {
		if strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			taints = append(taints, t.Key+":"+string(t.Effect))
		}
	}
	slices.Sort(taints)
	return taints
}

func eventTypeOf(eventType nodehealthcontroller.ChangeType) leasev1.WatchNodeHealthResponse_Type {
	return [...]leasev1.WatchNodeHealthResponse_Type{
		nodehealthcontroller.Added:    leasev1.WatchNodeHealthResponse_TYPE_ADDED,
		nodehealthcontroller.Modified: leasev1.WatchNodeHealthResponse_TYPE_MODIFIED,
		nodehealthcontroller.Deleted:  leasev1.WatchNodeHealthResponse_TYPE_DELETED,
	}[eventType]
}

func evidenceOf(link *explain.Link, replica string) *statusv1.Evidence {
	e := &statusv1.Evidence{
		Code: link.Code, Verdict: verdictOf(link.Verdict), Finding: validText(link.Finding), Next: validText(link.Next),
		Source: link.Source, ReplicaId: replica, Version: link.Version, ObserveTime: api.Timestamp(link.Time),
	}
	if o := link.Object; o != (explain.Object{}) {
		e.Object = &statusv1.ObjectReference{ApiVersion: o.APIVersion, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Uid: o.UID}
	}
	return e
}

// validText replaces invalid UTF-8, which a string field cannot carry.
func validText(text string) string { return strings.ToValidUTF8(text, "�") }

func verdictOf(verdict explain.Verdict) statusv1.Evidence_Verdict {
	return [...]statusv1.Evidence_Verdict{
		explain.Good:     statusv1.Evidence_VERDICT_GOOD,
		explain.Doubtful: statusv1.Evidence_VERDICT_DOUBTFUL,
		explain.Broken:   statusv1.Evidence_VERDICT_BROKEN,
		explain.Unseen:   statusv1.Evidence_VERDICT_UNKNOWN,
		explain.Absent:   statusv1.Evidence_VERDICT_ABSENT,
	}[verdict]
}
