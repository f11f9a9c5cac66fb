package nodehealth

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Health is the assessed health of a node.
type Health uint8

const (
	// Starting nodes have no Ready condition, and their startup grace period has not ended.
	Starting Health = iota
	// Alive nodes give signs of life, whatever their Ready condition is.
	Alive
	// Suspect nodes have been silent for half their grace period, or their session is suspect.
	Suspect
	// Silent nodes have used up their grace period and are not marked Unknown yet.
	Silent
	// Dead nodes are silent and marked Unknown.
	Dead
)

func (h Health) String() string {
	return [...]string{"starting", "alive", "suspect", "silent", "dead"}[h]
}

// Assessment is the health of a node at one moment, with its reasons.
type Assessment struct {
	Health Health
	// Heard is the last sign of life, or with GraceStart the start of the grace period. It is 0 if
	// only the session table knows: while the session is suspect, and after it expired without
	// another sign of life.
	Heard monotonic.Instant
	By    SignSource
	// Deadline is when the node becomes silent. It is 0 while a session keeps it alive, which has a
	// deadline of its own.
	Deadline monotonic.Instant
}

// Assess returns the health of a Node whose shard this replica holds.
func (r Rules) Assess(now monotonic.Instant, c ClusterState, s *NodeState) Assessment {
	if s.signs.sessionSpeaks() && !r.kubeletStopped(now, c, s) {
		if s.signs.session == session.Alive {
			return Assessment{Health: Alive, Heard: now, By: SessionBeat}
		}
		return Assessment{Health: Suspect, By: SessionBeat}
	}
	if s.traits.unknown {
		// A Node that is marked stays dead until a later sign of life. A new grace period does not
		// revive it.
		if a := r.deadline(s, ClusterState{}, Ownership{}); a.Heard <= s.unknownSince || now > a.Deadline {
			a.Health = Dead
			return a
		}
	}
	a := r.deadline(s, c, s.Ownership)
	switch {
	case now > a.Deadline:
		a.Health = Silent
	case s.traits.ready == "":
		a.Health = Starting
	case now.Sub(a.Heard) > r.graceOf(s)/2 || s.signs.session == session.Expired:
		a.Health = Suspect
	default:
		a.Health = Alive
	}
	return a
}

// kubeletStopped returns whether the kubelet of a Node with a living session gave signs of its own,
// and none within its grace period. The session then proves an agent, and no kubelet. A session
// whose agent observes the kubelet proves the kubelet, and ends when it does.
func (r Rules) kubeletStopped(now monotonic.Instant, c ClusterState, s *NodeState) bool {
	if s.signs.observes || s.signs.lastRenewal() == 0 {
		return false
	}
	return now > r.deadline(s, c, s.Ownership).Deadline
}

// deadline returns Heard, By and Deadline of a node without a session that speaks for it. The grace
// period starts at the grace start of the cluster at the earliest, and when this replica gained the
// shard, less the silence that it inherited. The gain of the shard does not count for a session
// that expired here: the previous holder of the shard handed over its silence.
//
// The agent of a Node that falls silent while this replica refuses connections or holders for lack
// of capacity may be refused, and gets the time to come back; see refusals. An agent that is heard
// is not refused.
func (r Rules) deadline(s *NodeState, c ClusterState, o Ownership) Assessment {
	a := r.deadlineOfSigns(s, c, o)
	if !s.signs.sessionSpeaks() && s.signs.reportedSince == 0 {
		a.Deadline = max(a.Deadline, c.refusals.verdict(a.Deadline))
	}
	return a
}

func (r Rules) deadlineOfSigns(s *NodeState, c ClusterState, o Ownership) Assessment {
	if s.signs.session == session.Expired {
		return r.deadlineAfterExpiry(s, c)
	}
	inherited := c.inherited(o)
	heard, by := s.signs.last()
	if by == GraceStart {
		heard = heard.Add(-inherited)
	}
	start := o.HeldSince.Add(-inherited) // before the process began, perhaps
	if restart := c.silenceStart(r.GracePeriod); restart > 0 {
		start = max(start, restart)
	}
	if start > heard {
		heard, by = start, GraceStart
	}
	deadline := heard.Add(r.graceOf(s))
	if inherited > 0 && heard < o.HeldSince {
		deadline = max(deadline, r.leastDeadline(s, o))
	}
	deadline = deadline.Add(c.slow.took)
	if s.hadSession() {
		deadline = max(deadline, c.receiver.verdict(heard, r.GracePeriod))
	}
	return Assessment{Heard: heard, By: by, Deadline: deadline}
}

