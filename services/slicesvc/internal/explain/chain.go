package explain

// Chain is the evidence for one Pod in one Service.
type Chain struct {
	Links []Link
	// FirstBroken is the index of the first broken link, -1 if there is none.
	FirstBroken int
	// Included says that a slice has the Pod. Settled says that the slices have the planned
	// endpoint.
	Included, Settled bool
}

// Explain returns the chain of the facts.
func Explain(f Facts) Chain {
	families := findFamilies(f)
	chain := Chain{FirstBroken: -1, Settled: !f.Pending}
	chain.add(f, serviceLink(f))
	for _, link := range selectorLinks(f) {
		chain.add(f, link)
	}
	chain.add(f, phaseLink(f))
	for _, family := range families {
		chain.add(f, addressLink(f, family, families))
	}
	chain.add(f, nodeLink(f), readinessLink(f), terminationLink(f), portsLink(f))
	for _, family := range families {
		chain.Included = chain.Included || len(family.places) > 0
		chain.Settled = chain.Settled && family.settled()
		chain.add(f, sliceLink(f, family))
	}
	chain.add(f, hintsLink(f, families))
	return chain
}

func (c *Chain) add(f Facts, links ...Link) {
	for _, link := range links {
		if link.Time.IsZero() {
			link.Time = f.Now
		}
		link.Finding = bounded(link.Finding)
		if link.Verdict == Broken && c.FirstBroken < 0 {
			c.FirstBroken = len(c.Links)
		}
		c.Links = append(c.Links, link)
	}
}
