package allocationcontroller

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
)

const (
	// doubtPeriod is how long a doubt is left as it is before it is looked into again.
	doubtPeriod = 5 * time.Second
	unasked     = "it has not been compared yet whether these are the ranges of this cluster"
	unwitnessed = "service default/kubernetes does not exist, so nothing tells yet whether these are the ranges of this cluster"
)

// ownership is whether the ranges that are watched are this cluster's. etcd may hold several clusters, and a wrong prefix or
// another cluster's etcd must neither be judged by the Services of this one nor written.
type ownership struct {
	// doubt says why they may not be; empty once they are, for the rest of the term.
	doubt string
	asked time.Time
	// stored is what is watched.
	stored map[rangestore.Name]rangestore.Value
}

func newOwnership() ownership {
	return ownership{doubt: unasked, stored: map[rangestore.Name]rangestore.Value{}}
}

// ascertain looks whether the ranges are this cluster's, until they are. The ledger knows nothing of them before.
func (s *session) ascertain(ctx context.Context, now time.Time) error {
	owned := &s.ranges
	if owned.doubt == "" || !owned.asked.IsZero() && now.Sub(owned.asked) < doubtPeriod {
		return nil
	}
	doubt, err := s.doubtRanges(ctx)
	if err != nil {
		return err
	}
	if doubt != "" && doubt != owned.doubt {
		s.Logger.WarnContext(ctx, "ranges are not audited", "reason", doubt)
	}
	owned.doubt, owned.asked = doubt, now
	for _, name := range slices.Sorted(maps.Keys(owned.stored)) {
		s.putRange(name, owned.stored[name])
	}
	return nil
}

func (s *session) doubtRanges(ctx context.Context) (string, error) {
	witness, err := s.Cluster.Identity(ctx)
	if err != nil || witness == nil {
		return unwitnessed, err
	}
	return s.Ranges.VerifyCluster(ctx, *witness)
}

// putRange has the ledger know a range, or that it is in doubt.
func (s *session) putRange(name rangestore.Name, value rangestore.Value) {
	s.ranges.stored[name] = value
	if store, ok := storeOf(name); ok && slices.Contains(s.stores, store) {
		s.ledger.PutBitmap(s.bitmapOf(store, value))
	}
}

func (s *session) bitmapOf(store allocation.Store, value rangestore.Value) allocation.Bitmap {
	if s.ranges.doubt != "" {
		return allocation.Bitmap{Store: store, Revision: value.ModRevision, Unverified: s.ranges.doubt}
	}
	return allocation.Bitmap{
		Store: store, Range: value.Range.Text(), Data: value.Range.Data(), Revision: value.ModRevision,
		Missing: value.ModRevision == 0, Problem: value.Unreadable,
	}
}