// deadlineAfterExpiry returns the expiry of the session, unless another sign of life, a new grace
// period or a doubt about the receiver allows more.
func (r Rules) deadlineAfterExpiry(s *NodeState, c ClusterState) Assessment {
	a := Assessment{By: SessionBeat, Deadline: s.signs.expired}
	if s.signs.reportedSince == 0 {
		a.Deadline = max(a.Deadline, c.receiver.verdict(s.signs.suspected, r.GracePeriod))
	}
	allow := func(heard monotonic.Instant, by SignSource, grace time.Duration) {
		if deadline := heard.Add(grace + c.slow.took); deadline > a.Deadline {
			a = Assessment{Heard: heard, By: by, Deadline: deadline}
		}
	}
	kubelet, by := s.signs.lastOfKubelet(r.GracePeriod)
	switch grace, since, reported := r.reportedGrace(s, c, kubelet); {
	case kubelet == 0:
	case reported:
		allow(kubelet, by, grace)
		if a.Deadline < since {
			a = Assessment{Heard: kubelet, By: by, Deadline: since}
		}
	default:
		allow(kubelet, by, r.graceOf(s))
	}
	if s.signs.released > 0 {
		allow(s.signs.released, SessionBeat, r.graceOf(s)) // the end of an earlier session that had not expired
	}
	if s.traits.ready == "" || s.signs.kubeletsLease || s.newerThanSession() {
		// A node that beat keeps its startup grace period. A kubelet that renews the Lease may have
		// done so just before this process began.
		allow(s.signs.first, GraceStart, r.graceOf(s))
	}
	if start := c.silenceStart(r.GracePeriod); start > 0 {
		allow(start, GraceStart, r.graceOf(s))
	}
	a.Deadline = max(a.Deadline, r.leastExpiry(s, c))
	return a
}

// leastExpiry returns the first moment of this term at which an expired session may count. One that
// expired here may rest on an inherited silence, or on an old beat that came through another
// replica: its agent has the time to reach this replica. A holder that this replica refused in this
// term has the full grace period.
func (r Rules) leastExpiry(s *NodeState, c ClusterState) monotonic.Instant {
	switch o := s.Ownership; {
	case o.HeldSince == 0:
		return 0
	case c.refusedIn(o):
		return o.HeldSince.Add(r.graceOf(s))
	case s.signs.expiredHere:
		return o.HeldSince.Add(min(r.LeastSilence, r.graceOf(s)))
	}
	return 0
}

// reportedGrace returns how long the kubelet of an expired session may give no sign of its own, if
// its agent lives and says that the kubelet is silent, and the first moment at which that may
// count. It is two renewals of the kubelet's Lease. Without such an agent, reported is false. It
// also is while kube-apiserver may take no writes: other kubelets renew no Lease either.
func (r Rules) reportedGrace(s *NodeState, c ClusterState, own monotonic.Instant) (grace time.Duration, since monotonic.Instant, reported bool) {
	if s.signs.reportedSince == 0 || s.signs.leaseDuration <= 0 || s.traits.ready == "" || c.renewals.paused {
		return 0, 0, false
	}
	grace = min(max(s.signs.leaseDuration/2, r.SessionGrace), r.GracePeriod)
	if c.renewals.excuse(own, grace) {
		return 0, 0, false
	}
	since = s.signs.reportedSince
	if c.renewals.resumed > 0 {
		since = max(since, c.renewals.resumed.Add(grace))
	}
	return grace, since, true
}

// newerThanSession returns whether the Node appeared while this replica held its shard, with a
// session that was expired already: that is the session of a deleted Node of the same name.
func (s *NodeState) newerThanSession() bool {
	return !s.signs.expiredHere && s.signs.first > s.Ownership.HeldSince
}

// graceOf returns the grace period of a Node.
func (r Rules) graceOf(s *NodeState) time.Duration {
	if s.traits.ready == "" {
		return r.StartupGracePeriod
	}
	return r.GracePeriod
}
