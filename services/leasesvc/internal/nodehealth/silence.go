package nodehealth

import "slices"

// WhyDoubted says for people why nothing is declared in a zone or shard that is in doubt.
const MassSilenceReason = "many nodes of one zone or shard fell silent within 5s, so a self-check comes first"

// Doubt names the zones and the shards of which more than a few nodes fell silent within seconds, each ordered.
type MassSilence struct {
	Zones  []string
	Shards []int
}

// cohort is nodes of which many may fall silent for one reason: those of a zone or a shard that are in charge here, excluded
// ones too. recent is how many did within the window.
type cohort struct{ nodes, recent int }

func (c *cohort) add(fell bool) {
	c.nodes++
	if fell {
		c.recent++
	}
}

func (c *cohort) many() bool { return c.recent > max(fewTogether, int(manyShare*float64(c.nodes))) }

// fellSilent tells whether a node counts among those that fell silent together: its silence became too long within the window,
// or it has been held since. One that was declared before its silence was known here fell silent at some time in the past.
func (p *pass) fellSilent(s *NodeState, j Assessment) bool {
	past := p.now.Instant.Sub(j.Deadline)
	switch j.Health {
	case Silent:
		return past < together || j.Deadline >= p.memory.checked
	case Dead:
		return past < together && past >= 0 && j.By != GraceStart && s.declared >= j.Deadline
	}
	return false
}

// doubt finds the zones and shards of which many nodes fell silent together.
func (p *pass) doubt() {
	for name, z := range p.zones {
		if z.many() {
			p.plan.MassSilence.Zones = append(p.plan.MassSilence.Zones, name)
		}
	}
	for number, s := range p.shards {
		if s.many() {
			p.plan.MassSilence.Shards = append(p.plan.MassSilence.Shards, number)
		}
	}
	slices.Sort(p.plan.MassSilence.Zones)
	slices.Sort(p.plan.MassSilence.Shards)
}

// doubts tells whether a node fell silent together with many others, and since the last self-check.
func (p *pass) doubts(s silence) bool {
	return s.Deadline >= p.memory.checked && p.plan.MassSilence.Has(s.traits.zone, s.Ownership.Shard)
}

// Equal tells whether the same is in doubt.
func (d MassSilence) Equal(other MassSilence) bool {
	return slices.Equal(d.Zones, other.Zones) && slices.Equal(d.Shards, other.Shards)
}

// Has tells whether a zone or a shard is in doubt.
func (d MassSilence) Has(zone string, shard int) bool {
	_, sharded := slices.BinarySearch(d.Shards, shard)
	return sharded || d.Zone(zone)
}

// Zone tells whether a zone is in doubt.
func (d MassSilence) Zone(name string) bool {
	_, doubted := slices.BinarySearch(d.Zones, name)
	return doubted
}

// WhyHeld says why a node that is silent is not declared; empty when it is about to be, or not silent.
func (p *Plan) HeldBy(m ClusterState, s *NodeState, j Assessment) string {
	blindness, blind := m.Blind()
	switch {
	case j.Health != Silent:
		return ""
	case blind:
		return blindness.String()
	case j.Deadline >= m.checked && p.MassSilence.Has(s.traits.zone, s.Ownership.Shard):
		return MassSilenceReason
	}
	return ""
}
