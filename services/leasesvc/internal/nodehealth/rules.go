package nodehealth

import "time"

// ExcludeDisruptionLabel excludes a Node from the count of its zone. The node-lifecycle controller
// uses the same label.
const ExcludeDisruptionLabel = "node.kubernetes.io/exclude-disruption"

// Rules are the settings of the decisions.
type Rules struct {
	// GracePeriod is the silence after which a Node is marked Unknown.
	GracePeriod time.Duration
	// StartupGracePeriod replaces GracePeriod for a Node without a Ready condition. It counts from
	// when the Node was first seen.
	StartupGracePeriod time.Duration
	// FirstBeat is the time within which a live node beats at a replica that it did not beat to
	// before.
	FirstBeat time.Duration
	// ExcludeLabels exclude the Nodes that have one of them from the count of their zone.
	ExcludeLabels []string
	// UnhealthyZoneThreshold is the share of nodes, of three at least, from which a zone is
	// partially disrupted.
	UnhealthyZoneThreshold float64
	// LargeZoneSize is the number of nodes beyond which a partially disrupted zone still gets
	// taints.
	LargeZoneSize int
	// NormalRate, PartialRate and FullRate are NoExecute taints per second and zone, by the state
	// of the zone.
	NormalRate, PartialRate, FullRate float64
}

// DefaultRules returns the defaults of kube-controller-manager v1.37, for nodes that beat every
// five seconds.
func DefaultRules() Rules {
	return Rules{
		GracePeriod:            50 * time.Second,
		StartupGracePeriod:     time.Minute,
		FirstBeat:              10 * time.Second,
		ExcludeLabels:          []string{ExcludeDisruptionLabel},
		UnhealthyZoneThreshold: 0.55,
		LargeZoneSize:          50,
		NormalRate:             0.1,
		PartialRate:            0.01,
		FullRate:               0.1,
	}
}

const (
	// massSilenceWindow is the time within which nodes that fall silent may have one common cause.
	massSilenceWindow = 5 * time.Second
	// massSilenceNodes is how many nodes may fall silent within the window without a self-check;
	// massSilenceShare is the same as a share of the zone or shard. The larger number counts.
	massSilenceNodes = 3
	massSilenceShare = 0.05
	// checkEvery is the time between two self-checks while none is urgent.
	checkEvery = time.Second
	// minOutage is how long kube-apiserver must be unreachable before all nodes get a new grace
	// period. It is shorter than the duration of any node Lease.
	minOutage = 5 * time.Second
	// checkSamples is how many Leases of silent nodes a self-check reads.
	checkSamples = 8
)
