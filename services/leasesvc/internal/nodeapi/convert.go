package nodeapi

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	statusv1 "github.com/trivet-dev/trivet/proto/trivet/status/v1"

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
		SignTime:        timestamp(nodeStatus.Heard),
		Deadline:        timestamp(nodeStatus.Deadline),
		Session:         sessionStateOf(node.Session),
		ChangeTime:      timestamp(snapshot.Wall(node.ChangedAt)),
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
	switch state {
	case nodehealth.PartialDisruption:
		return leasev1.Zone_STATE_PARTIAL_DISRUPTION
	case nodehealth.FullDisruption:
		return leasev1.Zone_STATE_FULL_DISRUPTION
	}
	return leasev1.Zone_STATE_NORMAL
}

func healthOf(health explain.Health) leasev1.NodeHealth_Health {
	switch health {
	case explain.Starting:
		return leasev1.NodeHealth_HEALTH_STARTING
	case explain.Ready:
		return leasev1.NodeHealth_HEALTH_READY
	case explain.NotReady:
		return leasev1.NodeHealth_HEALTH_NOT_READY
	case explain.Suspect:
		return leasev1.NodeHealth_HEALTH_SUSPECT
	case explain.Silent:
		return leasev1.NodeHealth_HEALTH_SILENT
	case explain.Unknown:
		return leasev1.NodeHealth_HEALTH_UNKNOWN
	}
	return leasev1.NodeHealth_HEALTH_UNSPECIFIED
}

func signSourceOf(by nodehealth.SignSource) leasev1.NodeHealth_SignSource {
	switch by {
	case nodehealth.SessionBeat:
		return leasev1.NodeHealth_SIGN_SOURCE_SESSION
	case nodehealth.LeaseRenewal:
		return leasev1.NodeHealth_SIGN_SOURCE_LEASE
	case nodehealth.StatusUpdate:
		return leasev1.NodeHealth_SIGN_SOURCE_STATUS
	}
	return leasev1.NodeHealth_SIGN_SOURCE_UNSPECIFIED
}

func sessionStateOf(state session.State) leasev1.Lease_State {
	switch state {
	case session.Alive:
		return leasev1.Lease_STATE_ALIVE
	case session.Suspect:
		return leasev1.Lease_STATE_SUSPECT
	case session.Expired:
		return leasev1.Lease_STATE_EXPIRED
	}
	return leasev1.Lease_STATE_UNSPECIFIED
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
	switch eventType {
	case nodehealthcontroller.Added:
		return leasev1.WatchNodeHealthResponse_TYPE_ADDED
	case nodehealthcontroller.Modified:
		return leasev1.WatchNodeHealthResponse_TYPE_MODIFIED
	case nodehealthcontroller.Deleted:
		return leasev1.WatchNodeHealthResponse_TYPE_DELETED
	}
	return leasev1.WatchNodeHealthResponse_TYPE_UNSPECIFIED
}

func evidenceOf(link *explain.Link, replica string) *statusv1.Evidence {
	e := &statusv1.Evidence{
		Code: link.Code, Verdict: verdictOf(link.Verdict), Finding: validText(link.Finding), Next: validText(link.Next),
		Source: link.Source, ReplicaId: replica, Version: link.Version, ObserveTime: timestamp(link.Time),
	}
	if o := link.Object; o != (explain.Object{}) {
		e.Object = &statusv1.ObjectReference{ApiVersion: o.APIVersion, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Uid: o.UID}
	}
	return e
}

// validText replaces invalid UTF-8, which a string field cannot carry.
func validText(text string) string { return strings.ToValidUTF8(text, "�") }

func verdictOf(verdict explain.Verdict) statusv1.Evidence_Verdict {
	switch verdict {
	case explain.Good:
		return statusv1.Evidence_VERDICT_GOOD
	case explain.Doubtful:
		return statusv1.Evidence_VERDICT_DOUBTFUL
	case explain.Broken:
		return statusv1.Evidence_VERDICT_BROKEN
	case explain.Unseen:
		return statusv1.Evidence_VERDICT_UNKNOWN
	case explain.Absent:
		return statusv1.Evidence_VERDICT_ABSENT
	}
	return statusv1.Evidence_VERDICT_UNSPECIFIED
}

func duration(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

// timestamp returns nil for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
