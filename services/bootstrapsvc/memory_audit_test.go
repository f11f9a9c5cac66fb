package bootstrapsvc

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocationcontroller"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// newMemoryAudit is a cluster in which nothing is allocated and nothing used, so that the audit finds nothing.
func newMemoryAudit() auditParts {
	return auditParts{cluster: emptyCluster{}, ranges: emptyRanges{}, journal: emptyJournal{}}
}

type emptyCluster struct{}

func (emptyCluster) Stores(context.Context) ([]allocation.Store, error) {
	return []allocation.Store{allocation.IPAddresses}, nil
}

func (emptyCluster) Witness(context.Context) (*rangestore.Witness, error) { return nil, nil }

func (emptyCluster) Watch(ctx context.Context, kinds []allocationcontroller.Kind, sink allocationcontroller.Sink) {
	for _, kind := range kinds {
		sink.Change(allocationcontroller.Change{Kind: kind, Whole: true})
	}
	<-ctx.Done()
}

func (emptyCluster) Service(context.Context, allocation.Key) (*allocation.Service, error) {
	return nil, nil
}
func (emptyCluster) Services(context.Context) ([]allocation.Service, error) { return nil, nil }
func (emptyCluster) IPAddress(context.Context, string) (*allocation.IPAddress, error) {
	return nil, nil
}
func (emptyCluster) Create(context.Context, allocation.IPAddress) error { return nil }
func (emptyCluster) Relabel(context.Context, allocation.IPAddress, allocation.Guard) error {
	return nil
}
func (emptyCluster) Delete(context.Context, string, allocation.Guard) error { return nil }

type emptyRanges struct{}

func (emptyRanges) Read(context.Context, rangestore.Name) (rangestore.Value, error) {
	return rangestore.Value{}, nil
}

func (emptyRanges) Swap(context.Context, rangestore.Name, int64, rangestore.Range) (int64, error) {
	return 0, rangestore.ErrConflict
}

func (emptyRanges) Watch(ctx context.Context, sink rangestore.Sink) {
	sink.Begin(nil)
	<-ctx.Done()
}

func (emptyRanges) Doubt(context.Context, rangestore.Witness) (string, error) { return "", nil }

type emptyJournal struct{}

func (emptyJournal) Findings(context.Context) ([]repairstore.Finding, int, error) { return nil, 0, nil }
func (emptyJournal) WriteFindings(context.Context, []repairstore.Finding, []string) error {
	return nil
}
func (emptyJournal) Begin(context.Context, repairstore.Plan) error { return nil }
func (emptyJournal) Record(context.Context, string, map[int]repairstore.Outcome) error {
	return nil
}
func (emptyJournal) End(context.Context, string, time.Time) error               { return nil }
func (emptyJournal) Forget(context.Context, []string) error                     { return nil }
func (emptyJournal) Repairs(context.Context) ([]repairstore.Repair, int, error) { return nil, 0, nil }
