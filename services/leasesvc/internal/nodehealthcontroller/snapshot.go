package nodehealthcontroller

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// Snapshot is the result of the last pass. It is immutable.
type Snapshot struct {
	At nodehealth.Moment
	// Zones are ordered by name. ZoneEpoch is the epoch of the term of ZoneShard; 0 if this replica
	// does not hold it.
	Zones     []nodehealth.Zone
	ZoneEpoch int64
	// Suspension delays the marks of all Nodes; zero if nothing does.
	Suspension nodehealth.Delay
	// Shards are the held ones.
	Shards sessioncontroller.ServedShards

	nodes []*Node // ordered by name
	// The following are Nodes of held shards.
	unknown, held, notReady, kubeletsCutOff, agentsCutOff NamedNodes
}

// NamedNodes are Nodes of which the first ones are named.
type NamedNodes struct {
	Count int
	// First has the first names in their order, at most maxNames.
	First []string
}

// maxNames is the number of Nodes that NamedNodes names.
const maxNames = 5

func (n *NamedNodes) add(name string) {
	if n.Count++; n.Count <= maxNames {
		n.First = append(n.First, name)
	}
}

// Unknown returns the Nodes of held shards that were marked Unknown.
func (s *Snapshot) Unknown() NamedNodes { return s.unknown }

// Held returns the silent Nodes of held shards that are not marked Unknown because of a Delay.
func (s *Snapshot) Held() NamedNodes { return s.held }

// KubeletsCutOff returns the Nodes of held shards whose agent lives and whose kubelet reaches no
// kube-apiserver.
func (s *Snapshot) KubeletsCutOff() NamedNodes { return s.kubeletsCutOff }

// AgentsCutOff returns the Nodes of held shards whose session has expired and whose kubelet gives
// signs of life: the agent does not run, or no leader acknowledges its beats.
func (s *Snapshot) AgentsCutOff() NamedNodes { return s.agentsCutOff }

// NotReady returns the Nodes of held shards that give signs of life and whose Ready condition is
// not True.
func (s *Snapshot) NotReady() NamedNodes { return s.notReady }

// Wall converts an instant to wall-clock time.
func (s *Snapshot) Wall(instant monotonic.Instant) time.Time {
	return s.At.Wall.Add(instant.Sub(s.At.Instant))
}

// Node returns a Node, or nil.
func (s *Snapshot) Node(name string) *Node {
	if i, found := s.find(name); found {
		return s.nodes[i]
	}
	return nil
}

// Page returns the wanted Nodes of held shards after the given name, in order, and whether there
// are more.
func (s *Snapshot) Page(after string, limit int, wanted func(*Node) bool) (page []*Node, more bool) {
	i, found := s.find(after)
	if found {
		i++
	}
	for _, node := range s.nodes[i:] {
		switch {
		case !node.Held || !wanted(node):
		case len(page) == limit:
			return page, true
		default:
			page = append(page, node)
		}
	}
	return page, false
}

func (s *Snapshot) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.nodes, name, func(n *Node, name string) int { return cmp.Compare(n.Object.Name, name) })
}

// Zone is what readers see of a zone.
type Zone struct {
	nodehealth.Zone
	// Hold is why no silent Node of the zone is marked Unknown now.
	Hold nodehealth.Delay
	// Epoch is that of the term of ZoneShard.
	Epoch int64
}

// ZoneName returns the resource name of a zone. nodehealth.ZoneOf has the separators of upstream.
func ZoneName(zone string) string {
	if zone == "" {
		return "zones/none"
	}
	return "zones/" + strings.ReplaceAll(zone, ":\x00:", ":")
}

// AllZones returns all zones, ordered by name.
func (s *Snapshot) AllZones() []Zone {
	zones := make([]Zone, 0, len(s.Zones))
	for _, zone := range s.Zones {
		zones = append(zones, Zone{Zone: zone, Hold: s.Suspension, Epoch: s.ZoneEpoch})
	}
	return zones
}

