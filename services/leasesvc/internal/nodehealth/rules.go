package nodehealth

import "time"

// ExcludeDisruptionLabel keeps a Node out of the count of its zone, as upstream's controller knows it.
const ExcludeDisruptionLabel = "node.kubernetes.io/exclude-disruption"

// Rules is how patient the decisions are.
type Rules struct {
	// Grace is the silence after which a node is declared unknown.
	GracePeriod time.Duration
	// StartupGrace is the same for a Node without a Ready condition, counted from when it was first seen.
	StartupGracePeriod time.Duration
	// FirstBeat is how soon a holder that lives is heard by a replica that it did not beat to before.
	FirstBeat time.Duration
	// Excluded are labels whose presence keeps a Node out of the count of its zone.
	ExcludeLabels []string
	// Threshold is the share of not ready nodes, of three at least, from which a zone is partially disrupted.
	UnhealthyZoneThreshold float64
	// Large is the number of nodes beyond which a partially disrupted zone still gets taints.
	LargeZoneSize int
	// Normal, Partial and Full are how many nodes of a zone get a NoExecute taint per second, by the zone's state.
	NormalRate, PartialRate, FullRate float64
}

// DefaultRules are the defaults of kube-controller-manager v1.37, for holders that beat every five seconds.
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
	// together is the window in which nodes that fall silent have perhaps one cause.
	together = 5 * time.Second
	// fewTogether nodes, or manyShare of their zone if that is more, may fall silent together without a doubt.
	fewTogether = 3
	manyShare   = 0.05
	// checkEvery is the time between two self-checks when nothing is in doubt.
	checkEvery = time.Second
	// outage is how long the kube-apiserver must have been unreachable for the nodes to be owed a new grace period: shorter
	// than any Lease they renew.
	outage = 5 * time.Second
	// samples is how many Leases a self-check reads.
	samples = 8
)

// suspectAfter is the silence from which a node is suspect.
func (r Rules) suspectAfter(grace time.Duration) time.Duration { return grace / 2 }
