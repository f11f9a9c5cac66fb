package allocationcontroller

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// Snapshot is the state of the audit after a pass. It is immutable.
type Snapshot struct {
	// Current are the pending and open findings, ordered by FirstSeen and Name.
	Current []allocation.Finding
	// Ended are the findings that ended and are kept, in the same order.
	Ended []allocation.Finding
	// Stores are the states of the stores, in their order.
	Stores []allocation.StoreState
	// CompareDuration is the duration of the last comparison, CompareTime its time.
	CompareDuration time.Duration
	CompareTime     time.Time
	// Version is the newest resourceVersion that was compared.
	Version string
	// Changed is closed when there is a newer snapshot, or the term has ended.
	Changed <-chan struct{}
}

// published is what other goroutines may read while the controller runs.
type published struct {
	// snapshot is nil before the first pass of a term and outside of a term.
	snapshot atomic.Pointer[Snapshot]
	// problem says why snapshot is nil.
	problem atomic.Pointer[string]
	// running is the ID of the repair whose steps are being applied, nil if there is none.
	running atomic.Pointer[string]
}

// drop removes the snapshot. reason is the error of Controller.Snapshot.
func (p *published) drop(reason error) {
	problem := strings.TrimPrefix(reason.Error(), ErrNotSynced.Error()+": ") // Controller.Snapshot adds it
	p.problem.Store(&problem)
	p.snapshot.Store(nil)
}
