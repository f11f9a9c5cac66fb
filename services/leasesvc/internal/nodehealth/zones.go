package nodehealth

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// ZoneState says how much of a zone is disrupted.
type ZoneState uint8

const (
	// Normal zones have few nodes that are not ready.
	Normal ZoneState = iota
	// PartialDisruption: so many nodes are not ready that the zone may be what is wrong.
	PartialDisruption
	// FullDisruption: no node is ready.
	FullDisruption
)

func (s ZoneState) String() string { return [...]string{"normal", "partial", "full"}[s] }

// Zone is one zone at one moment. Nodes that are excluded from disruption are in none of its numbers.
type Zone struct {
	Name string
	// Size is how many nodes are counted, NotReady how many of them are not ready or have not said so yet.
	Size, NotReady int
	// Waiting is how many of its nodes, excluded ones too, wait for their turn to get a NoExecute taint.
	Waiting int
	State   ZoneState
	// Rate is how many of its nodes get a NoExecute taint per second.
	Rate float64
}

// stateOf is the state of a zone. One without counted nodes is normal.
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

// turn is when the last node of a zone got its NoExecute taint: a bucket of one token.
type turn struct {
	last monotonic.Instant
	used bool
}

// come tells whether the next node may have its own now. Whatever the rate was in between, two turns are never closer than the
// present rate allows.
func (t turn) come(now monotonic.Instant, rate float64) bool {
	if rate <= 0 {
		return false
	}
	return !t.used || now.Sub(t.last) >= time.Duration(float64(time.Second)/rate)
}
