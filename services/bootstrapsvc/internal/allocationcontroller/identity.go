package allocationcontroller

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
)

// verifyInterval is the time between two attempts to verify the ranges.
const verifyInterval = 5 * time.Second

const (
	notVerified = "it has not been compared yet whether these are the ranges of this cluster"
	noIdentity  = "service default/kubernetes does not exist, so nothing tells yet whether these are the ranges of this cluster"
)

// rangeIdentity says whether the watched ranges belong to this cluster. One etcd may hold several
// clusters. The ranges of another cluster must neither be compared with the Services of this one
// nor be written.
type rangeIdentity struct {
	// problem says why the ranges may belong to another cluster. Once empty, it stays empty for the
	// rest of the term.
	problem string
	checked time.Time
	// values are the watched ranges.
	values map[rangestore.Name]rangestore.Value
}

func newRangeIdentity() rangeIdentity {
	return rangeIdentity{problem: notVerified, values: map[rangestore.Name]rangestore.Value{}}
}

// verifyRanges verifies that the ranges belong to this cluster. After a success it does nothing.
func (r *reconciler) verifyRanges(ctx context.Context, now time.Time) error {
	if r.ranges.problem == "" || !r.ranges.checked.IsZero() && now.Sub(r.ranges.checked) < verifyInterval {
		return nil
	}
	problem := noIdentity
	identity, err := r.Cluster.Identity(ctx)
	if err == nil && identity != nil {
		problem, err = r.Ranges.VerifyCluster(ctx, *identity)
	}
	if err != nil {
		return err
	}
	if problem != "" && problem != r.ranges.problem {
		r.Logger.WarnContext(ctx, "cannot audit the ranges in etcd", "reason", problem)
	}
	r.ranges.problem, r.ranges.checked = problem, now
	for _, name := range slices.Sorted(maps.Keys(r.ranges.values)) {
		r.putRange(name, r.ranges.values[name])
	}
	return nil
}
