package nodehealth

import (
	"maps"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

const (
	// checkEvery is the time between two self-checks while none is urgent.
	checkEvery = time.Second
	// checkSamples is how many Leases of silent nodes a self-check reads.
	checkSamples = 8
	// massSilenceWindow is the time within which nodes that fall silent may have one common cause.
	massSilenceWindow = 5 * time.Second
	// massSilenceNodes is how many nodes may fall silent within the window without a self-check;
	// massSilenceShare is the same as a share of the zone or shard. The larger number counts.
	massSilenceNodes = 3
	massSilenceShare = 0.05
)

// SelfCheck asks for Leases to be read past the cache.
type SelfCheck struct {
	// Urgent says that Nodes wait for it before they are marked Unknown.
	Urgent bool
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

// selfCheck returns a self-check: at once if Nodes wait for one, else every checkEvery. It samples
// silent nodes, and without them one Node after the other.
func (c ClusterState) selfCheck(now monotonic.Instant, waiting bool, silent []candidate, nodes []NodeState) *SelfCheck {
	_, suspended := c.Suspended()
	urgent := suspended || waiting
	if !urgent && now.Sub(c.checked) < checkEvery {
		return nil
	}
	check := &SelfCheck{Urgent: urgent, Samples: samples(silent)}
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

// SilentGroups names zones and shards of which many nodes fell silent within seconds. Both are
// ordered.
type SilentGroups struct {
	Zones  []string
	Shards []int
}

// Equal returns whether both name the same zones and shards.
func (m SilentGroups) Equal(other SilentGroups) bool {
	return slices.Equal(m.Zones, other.Zones) && slices.Equal(m.Shards, other.Shards)
}

// Empty returns whether nothing is named.
func (m SilentGroups) Empty() bool { return len(m.Zones) == 0 && len(m.Shards) == 0 }

// Zone returns whether a zone is named.
func (m SilentGroups) Zone(name string) bool {
	_, found := slices.BinarySearch(m.Zones, name)
	return found
}

func (m SilentGroups) shard(number int) bool {
	_, found := slices.BinarySearch(m.Shards, number)
	return found
}

// cohort counts nodes that may fall silent for one reason: those of a zone or a shard, with and
// without an exclude label, that this replica judges. recent is how many fell silent within the
// window.
type cohort struct{ nodes, recent int }

func (c *cohort) add(fell bool) {
	c.nodes++
	if fell {
		c.recent++
	}
}

func (c *cohort) many() bool {
	return c.recent > max(massSilenceNodes, int(massSilenceShare*float64(c.nodes)))
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

// silentGroups finds the zones and shards of which many nodes fell silent together.
func silentGroups(zones map[string]*zoneCount, shards map[int]*cohort) SilentGroups {
	var m SilentGroups
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		if zones[name].many() {
			m.Zones = append(m.Zones, name)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(shards)) {
		if shards[number].many() {
			m.Shards = append(m.Shards, number)
		}
	}
	return m
}
