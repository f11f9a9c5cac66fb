package allocationcontroller

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/internal/answer"
	"github.com/trivet-dev/trivet/internal/watchcache"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// Snapshot is the state of the audit after a pass. It is immutable.
type Snapshot struct {
	// Current are the pending and open findings, ordered by FirstSeen and Name.
	Current []allocation.Finding
	// Ended are the findings that ended and are kept, in the same order. A finding whose name is in
	// Current again is omitted.
	Ended []allocation.Finding
	// Stores are the states of the stores, in their order.
	Stores []allocation.StoreState
	// CompareDuration is the duration of the last comparison, CompareTime its time.
	CompareDuration time.Duration
	CompareTime     time.Time
	// Watch serves watches of the findings in Current and Ended. It is never ahead of the snapshot.
	// It lasts as long as the term.
	Watch *watchcache.Cache[allocation.Finding]
	heard *heardKinds
}

// Finding returns the finding with a name.
func (s *Snapshot) Finding(name string) (allocation.Finding, bool) {
	for _, findings := range [][]allocation.Finding{s.Current, s.Ended} {
		for _, finding := range findings {
			if finding.Name == name {
				return finding, true
			}
		}
	}
	return allocation.Finding{}, false
}

// Caches says how fresh the caches of the comparison are, ordered by kind.
func (s *Snapshot) Caches() []answer.Cache { return s.heard.list() }

// published is what other goroutines may read while the controller runs.
type published struct {
	// snapshot is nil before the first pass of a term and outside of a term.
	snapshot atomic.Pointer[Snapshot]
	// problem says why snapshot is nil.
	problem atomic.Pointer[string]
	// problems are what a person should know, nil outside of a term.
	problems atomic.Pointer[[]*metav1.Problem]
}

// drop removes the snapshot. reason is the error of Controller.Snapshot.
func (p *published) drop(reason error) {
	problem := strings.TrimPrefix(reason.Error(), ErrNotSynced.Error()+": ") // Controller.Snapshot adds it
	p.problem.Store(&problem)
	p.snapshot.Store(nil)
}

// newFindingWatch returns a cache of findings for watches.
func newFindingWatch() *watchcache.Cache[allocation.Finding] {
	return watchcache.New(watchcache.Config[allocation.Finding]{
		Name: func(f allocation.Finding) string { return f.Name },
		Same: func(a, b allocation.Finding) bool { return a.Generation == b.Generation },
	})
}
