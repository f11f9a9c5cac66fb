package nodehealth

import (
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

const (
	// checkEvery is the time between two self-checks. With promptAnswer it is less than the 3.6 s
	// from when a living kubelet has written its Lease at the latest to the mark: kube-apiserver
	// worked after that, or nothing is marked.
	checkEvery = 2 * time.Second
	// checkSamples is how many Leases of silent nodes a self-check reads.
	checkSamples = 8
)

// SelfCheck asks for Leases to be read past the cache.
type SelfCheck struct {
	// Samples are Leases to read, with their versions in the cache. If it is empty, any answer of
	// kube-apiserver passes the check.
	Samples []Sample
}

// Sample is one version of the Lease of a Node. A version with the same RenewTime is no newer one:
// another writer may change labels and annotations at any rate.
type Sample struct {
	Node, LeaseVersion string
	RenewTime          time.Time
}

// LiveLease is the Lease of a Node as kube-apiserver has it.
type LiveLease struct {
	Node  string
	Lease Lease
}

// Renews returns whether the Lease was renewed after a sample of it.
func (l Lease) Renews(sample Sample) bool {
	return Newer(l.Version, sample.LeaseVersion) && !l.RenewTime.Equal(sample.RenewTime)
}

func sampleOf(s *NodeState) Sample {
	return Sample{Node: s.Node.Name, LeaseVersion: s.LeaseVersion(), RenewTime: s.signs.lease.renewTime}
}

// selfCheck returns a self-check: every checkEvery, and at once while none passes. It samples
// silent nodes, and without them one Node after the other.
func (c ClusterState) selfCheck(now monotonic.Instant, silent []candidate, nodes []NodeState) *SelfCheck {
	if !c.unusable.Active() && c.checked > 0 && now.Sub(c.checked) < checkEvery {
		return nil
	}
	check := &SelfCheck{Samples: samples(silent)}
	if len(check.Samples) == 0 && len(nodes) > 0 {
		next := int(now.Sub(0)/checkEvery) % len(nodes)
		check.Samples = []Sample{sampleOf(&nodes[next])}
	}
	return check
}

// samples returns Leases of silent nodes.
func samples(silent []candidate) []Sample {
	var samples []Sample
	slices.SortFunc(silent, func(a, b candidate) int { return compareNodes(a.node, b.node) })
	for _, s := range silent[:min(len(silent), checkSamples)] {
		samples = append(samples, sampleOf(s.node))
	}
	return samples
}
