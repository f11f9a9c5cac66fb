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
	return auditParts{cluster: emptyCluster{}, ranges: emptyRanges{}, journal: emptyStore{}}
}

type emptyCluster struct{}

func (emptyCluster) Stores(context.Context) ([]allocation.Store, error) {
	return []allocation.Store{allocation.IPAddresses}, nil
}

func (emptyCluster) Identity(context.Context) (*rangestore.ClusterIdentity, error) { return nil, nil }

func (emptyCluster) Watch(ctx context.Context, kinds []allocationcontroller.Kind, sink allocationcontroller.ObjectHandler) {
	for _, kind := range kinds {
		sink.OnChange(allocationcontroller.ObjectChange{Kind: kind, List: true})
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

func (emptyRanges) CompareAndSwap(context.Context, rangestore.Name, int64, rangestore.Range) (int64, error) {
	return 0, rangestore.ErrConflict
}

func (emptyRanges) Watch(ctx context.Context, sink rangestore.Handler) {
	sink.OnList(nil)
	<-ctx.Done()
}

func (emptyRanges) VerifyCluster(context.Context, rangestore.ClusterIdentity) (string, error) {
	return "", nil
}

type emptyStore struct{}

func (emptyStore) Findings(context.Context) ([]allocation.Finding, int, error) { return nil, 0, nil }
func (emptyStore) WriteFindings(context.Context, []allocation.Finding, []string) error {
	return nil
}
func (emptyStore) Begin(context.Context, repairstore.RepairPlan) error { return nil }
func (emptyStore) Record(context.Context, string, map[int]repairstore.StepResult) error {
	return nil
}
func (emptyStore) End(context.Context, string, time.Time) error               { return nil }
func (emptyStore) DeleteRepairs(context.Context, []string) error              { return nil }
func (emptyStore) Repairs(context.Context) ([]repairstore.Repair, int, error) { return nil, 0, nil }
