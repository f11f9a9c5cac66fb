package allocationcontroller

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// Cluster is what Kubernetes knows; see package inventory, also for what its errors wrap. *Inventory is one.
type Cluster interface {
	Stores(ctx context.Context) ([]allocation.Store, error)
	Identity(ctx context.Context) (*rangestore.ClusterIdentity, error)
	Watch(ctx context.Context, kinds []Kind, sink ObjectHandler)
	Service(ctx context.Context, key allocation.Key) (*allocation.Service, error)
	Services(ctx context.Context) ([]allocation.Service, error)
	IPAddress(ctx context.Context, name string) (*allocation.IPAddress, error)
	Create(ctx context.Context, wanted allocation.IPAddress) error
	Relabel(ctx context.Context, wanted allocation.IPAddress, guard allocation.Guard) error
	Delete(ctx context.Context, name string, guard allocation.Guard) error
}

// Ranges are the bitmaps in etcd; see package rangestore. *rangestore.Store is one.
type Ranges interface {
	Read(ctx context.Context, name rangestore.Name) (rangestore.Value, error)
	CompareAndSwap(ctx context.Context, name rangestore.Name, revision int64, next rangestore.Range) (int64, error)
	Watch(ctx context.Context, sink rangestore.Handler)
	VerifyCluster(ctx context.Context, of rangestore.ClusterIdentity) (string, error)
}

// RepairStore is what survives a restart; see package journal. *repairstore.Journal is one.
type RepairStore interface {
	Findings(ctx context.Context) ([]repairstore.Finding, int, error)
	WriteFindings(ctx context.Context, findings []repairstore.Finding, forget []string) error
	Begin(ctx context.Context, plan repairstore.RepairPlan) error
	Record(ctx context.Context, id string, outcomes map[int]repairstore.StepResult) error
	End(ctx context.Context, id string, now time.Time) error
	DeleteRepairs(ctx context.Context, ids []string) error
	Repairs(ctx context.Context) ([]repairstore.Repair, int, error)
}

// Reporter tells others of what happens. Its methods are called from one goroutine and must not block.
type Reporter interface {
	// FindingOpened tells of a finding that is sure now, once for as long as it stands.
	FindingOpened(finding allocation.Finding)
	// PassFinished tells of a pass: how long the comparison took and, unless err, what it left.
	PassFinished(took time.Duration, view *Snapshot, err error)
	// StepFinished tells of a step of a repair that was carried out, or could not be.
	StepFinished(step allocation.Step, outcome repairstore.StepResult)
}
