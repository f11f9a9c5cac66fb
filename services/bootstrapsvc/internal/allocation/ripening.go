package allocation

import "time"

// Patience says for how long a thing must have been wrong, seen without a gap, before it is open.
type Patience struct {
	// Missing is for what is used and not allocated: the watches of Services and of allocations are not in step.
	Missing time.Duration
	// Wrong is for what is allocated in a wrong name or with wrong labels.
	Wrong time.Duration
	// Unused is for what is allocated and not used. It must be longer than a request to kube-apiserver can take, because
	// allocation comes before use.
	Unused time.Duration
	// Sightings is how many passes must have seen it unused, each Apart from the one before.
	Sightings int
	Apart     time.Duration
}

// DefaultPatience is 250 ms for what is missing, a second for what is wrong, and 65 seconds and three sightings twenty
// seconds apart for what is unused: kube-apiserver gives up a request after 60 seconds.
func DefaultPatience() Patience {
	return Patience{
		Missing:   250 * time.Millisecond,
		Wrong:     time.Second,
		Unused:    65 * time.Second,
		Sightings: 3,
		Apart:     20 * time.Second,
	}
}
