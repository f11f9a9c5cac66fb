package nodehealth

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// kubeletRenewals is the time of two renewals of a kubelet's Lease, unless the Lease lasts longer
// than by default. A process observes a Node for as long before the silence under other holders
// counts: the kubelet may have renewed the Lease before the process read it, and only the next
// renewal shows that.
const kubeletRenewals = 20 * time.Second

// Silence is for how long the holders of a shard have observed a Node without a sign of life. The
// next holder inherits it.
type Silence struct {
	Name string
	UID  types.UID
	For  time.Duration
}

// Silences are the silent Nodes of the held shards that have no session and are not marked Unknown.
type Silences struct {
	// ByShard has an entry for each held shard with Nodes.
	ByShard map[int][]Silence
	// Doubted says that this replica may not hear living Nodes. What it inherited is passed on for
	// the Nodes that are still silent, and nothing is added.
	Doubted bool
}

// Silences returns what the next holders of the held shards inherit. Doubts about the observation
// of this replica are never inherited as silence: it is uncertain, it doubts its receiver, it
// refused holders or connections, or most Nodes are silent. The silence of a session is in the
// checkpoint of the sessions.
func (r Rules) Silences(now monotonic.Instant, c ClusterState, nodes []NodeState) Silences {
	_, uncertain := c.Uncertain()
	silences := Silences{ByShard: map[int][]Silence{}, Doubted: uncertain || c.receiver.on || c.mostSilent}
	for i := range nodes {
		s := &nodes[i]
		if !s.Ownership.Held {
			continue
		}
		shard := s.Ownership.Shard
		of := silences.ByShard[shard]
		if of == nil {
			of = []Silence{}
		}
		if silence := r.silence(now, c, s, silences.Doubted); silence > 0 {
			of = append(of, Silence{Name: s.Node.Name, UID: s.Node.UID, For: silence})
		}
		silences.ByShard[shard] = of
	}
	return silences
}

// silence returns the silence of a Node that the next holder of its shard inherits; 0 for none.
func (r Rules) silence(now monotonic.Instant, c ClusterState, s *NodeState, doubted bool) time.Duration {
	switch silence := r.quiet(now, c, s); {
	case s.traits.unknown:
		return 0
	case doubted || c.refusedIn(s.Ownership):
		return r.stillInherited(c, s)
	default:
		return silence
	}
}

// quiet returns for how long a Node without a session is silent; 0 while that is shorter than the
// time between two signs of a living node, or than a living agent needs to reach this replica.
func (r Rules) quiet(now monotonic.Instant, c ClusterState, s *NodeState) time.Duration {
	if s.signs.session != session.Gone {
		return 0
	}
	least := max(r.FirstBeat, min(max(r.GracePeriod/4, 5*s.signs.leaseDuration/16), r.GracePeriod/2))
	if silence := now.Sub(r.deadline(s, c, s.Ownership).Heard); silence >= least {
		return silence
	}
	return 0
}

// withMostSilent notes whether most Nodes of the held shards are silent, of those whose kubelet
// renews the Lease or of the others. Then this replica may be the cause, and no silence under other
// holders counts.
func (r Rules) withMostSilent(now monotonic.Instant, c ClusterState, nodes []NodeState) ClusterState {
	c.mostSilent = false
	var kubelets, others sessionCount
	for i := range nodes {
		s := &nodes[i]
		if !s.Ownership.Held || s.traits.unknown {
			continue
		}
		count := &others
		if s.signs.kubeletsLease {
			count = &kubelets
		}
		if s.signs.session == session.Suspect || s.signs.session == session.Expired || r.quiet(now, c, s) > 0 {
			count.silent++
		} else {
			count.heard++
		}
	}
	c.mostSilent = kubelets.silent > kubelets.heard || others.silent > others.heard
	return c
}

// missing returns whether leasesvc renewed the Lease of a Node last, so that the Node had a
// session, and this replica has heard nothing of it. An agent that is a little late gives no reason
// to doubt: half of the time counts between LeastSilence and the grace period.
func (r Rules) missing(now monotonic.Instant, c ClusterState, s *NodeState) bool {
	return s.hadSession() && now.Sub(r.deadline(s, c, s.Ownership).Heard) >= min((r.LeastSilence+r.GracePeriod)/2, r.GracePeriod*7/8)
}

// hadSession returns whether a Node without a session had one at a former leader, which may be an
// earlier term of this replica, and is not marked.
func (s *NodeState) hadSession() bool {
	return s.Ownership.Held && s.signs.session == session.Gone && s.signs.released <= s.Ownership.HeldSince && s.signs.lease.version != "" && !s.signs.kubeletsLease && !s.traits.unknown
}

// stillInherited returns the part of the inherited silence that followed the last sign of life.
func (r Rules) stillInherited(c ClusterState, s *NodeState) time.Duration {
	ended := c.silenceStart(r.GracePeriod)
	if heard, by := s.signs.last(); by != GraceStart {
		ended = max(ended, heard)
	}
	if s.signs.session != session.Gone {
		return 0
	}
	if ended == 0 {
		return s.Ownership.Inherited
	}
	return max(0, min(s.Ownership.Inherited, s.Ownership.HeldSince.Sub(ended)))
}

// inherited returns the silence under other holders that counts here. Once this replica refused a
// holder or a connection in this term, a Node that it has not heard may be alive. So it may while
// most Nodes are silent.
func (c ClusterState) inherited(o Ownership) time.Duration {
	if c.mostSilent || c.refusedIn(o) {
		return 0
	}
	return o.Inherited
}

// refusedIn returns whether a present series of refusals may concern a Node whose shard was gained.
// A series that was long at that time does not, so that each change of the leader during an attack
// costs no further grace period.
func (c ClusterState) refusedIn(o Ownership) bool {
	return c.refusals.last > 0 && c.refusals.last >= o.HeldSince && o.HeldSince <= c.refusals.since.Add(MaxReceiverDoubt)
}

// leastDeadline returns the first moment at which a Node may be silent that was silent under other
// holders of the shard.
func (r Rules) leastDeadline(s *NodeState, o Ownership) monotonic.Instant {
	heard := s.signs.first.Add(max(min(kubeletRenewals, r.GracePeriod/2), s.signs.leaseDuration/2))
	return min(max(o.HeldSince.Add(r.LeastSilence), heard), o.HeldSince.Add(r.graceOf(s)))
}
