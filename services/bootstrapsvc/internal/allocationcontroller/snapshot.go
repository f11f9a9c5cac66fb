package allocationcontroller

import (
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// Snapshot is what the auditor knew after a pass. It is immutable.
type Snapshot struct {
	// Current are the findings that are pending or open, ordered by first sight and name.
	Current []Finding
	// Ended are those that have ended, as far as they are remembered, in the same order.
	Ended []Finding
	// Stores are the stores, in their order.
	Stores []allocation.StoreState
	// CompareDuration is how long the last comparison took.
	CompareDuration time.Duration
	// CompareTime is when it was made.
	CompareTime time.Time
	// Version is the newest resourceVersion that it was made from.
	Version string
	// Changed is closed when there is a newer view, or the term has ended.
	Changed <-chan struct{}
}

// Finding is a finding with its history and a number that grows when something that is shown of it changes.
type Finding struct {
	repairstore.Finding
	Change uint64
}
