package allocationcontroller

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/trivet-dev/trivet/internal/decisions"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

var (
	// ErrNotSynced: not every watch has listed its objects yet.
	ErrNotSynced = errors.New("what is allocated has not been read yet")
	// ErrFindingNotFound: no current finding has that name.
	ErrFindingNotFound = errors.New("no such finding")
	// ErrPlanNotFound: no stored plan has that ID.
	ErrPlanNotFound = errors.New("no such repair plan")
	// ErrPlanExpired: the plan is too old.
	ErrPlanExpired = errors.New("the plan has expired")
	// ErrPlanDrifted: the plan that would be applied now differs from the plan that was shown.
	ErrPlanDrifted = errors.New("the plan is not what it was")
	// ErrRepairRunning: another repair is being applied.
	ErrRepairRunning = errors.New("another repair is being applied")
	// ErrRepairNotFound: no stored repair has that ID.
	ErrRepairNotFound = errors.New("no such repair")
	// ErrRepairNotCancellable: the repair has no steps left.
	ErrRepairNotCancellable = errors.New("the repair has no steps left")
	// ErrEtagMismatch: the object is not the one that the caller read. Nothing was written.
	ErrEtagMismatch = errors.New("it has changed since it was read")
)

// Config is the part of the configuration that an operator sets.
type Config struct {
	// AutoRepair repairs safe findings without approval: those with AutoRepairCodes, or all if
	// there are none.
	AutoRepair      bool
	AutoRepairCodes []allocation.Code
	// FindingHistory and RepairHistory are how many ended findings and repairs are kept.
	FindingHistory, RepairHistory int
	// ExpectedRanges are the expected ranges of the bitmaps; see allocation.Settings.
	ExpectedRanges map[allocation.Store]string
	// GracePeriods say when a finding opens; see allocation.Settings.
	GracePeriods allocation.GracePeriods
}

// Deps are the dependencies of a Controller. All but Decisions are required.
type Deps struct {
	Cluster     Cluster
	Ranges      Ranges
	RepairStore RepairStore
	Reporter    Reporter
	Logger      *slog.Logger
	// Decisions records findings and repairs; nil records nothing.
	Decisions *decisions.Log
}

// Cluster reads and writes the objects in Kubernetes; *KubeCluster implements it and describes the
// methods. Errors wrap guarded.ErrConflict and guarded.ErrUnavailable. Writes fail without a term.
type Cluster interface {
	Stores(ctx context.Context) (Stores, error)
	Identity(ctx context.Context) (*rangestore.ClusterIdentity, error)
	Watch(ctx context.Context, kinds []Kind, handler ObjectHandler)
	Service(ctx context.Context, key allocation.Key) (*allocation.Service, error)
	Services(ctx context.Context) ([]allocation.Service, error)
	IPAddress(ctx context.Context, name string) (*allocation.IPAddress, error)
	ServiceCIDRs(ctx context.Context) ([]allocation.CIDR, error)
	Create(ctx context.Context, wanted allocation.IPAddress) error
	CanCreate(ctx context.Context, wanted allocation.IPAddress) error
	Relabel(ctx context.Context, wanted allocation.IPAddress, guard allocation.Guard) error
	Delete(ctx context.Context, name string, guard allocation.Guard) error
}

// Ranges reads and writes the bitmaps in etcd; *rangestore.Store implements it.
type Ranges interface {
	Read(ctx context.Context, name rangestore.Name) (rangestore.Value, error)
	CompareAndSwap(ctx context.Context, name rangestore.Name, revision int64, next rangestore.Range) (int64, error)
	Watch(ctx context.Context, handler rangestore.Handler)
	VerifyCluster(ctx context.Context, identify func(context.Context) (*rangestore.ClusterIdentity, error)) (string, error)
}

// RepairStore stores findings, plans and repairs across restarts; *repairstore.Store implements it.
type RepairStore interface {
	Findings(ctx context.Context) ([]allocation.Finding, int, error)
	WriteFindings(ctx context.Context, findings []allocation.Finding, deleted []string) error
	Ignores(ctx context.Context) ([]allocation.Ignore, int, error)
	WriteIgnores(ctx context.Context, ignores []allocation.Ignore, deleted []string) error

	Plans(ctx context.Context) ([]repairstore.Plan, int, error)
	Plan(ctx context.Context, id string) (repairstore.Plan, bool, error)
	CreatePlan(ctx context.Context, plan repairstore.Plan, deleted []string) error
	DeletePlans(ctx context.Context, ids []string) error

	Begin(ctx context.Context, start repairstore.Start) error
	Record(ctx context.Context, id string, results map[int]repairstore.StepResult, progress repairstore.Progress) error
	Cancel(ctx context.Context, id string, cancellation repairstore.Cancellation) error
	End(ctx context.Context, id string, now time.Time) error
	DeleteRepairs(ctx context.Context, ids []string) error
	Repairs(ctx context.Context) ([]repairstore.Repair, int, error)
	Repair(ctx context.Context, id string) (repairstore.Repair, bool, error)
	WatchRepairs(ctx context.Context, handler repairstore.RepairHandler)
}

// Reporter publishes events and metrics; *Telemetry implements it. The controller calls its methods
// from one goroutine; they must not block.
type Reporter interface {
	// Start begins a term. stop ends it and is called once.
	Start(ctx context.Context) (stop func())
	// FindingOpened is called once for a finding, when it opens.
	FindingOpened(finding allocation.Finding)
	// PassFinished has the duration of the comparison, the snapshot (nil if there is none), and the
	// error of the pass.
	PassFinished(compareDuration time.Duration, snapshot *Snapshot, err error)
	// StepRefused is called for an attempt of a step that was refused, before its write or by it,
	// and that is repeated. A person's step that is refused is finished instead.
	StepRefused(step allocation.Step, err error)
	// StepFinished is called for a step that is done, unneeded, failed or skipped.
	StepFinished(step allocation.Step, result repairstore.StepResult)
}
