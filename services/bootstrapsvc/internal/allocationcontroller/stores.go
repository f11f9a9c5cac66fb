package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

const (
	// discoverInterval is the time between two questions to kube-apiserver for its stores.
	discoverInterval = period
	// sameAnswers is how often in a row another answer must come until it is believed: during an
	// upgrade, kube-apiservers of two versions answer.
	sameAnswers = 3
)

// Stores says where a cluster stores its allocations.
type Stores struct {
	// Present are the stores that are audited.
	Present []allocation.Store
	// Problems says of stores that are not audited why.
	Problems map[allocation.Store]string
}

// discoveredStores are the stores that a reconciler audits, and what kube-apiserver says since.
type discoveredStores struct {
	Stores
	// other is the last answer if it differs, and seen how often it came in a row.
	other   Stores
	seen    int
	changed bool
	asking  bool
	lastAsk time.Time
}

// discoverStores makes a worker ask kube-apiserver for its stores.
func (r *reconciler) discoverStores(now time.Time) {
	stores := &r.stores
	if stores.lastAsk.IsZero() {
		stores.lastAsk = now // the term has just asked
	}
	if stores.asking || now.Sub(stores.lastAsk) < discoverInterval {
		return
	}
	stores.asking, stores.lastAsk = true, now
	r.spawn(func(ctx context.Context) func() {
		answer, err := r.Cluster.Stores(ctx)
		return func() {
			stores.asking = false
			if err != nil {
				return
			}
			if seen := stores.seen; stores.take(answer) != seen {
				r.requestPass(time.Now()) // which publishes what is unclear, or that nothing is
			}
		}
	})
}

// take takes an answer of kube-apiserver. The stores have changed once the same other answer has
// come sameAnswers times in a row. It returns how often the answer came, 0 if it is the known one.
func (s *discoveredStores) take(answer Stores) (seen int) {
	switch {
	case slices.Equal(answer.Present, s.Present):
		s.other, s.seen = Stores{}, 0
		s.Problems = answer.Problems
	case s.seen > 0 && slices.Equal(answer.Present, s.other.Present):
		s.seen++
	default:
		s.other, s.seen = answer, 1
	}
	s.changed = s.seen >= sameAnswers
	return s.seen
}

// isUnclear reports whether the answers about a store differ.
func (s *discoveredStores) isUnclear(store allocation.Store) bool {
	return s.seen > 0 && slices.Contains(s.Present, store) != slices.Contains(s.other.Present, store)
}

// describe adds to the states of stores what is unclear about them.
func (s *discoveredStores) describe(states []allocation.StoreState) []allocation.StoreState {
	for i := range states {
		store := states[i].Store
		switch problem := s.Problems[store]; {
		case s.isUnclear(store):
			states[i].Problem = "INCOMPLETE: kube-apiserver does not always say that it has this store, as during an upgrade; nothing in it is repaired until that is clear"
		case problem != "" && states[i].Problem == "":
			states[i].Problem = "INCOMPLETE: " + problem
		}
	}
	return states
}

// endReason says why a reconciler has ended.
func (s *discoveredStores) endReason() error {
	if s.changed {
		return fmt.Errorf("kube-apiserver stores allocations elsewhere: before in %v, now in %v", s.Present, s.other.Present)
	}
	return errors.New("the term has ended")
}
