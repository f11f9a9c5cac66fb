package nodehealth

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// pass is one call of Plan.
type pass struct {
	Rules
	now      Moment
	mandate  Authority
	memory   ClusterState
	plan     Plan
	zones    map[string]*tally
	shards   map[int]*cohort
	subjects []*NodeState // those a step may be for
	silent   []silence

	candidates []candidate
}

// tally is a zone while it is counted.
type tally struct {
	Zone
	cohort
}

// silence is a node that is to be declared.
type silence struct {
	*NodeState
	Assessment
}

func (p *pass) survey(s *NodeState) {
	z := p.zones[s.traits.zone]
	if z == nil {
		z = &tally{Zone: Zone{Name: s.traits.zone}}
		p.zones[s.traits.zone] = z
	}
	z.take(s)
	if s.banished > 0 && !p.mandate.HoldsZones {
		// Whoever has the zones next goes on at the pace of the one before.
		p.memory = p.memory.observed(s.banished, s.traits.zone)
	}
	silent := s.Ownership.Held && p.judge(s, z)
	if !silent && (s.Ownership.Held && s.traits.drifted || p.mandate.HoldsZones && (s.traits.tainted || s.traits.execute != inLine)) {
		p.subjects = append(p.subjects, s)
	}
}

// take counts a node in its zone.
func (z *tally) take(s *NodeState) {
	if !s.traits.excluded {
		z.Size++
		if s.traits.ready != corev1.ConditionTrue {
			z.NotReady++
		}
	}
	if s.traits.execute == inTurn {
		z.Waiting++
	}
}

// judge takes in how a node in charge here stands, and tells whether it is to be declared.
func (p *pass) judge(s *NodeState, z *tally) (silent bool) {
	j := p.Assess(p.now.Instant, p.memory, s)
	p.plan.Counts[j.Health]++
	of := p.shards[s.Ownership.Shard]
	if of == nil {
		of = &cohort{}
		p.shards[s.Ownership.Shard] = of
	}
	fell := p.fellSilent(s, j)
	z.add(fell)
	of.add(fell)
	switch j.Health {
	case Silent:
		p.silent = append(p.silent, silence{NodeState: s, Assessment: j})
	case Dead:
		p.plan.Dead = append(p.plan.Dead, s)
	}
	return j.Health == Silent
}

// count works out the states of the zones, and whether everything is down.
func (p *pass) count() {
	counted, down := 0, true
	for _, z := range p.zones {
		z.State = p.stateOf(z.Zone)
		z.Rate = p.rateOf(z.Zone)
		if z.Size > 0 {
			counted++
			down = down && z.State == FullDisruption
		}
	}
	down = down && counted > 0
	for _, z := range p.zones {
		if down {
			z.Rate = 0
		}
		p.plan.Zones = append(p.plan.Zones, z.Zone)
	}
	slices.SortFunc(p.plan.Zones, func(a, b Zone) int { return cmp.Compare(a.Name, b.Name) })
	p.memory = p.memory.after(p.now.Instant, down)
}
