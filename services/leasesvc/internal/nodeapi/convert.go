package nodeapi

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/api"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/explain"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

func (s *Server) nodeHealthOf(v *nodeView) *nodev1.NodeHealth {
	node, status := v.node, s.status(v)
	return &nodev1.NodeHealth{
		Name:       "nodes/" + node.Object.Name,
		Health:     healthOf(status.Health),
		Reason:     status.Reason(),
		Message:    wording.Valid(status.Message()),
		Zone:       nodehealthcontroller.ZoneName(node.Zone),
		Ready:      string(node.Ready),
		Signals:    v.signals(&status),
		LeaseState: api.StateOf(node.Session),
		ChangeTime: api.Timestamp(v.snapshot.Wall(node.ChangedAt)),
		Taints:     taintsOf(node.Object),
		Conditions: conditionsOf(v.snapshot,
			namedHold{"EvictionSuspended", node.Eviction}, namedHold{"MarkingSuspended", node.MarkingHold()}),
		Uid:             string(node.Object.UID),
		ResourceVersion: node.Object.ResourceVersion,
		Owner:           api.OwnerOf(s.Replica, node.Shard, node.Epoch),
		Agent:           v.agent(),
	}
}

func (s *Server) deletedNode(node *nodehealthcontroller.Node) *nodev1.NodeHealth {
	return &nodev1.NodeHealth{
		Name: "nodes/" + node.Object.Name, Uid: string(node.Object.UID), Owner: api.OwnerOf(s.Replica, node.Shard, node.Epoch),
	}
}

func shardsOf(node *nodehealthcontroller.Node) sessioncontroller.ServedShards {
	return sessioncontroller.ServedShards{IDs: []int{node.Shard}, Epoch: node.Epoch}
}

// sources returns the source of an answer from the given shards and caches.
func (s *Server) sources(shards sessioncontroller.ServedShards, kinds nodestore.Kinds) []*metav1.Source {
	return []*metav1.Source{answer.Replica{Service: s.Service, ID: s.Replica}.Source(shards.Epoch, shards.IDs, s.Store.Freshness(kinds)...)}
}

// namedHold is a Hold with the type of its condition.
type namedHold struct {
	condition string
	hold      nodehealth.Delay
}

// conditionsOf returns the conditions that are TRUE. The order is that of the arguments.
func conditionsOf(snapshot *nodehealthcontroller.Snapshot, holds ...namedHold) []*metav1.Condition {
	var conditions []*metav1.Condition
	for _, h := range holds {
		if !h.hold.Active() {
			continue
		}
		condition := &metav1.Condition{
			Type: h.condition, Status: metav1.Condition_STATUS_TRUE, Reason: h.hold.Reason, Message: wording.Valid(sentence(h.hold.Message)),
		}
		if h.hold.Since > 0 {
			condition.TransitionTime = api.Timestamp(snapshot.Wall(h.hold.Since))
		}
		conditions = append(conditions, condition)
	}
	return conditions
}

// sentence makes a sentence of a clause.
func sentence(clause string) string {
	if clause == "" {
		return ""
	}
	return strings.ToUpper(clause[:1]) + clause[1:] + "."
}

func zoneStateOf(state nodehealth.ZoneState) nodev1.Zone_State {
	return [...]nodev1.Zone_State{
		nodehealth.Normal:            nodev1.Zone_STATE_NORMAL,
		nodehealth.PartialDisruption: nodev1.Zone_STATE_PARTIAL_DISRUPTION,
		nodehealth.FullDisruption:    nodev1.Zone_STATE_FULL_DISRUPTION,
	}[state]
}

func healthOf(health explain.Health) nodev1.NodeHealth_Health {
	return [...]nodev1.NodeHealth_Health{
		explain.Starting: nodev1.NodeHealth_HEALTH_STARTING,
		explain.Ready:    nodev1.NodeHealth_HEALTH_READY,
		explain.NotReady: nodev1.NodeHealth_HEALTH_NOT_READY,
		explain.Suspect:  nodev1.NodeHealth_HEALTH_SUSPECT,
		explain.Silent:   nodev1.NodeHealth_HEALTH_SILENT,
		explain.Unknown:  nodev1.NodeHealth_HEALTH_UNKNOWN,
	}[health]
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
