package nodehealth

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Health is what is believed of a node.
type Health uint8

const (
	// Starting nodes have no Ready condition and time left to get one.
	Starting Health = iota
	// Alive nodes give signs of life, whatever they report.
	Alive
	// Suspect nodes have been silent for half their grace period, or their session is suspect.
	Suspect
	// Silent nodes have used up their grace period and are not declared yet.
	Silent
	// Dead nodes are Silent and declared.
	Dead
)

func (h Health) String() string {
	return [...]string{"starting", "alive", "suspect", "silent", "dead"}[h]
}

// Judgement is the health of a node at one moment, and what it rests on.
type Assessment struct {
	Health Health
	// Heard is the last sign of life, or the beginning of the grace period, by By. It is 0 where the owner of the session alone
	// knows: while that is suspect, and once it has expired without another sign of life.
	Heard monotonic.Instant
	By    SignSource
	// Deadline is when the node is silent if nothing is heard; 0 while a session keeps it alive, which has a deadline of its own.
	Deadline monotonic.Instant
}

// Judge tells how a node stands at the given time. It knows nothing better than others of a Node that is not in Charge here.
func (r Rules) Assess(now monotonic.Instant, m ClusterState, s *NodeState) Assessment {
	switch s.pulse.session {
	case SessionAlive:
		return Assessment{Health: Alive, Heard: now, By: SessionBeat}
	case SessionSuspect:
		return Assessment{Health: Suspect, By: SessionBeat}
	}
	if s.traits.declared {
		// Who was declared stays so until heard after it, reprieve or not.
		if raw := r.patience(s, 0, 0); raw.Heard <= s.declared || now > raw.Deadline {
			raw.Health = Dead
			return raw
		}
	}
	j := r.patience(s, m.floor, s.Ownership.HeldSince)
	switch {
	case now > j.Deadline:
		j.Health = Silent
	case s.traits.ready == "":
		j.Health = Starting
	case now.Sub(j.Heard) > r.suspectAfter(r.graceOf(s)) || s.pulse.session == SessionExpired:
		j.Health = Suspect
	default:
		j.Health = Alive
	}
	return j
}

func (r Rules) graceOf(s *NodeState) time.Duration {
	if s.traits.ready == "" {
		return r.StartupGracePeriod
	}
	return r.GracePeriod
}

// patience is until when a node without a living session may be silent, and what that is counted from: never from before floor,
// and from before since only where the session was kept here and expired. Whoever hands a shard over says which of its holders
// are silent and for how long; all others have a whole grace period in which to come.
func (r Rules) patience(s *NodeState, floor, since monotonic.Instant) Assessment {
	if s.pulse.session == SessionExpired {
		return r.afterExpiry(s, floor)
	}
	heard, by := s.pulse.last()
	if floor = max(floor, since); floor > heard {
		heard, by = floor, GraceStart
	}
	return Assessment{Heard: heard, By: by, Deadline: heard.Add(r.graceOf(s))}
}

// afterExpiry ends all patience with the session, unless the node gave signs of life in another way, or silence does not count.
func (r Rules) afterExpiry(s *NodeState, floor monotonic.Instant) Assessment {
	heard, by := s.pulse.contradiction()
	some := heard > 0
	if s.traits.ready == "" && s.pulse.begun >= heard {
		heard, by, some = s.pulse.begun, GraceStart, true // beating already, it has the time left to report
	}
	if floor > heard {
		heard, by, some = floor, GraceStart, true
	}
	if deadline := heard.Add(r.graceOf(s)); some && deadline > s.pulse.expired {
		return Assessment{Heard: heard, By: by, Deadline: deadline}
	}
	return Assessment{By: SessionBeat, Deadline: s.pulse.expired}
}
