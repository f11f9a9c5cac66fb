package nodehealth

import "slices"

// Check asks for a self-check: reading Leases past the cache.
type SelfCheck struct {
	// Urgent checks are what declarations wait for; others may be put off.
	Urgent bool
	// Samples are Leases to read, with the versions that the cache has. Without any, an answer is all that is wanted.
	Samples []Sample
}

// Sample is one Lease in one version.
type Sample struct{ Node, LeaseVersion string }

func sampleOf(s *NodeState) Sample { return Sample{Node: s.Node.Name, LeaseVersion: s.LeaseVersion()} }

// check asks for a self-check: at once when somebody waits for it, else once in a while. The Leases read are those that are in
// doubt, and else that of whichever node's turn it is, so that in time all are looked at.
func (p *pass) check(subjects []NodeState) {
	_, blind := p.memory.Blind()
	urgent := blind || p.plan.Held > 0
	if !urgent && p.now.Instant.Sub(p.memory.checked) < checkEvery {
		return
	}
	check := &SelfCheck{Urgent: urgent, Samples: p.doubtful(subjects)}
	if len(check.Samples) == 0 && len(subjects) > 0 {
		turn := int(p.now.Instant.Sub(0)/checkEvery) % len(subjects)
		check.Samples = []Sample{sampleOf(&subjects[turn])}
	}
	p.plan.SelfCheck = check
}

// doubtful are the Leases of silent nodes and the one that the cache is behind.
func (p *pass) doubtful(subjects []NodeState) []Sample {
	var doubtful []Sample
	slices.SortFunc(p.silent, func(a, b silence) int { return compareSubjects(a.NodeState, b.NodeState) })
	for _, s := range p.silent[:min(len(p.silent), samples)] {
		doubtful = append(doubtful, sampleOf(s.NodeState))
	}
	if !p.memory.stale.on {
		return doubtful
	}
	for i := range subjects {
		if subjects[i].Node.Name == p.memory.stalest.Node {
			doubtful = append(doubtful, sampleOf(&subjects[i]))
		}
	}
	return doubtful
}
