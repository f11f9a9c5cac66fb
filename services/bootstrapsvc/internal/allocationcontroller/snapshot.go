package allocationcontroller

import (
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// View is what the auditor knew after a pass. It is immutable.
type View struct {
	// Standing are the findings that are pending or open, ordered by first sight and name.
	Standing []Finding
	// Ended are those that have ended, as far as they are remembered, in the same order.
	Ended []Finding
	// States are the stores, in their order.
	States []allocation.StoreState
	// Took is how long the last comparison took.
	Took time.Duration
	// Audited is when it was made.
	Audited time.Time
	// Version is the newest resourceVersion that it was made from.
	Version string
	// More is closed when there is a newer view, or the term has ended.
	More <-chan struct{}
}

// Finding is a finding with its history and a number that grows when something that is shown of it changes.
type Finding struct {
	repairstore.Finding
	Change uint64
}
