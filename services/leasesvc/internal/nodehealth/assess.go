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
	switch s.signs.session {
	case session.Alive:
		return Assessment{Health: Alive, Heard: now, By: SessionBeat}
	case session.Suspect:
		return Assessment{Health: Suspect, By: SessionBeat}
	}
	if s.traits.unknown {
		// A Node that is marked stays dead until a later sign of life. A new grace period does not
		// revive it.
		if a := r.deadline(s, 0, 0); a.Heard <= s.unknownSince || now > a.Deadline {
			a.Health = Dead
			return a
		}
	}
	a := r.deadline(s, c.graceStart, s.Ownership.HeldSince)
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

// deadline returns Heard, By and Deadline of a node without a living session. The grace period
// starts at graceStart or heldSince at the earliest. heldSince does not count for a session that
// expired here: the previous holder of the shard handed over its silence.
func (r Rules) deadline(s *NodeState, graceStart, heldSince monotonic.Instant) Assessment {
	if s.signs.session == session.Expired {
		return r.deadlineAfterExpiry(s, graceStart)
	}
	heard, by := s.signs.last()
	if start := max(graceStart, heldSince); start > heard {
		heard, by = start, GraceStart
	}
	return Assessment{Heard: heard, By: by, Deadline: heard.Add(r.graceOf(s))}
}

// deadlineAfterExpiry returns the expiry of the session, unless another sign of life or a new grace
// period allows more.
func (r Rules) deadlineAfterExpiry(s *NodeState, graceStart monotonic.Instant) Assessment {
	heard, by := s.signs.lastBesideSession()
	found := heard > 0
	if s.traits.ready == "" && s.signs.first >= heard {
		heard, by, found = s.signs.first, GraceStart, true // a node that beat keeps its startup grace period
	}
	if graceStart > heard {
		heard, by, found = graceStart, GraceStart, true
	}
	if deadline := heard.Add(r.graceOf(s)); found && deadline > s.signs.expired {
		return Assessment{Heard: heard, By: by, Deadline: deadline}
	}
	return Assessment{By: SessionBeat, Deadline: s.signs.expired}
}

// graceOf returns the grace period of a Node.
func (r Rules) graceOf(s *NodeState) time.Duration {
	if s.traits.ready == "" {
		return r.StartupGracePeriod
	}
	return r.GracePeriod
}
