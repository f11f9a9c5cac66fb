package nodehealth

import (
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// ZoneState is how much of a zone is disrupted.
type ZoneState uint8

const (
	// Normal zones have few nodes that are not ready.
	Normal ZoneState = iota
	// PartialDisruption zones have so many nodes that are not ready that the zone itself may be the
	// cause.
	PartialDisruption
	// FullDisruption zones have no ready node.
	FullDisruption
)

func (s ZoneState) String() string { return [...]string{"normal", "partial", "full"}[s] }

// Zone is one zone at one moment. Size and NotReady leave out Nodes with an exclude label.
type Zone struct {
	Name string
	// Size is how many nodes count. NotReady is how many of them are not ready or have no Ready
	// condition.
	Size, NotReady int
	// Waiting is how many of its Nodes, also those with an exclude label, wait for a NoExecute
	// taint.
	Waiting int
	State   ZoneState
	// Rate is how many of its Nodes get a NoExecute taint per second.
	Rate float64
}

func (r Rules) stateOf(z Zone) ZoneState {
	switch {
	case z.Size > 0 && z.NotReady == z.Size:
		return FullDisruption
	case z.NotReady > 2 && float64(z.NotReady)/float64(z.Size) >= r.UnhealthyZoneThreshold:
		return PartialDisruption
	}
	return Normal
}

func (r Rules) rateOf(z Zone) float64 {
	switch z.State {
	case FullDisruption:
		return r.FullRate
	case PartialDisruption:
		if z.Size <= r.LargeZoneSize {
			return 0
		}
		return r.PartialRate
	}
	return r.NormalRate
}

// AllZonesDown returns whether no zone has a ready node. Zones without counted nodes are ignored.
// One cause for all nodes is then more likely than many, so NoExecute taints are removed.
func AllZonesDown(zones []Zone) bool {
	down := false
	for i := range zones {
		if zones[i].Size == 0 {
			continue
		}
		if zones[i].State != FullDisruption {
			return false
		}
		down = true
	}
	return down
}

// limiter limits the NoExecute taints of one zone: a token bucket of size one, whose rate may
// change with every call.
type limiter struct {
	last monotonic.Instant
	used bool
}

// allows returns whether the next taint may be added. Two taints are never closer than the present
// rate allows.
func (l limiter) allows(now monotonic.Instant, rate float64) bool {
	if rate <= 0 {
		return false
	}
	return !l.used || now.Sub(l.last) >= time.Duration(float64(time.Second)/rate)
}

// MassSilenceReason is what readers are shown for a zone or shard with a mass silence.
const MassSilenceReason = "many nodes of one zone or shard fell silent within 5s, so a self-check comes first"

// MassSilence names zones and shards of which many nodes fell silent within seconds. Both are
// ordered.
type MassSilence struct {
	Zones  []string
	Shards []int
}

// Equal returns whether both name the same zones and shards.
func (m MassSilence) Equal(other MassSilence) bool {
	return slices.Equal(m.Zones, other.Zones) && slices.Equal(m.Shards, other.Shards)
}

// Has returns whether a zone or a shard is named.
func (m MassSilence) Has(zone string, shard int) bool {
	_, found := slices.BinarySearch(m.Shards, shard)
	return found || m.Zone(zone)
}

// Zone returns whether a zone is named.
func (m MassSilence) Zone(name string) bool {
	_, found := slices.BinarySearch(m.Zones, name)
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
