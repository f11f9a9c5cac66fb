package nodehealth

import (
	"slices"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// SelfCheck asks for Leases to be read past the cache.
type SelfCheck struct {
	// Urgent says that Nodes wait for it before they are marked Unknown.
	Urgent bool
	// Samples are Leases to read, with their versions in the cache. If it is empty, any answer of
	// kube-apiserver passes the check.
	Samples []Sample
}

func sampleOf(s *NodeState) Sample { return Sample{Node: s.Node.Name, LeaseVersion: s.LeaseVersion()} }

// selfCheck returns a self-check: at once if Nodes wait for one, else every checkEvery. It samples
// silent nodes, and without them one Node after the other.
func (c ClusterState) selfCheck(now monotonic.Instant, waiting bool, silent []silentNode, nodes []NodeState) *SelfCheck {
	_, blind := c.Blind()
	urgent := blind || waiting
	if !urgent && now.Sub(c.checked) < checkEvery {
		return nil
	}
	check := &SelfCheck{Urgent: urgent, Samples: c.suspectLeases(silent, nodes)}
	if len(check.Samples) == 0 && len(nodes) > 0 {
		next := int(now.Sub(0)/checkEvery) % len(nodes)
		check.Samples = []Sample{sampleOf(&nodes[next])}
	}
	return check
}

// suspectLeases returns Leases of silent nodes, and the Lease that is newer than in the cache.
func (c ClusterState) suspectLeases(silent []silentNode, nodes []NodeState) []Sample {
	var suspect []Sample
	slices.SortFunc(silent, func(a, b silentNode) int { return compareNodes(a.NodeState, b.NodeState) })
	for _, s := range silent[:min(len(silent), checkSamples)] {
		suspect = append(suspect, sampleOf(s.NodeState))
	}
	if !c.stale.on {
		return suspect
	}
	for i := range nodes {
		if nodes[i].Node.Name == c.newest.Node {
			suspect = append(suspect, sampleOf(&nodes[i]))
		}
	}
	return suspect
}

// fellSilent returns whether a Node counts for a mass silence: its deadline passed within the
// window, or since the last self-check. A Node that was marked Unknown before this process saw its
// silence does not count.
func (c ClusterState) fellSilent(now monotonic.Instant, s *NodeState, a Assessment) bool {
	past := now.Sub(a.Deadline)
	switch a.Health {
	case Silent:
		return past < massSilenceWindow || a.Deadline >= c.checked
	case Dead:
		return past < massSilenceWindow && past >= 0 && a.By != GraceStart && s.unknownSince >= a.Deadline
	}
	return false
}

// suspects returns whether a Node is part of a mass silence and fell silent since the last
// self-check.
func (c ClusterState) suspects(m MassSilence, s *NodeState, a Assessment) bool {
	return a.Deadline >= c.checked && m.Has(s.traits.zone, s.Ownership.Shard)
}