// Zone returns a zone by its name; false if no Node is in it.
func (s *Snapshot) Zone(name string) (Zone, bool) {
	i, found := slices.BinarySearchFunc(s.Zones, name, func(z nodehealth.Zone, name string) int { return cmp.Compare(z.Name, name) })
	if !found {
		return Zone{}, false
	}
	return Zone{Zone: s.Zones[i], Hold: s.Suspension, Epoch: s.ZoneEpoch}, true
}

// Node is what readers see of one Node. It is shared and immutable.
type Node struct {
	// Object is the Node as it is cached.
	Object *corev1.Node
	Zone   string
	Ready  corev1.ConditionStatus
	Shard  int
	Result
	// ChangedAt is when its health or its readiness last changed, or when this replica first judged
	// it.
	ChangedAt monotonic.Instant
}

// Result is what a pass concluded about one Node.
type Result struct {
	// Held says that this replica holds the shard of the Node. Otherwise the other fields are zero.
	Held bool
	// Epoch is that of the term of the shard.
	Epoch int64
	// Assessment has no Heard while a session keeps the Node alive. The session table has the time
	// of the last beat.
	Assessment nodehealth.Assessment
	// LeaseRenewed and StatusUpdated are when the kubelet renewed the Lease and the status last; 0
	// for times that were not observed.
	LeaseRenewed, StatusUpdated monotonic.Instant
	Session                     session.State
	// Agent registered the session; the zero Handle if that is not known.
	Agent unique.Handle[session.Agent]
	// Eviction is why due Pods of the Node are not evicted.
	Eviction nodehealth.Delay
}

// MarkingHold returns why the Node is silent and not marked Unknown.
func (r *Result) MarkingHold() nodehealth.Delay {
	if r.Assessment.Health != nodehealth.Silent {
		return nodehealth.Delay{}
	}
	return r.Assessment.Delay
}

// withoutSigns returns the Result without what a sign of life changes.
func (r Result) withoutSigns() Result {
	r.Assessment = nodehealth.Assessment{Health: r.Assessment.Health, CutOff: r.Assessment.CutOff}
	delay := r.MarkingHold() // its message may differ with each self-check
	r.Assessment.Delay = nodehealth.Delay{Reason: delay.Reason, Since: delay.Since}
	r.LeaseRenewed, r.StatusUpdated = 0, 0
	return r
}

// next returns the Node after another pass, or n if nothing differs.
func (n *Node) next(s *nodehealth.NodeState, r Result, now monotonic.Instant) *Node {
	if n != nil && n.Object == s.Node && n.Shard == s.Ownership.Shard && n.Result == r {
		return n
	}
	next := &Node{Object: s.Node, Zone: s.Zone(), Ready: s.Ready(), Shard: s.Ownership.Shard, Result: r, ChangedAt: now}
	if n != nil && n.Held && r.Held && n.Assessment.Health == r.Assessment.Health && n.Ready == next.Ready && n.Object.UID == s.Node.UID {
		next.ChangedAt = n.ChangedAt
	}
	return next
}

// looksLike returns whether two states of a Node differ in their signs of life and resourceVersions
// at most.
func (n *Node) looksLike(other *Node) bool {
	return n.withoutSigns() == other.withoutSigns() && n.Shard == other.Shard && n.Zone == other.Zone && shownAlike(n.Object, other.Object)
}

// shownAlike returns whether readers see the same of two versions of a Node: its UID, taints and
// Ready condition.
func shownAlike(a, b *corev1.Node) bool {
	if a == b {
		return true
	}
	x, y := nodehealth.ConditionOf(a, corev1.NodeReady), nodehealth.ConditionOf(b, corev1.NodeReady)
	return a.UID == b.UID && (x == nil) == (y == nil) &&
		(x == nil || x.Status == y.Status && x.Reason == y.Reason && x.Message == y.Message && x.LastTransitionTime.Equal(&y.LastTransitionTime)) &&
		slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, func(s, t corev1.Taint) bool { return s.MatchTaint(&t) })
}
