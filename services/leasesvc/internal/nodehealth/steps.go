package nodehealth

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// candidate is a step that may be made: what it takes to choose among many, of which few are made.
type candidate struct {
	kind    StepKind
	subject *NodeState
	// silence is why the node is to be declared, for Declare.
	silence Assessment
	// execute is how the NoExecute taints have to change, and counted tells that it takes the zone's turn.
	execute taintChange
	counted bool
}

// decide finds the candidates of all nodes, without regard to turns and budget.
func (p *pass) decide() {
	_, blind := p.memory.Blind()
	p.candidates = make([]candidate, 0, len(p.silent))
	for _, s := range p.silent {
		switch {
		// The floor may have been raised a moment ago, so the deadline is looked at again.
		case p.Assess(p.now.Instant, p.memory, s.NodeState).Health != Silent:
		case blind || p.doubts(s):
			p.plan.Held++
		case !s.Busy:
			p.candidates = append(p.candidates, candidate{kind: MarkUnknown, subject: s.NodeState, silence: s.Assessment})
		}
	}
	for _, s := range p.subjects {
		if !s.Busy && p.due(s, blind) {
			p.amend(s, blind)
		}
	}
}

// due tells whether a step could do anything for a Node now. Thousands may wait for their turn, and each is a glance only.
func (p *pass) due(s *NodeState, blind bool) bool {
	switch {
	case s.Ownership.Held && s.traits.drifted:
		return true
	case !p.mandate.HoldsZones:
		return false
	case p.memory.down:
		return s.traits.tainted
	case s.traits.execute == inTurn:
		return !blind && p.turn(s.traits.zone)
	}
	return s.traits.execute == atOnce
}

// turn tells whether a zone has its turn.
func (p *pass) turn(zone string) bool {
	return p.memory.turns[zone].come(p.now.Instant, p.zones[zone].Rate)
}

func (p *pass) declare(c *candidate) Step {
	s := silence{NodeState: c.subject, Assessment: c.silence}
	return Step{
		Kind: MarkUnknown, Node: s.Node, Zone: s.traits.zone, Shard: s.Ownership.Shard, NeedsShard: true, LeaseVersion: s.LeaseVersion(),
		Conditions: unknownConditions(s.Node, p.now.Wall),
		Reason:     p.reasonOfSilence(s),
	}
}

func (p *pass) reasonOfSilence(s silence) string {
	since := func(i monotonic.Instant) time.Duration { return p.now.Instant.Sub(i).Round(time.Millisecond) }
	switch {
	case s.By == SessionBeat && s.pulse.session == SessionExpired:
		return fmt.Sprintf("its session expired %v ago, and nothing else is heard", since(s.Deadline))
	case s.By == GraceStart:
		return fmt.Sprintf("no sign of life in the %v that count", since(s.Heard))
	}
	return fmt.Sprintf("no sign of life for %v, the last was of its %v", since(s.Heard), s.By)
}

// act picks the most urgent steps and lets zones take their turns. A node whose turn has not come is tidied at least.
func (p *pass) act() {
	slices.SortFunc(p.candidates, func(a, b candidate) int {
		if a.kind != b.kind {
			return cmp.Compare(a.kind, b.kind)
		}
		return compareSubjects(a.subject, b.subject)
	})
	for i := range p.candidates {
		if len(p.plan.Steps) == p.mandate.MaxSteps {
			return
		}
		step := p.step(&p.candidates[i])
		if step.RateLimited {
			p.memory = p.memory.taken(p.now.Instant, step.Zone)
		}
		if step.Conditions != nil || step.Taints != nil || step.Labels != nil {
			p.plan.Steps = append(p.plan.Steps, step)
		}
	}
}

// step makes the step of a candidate, or what is left of it if its zone's turn has been taken by another one.
func (p *pass) step(c *candidate) Step {
	if c.kind == MarkUnknown {
		return p.declare(c)
	}
	if c.counted && !p.turn(c.subject.traits.zone) {
		return p.amendment(&candidate{kind: SyncTaints, subject: c.subject})
	}
	return p.amendment(c)
}
