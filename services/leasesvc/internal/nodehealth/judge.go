package nodehealth

import (
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
type Judgement struct {
	Health Health
	// Heard is the last sign of life, or the beginning of the grace period, by By.
	Heard monotonic.Instant
	By    Source
	// Deadline is when the node is silent if nothing is heard; 0 while a session keeps it alive, which has a deadline of its own.
	Deadline monotonic.Instant
}

// Judge tells how a node stands at the given time.
func (r Rules) Judge(now monotonic.Instant, m Memory, s *Subject) Judgement {
	heard, by := s.pulse.last()
	switch s.pulse.session {
	case SessionAlive:
		return Judgement{Health: Alive, Heard: now, By: Beats}
	case SessionSuspect:
		return Judgement{Health: Suspect, Heard: heard, By: by}
	}
	grace := r.Grace
	if s.traits.ready == "" {
		grace = r.StartupGrace
	}
	// Who was declared stays so until heard, reprieve or not.
	if s.traits.declared && (by == Reprieve || now > heard.Add(grace)) {
		return Judgement{Health: Dead, Heard: heard, By: by, Deadline: heard.Add(grace)}
	}
	if m.floor > heard {
		heard, by = m.floor, Reprieve
	}
	j := Judgement{Heard: heard, By: by, Deadline: heard.Add(grace)}
	if s.pulse.session == SessionExpired && s.pulse.expired > j.Deadline {
		j.Deadline, j.By = s.pulse.expired, Beats
	}
	switch {
	case now > j.Deadline:
		j.Health = Silent
	case s.traits.ready == "":
		j.Health = Starting
	case now.Sub(heard) > r.suspectAfter(grace) || s.pulse.session == SessionExpired:
		j.Health = Suspect
	default:
		j.Health = Alive
	}
	return j
}
