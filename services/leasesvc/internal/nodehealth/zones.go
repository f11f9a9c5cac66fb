package nodehealth

import (
	"time"

	corev1 "k8s.io/api/core/v1"

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

// count adds a Node to the zone.
func (z *Zone) count(s *NodeState) {
	if !s.traits.excluded {
		z.Size++
		if s.traits.ready != corev1.ConditionTrue {
			z.NotReady++
		}
	}
	if s.traits.noExecute == addAtRate {
		z.Waiting++
	}
}

// ZoneOf returns the name of a Node's zone as the node-lifecycle controller has it in its metrics:
// region and zone, or "".
func ZoneOf(labels map[string]string) string {
	zone, known := labels[corev1.LabelFailureDomainBetaZone]
	if !known {
		zone = labels[corev1.LabelTopologyZone]
	}
	region, known := labels[corev1.LabelFailureDomainBetaRegion]
	if !known {
		region = labels[corev1.LabelTopologyRegion]
	}
	if region == "" && zone == "" {
		return ""
	}
	return region + ":\x00:" + zone
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
