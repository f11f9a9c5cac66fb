package nodehealth

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// decide makes the steps of all nodes, without regard to turns and budget.
func (p *pass) decide() {
	_, blind := p.memory.Blind()
	for _, s := range p.silent {
		switch {
		// The floor may have been raised a moment ago, so the deadline is looked at again.
		case p.Judge(p.now.Instant, p.memory, s.Subject).Health != Silent:
		case blind || p.doubts(s):
			p.plan.Held++
		case !s.Busy:
			p.steps = append(p.steps, p.declare(s))
		}
	}
	for _, s := range p.subjects {
		if !s.Busy && p.due(s, blind) {
			p.amend(s, blind)
		}
	}
}

// due tells whether a step could do anything for a Node now. Thousands may wait for their turn, and each is a glance only.
func (p *pass) due(s *Subject, blind bool) bool {
	switch {
	case s.Charge.Held && s.traits.drifted:
		return true
	case !p.mandate.Zones:
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

func (p *pass) declare(s silence) Step {
	return Step{
		Kind: Declare, Node: s.Node, Zone: s.traits.zone, Shard: s.Charge.Shard, OfShard: true, LeaseVersion: s.LeaseVersion(),
		Conditions: unknownConditions(s.Node, p.now.Wall),
		Reason:     p.reasonOfSilence(s),
	}
}

func (p *pass) reasonOfSilence(s silence) string {
	since := func(i monotonic.Instant) time.Duration { return p.now.Instant.Sub(i).Round(time.Millisecond) }
	switch {
	case s.By == Beats && s.pulse.session == SessionExpired:
		return fmt.Sprintf("its session expired %v ago, and nothing else is heard", since(s.Deadline))
	case s.By == Reprieve:
		return fmt.Sprintf("no sign of life in the %v that count", since(s.Heard))
	}
	return fmt.Sprintf("no sign of life for %v, the last was of its %v", since(s.Heard), s.By)
}

// act picks the most urgent steps and lets zones take their turns. A node whose turn has not come is tidied at least.
func (p *pass) act() {
	slices.SortFunc(p.steps, func(a, b Step) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), compareNodes(a.Node, b.Node))
	})
	for _, step := range p.steps {
		if len(p.plan.Steps) == p.mandate.Steps {
			return
		}
		if step.Counted && !p.turn(step.Zone) {
			step = p.withoutTurn(step)
		}
		if step.Counted {
			p.memory = p.memory.taken(p.now.Instant, step.Zone)
		}
		if step.Conditions != nil || step.Taints != nil || step.Labels != nil {
			p.plan.Steps = append(p.plan.Steps, step)
		}
	}
}
