package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/rangestore"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

var (
	// ErrNotSynced: not every watch has listed its objects yet.
	ErrNotSynced = errors.New("what is allocated has not been read yet")
	// ErrFindingNotFound: no current finding has that name.
	ErrFindingNotFound = errors.New("no such finding")
	// ErrPlanExpired: the plan is too old.
	ErrPlanExpired = errors.New("the plan has expired")
	// ErrPlanDrifted: the plan that would be applied now differs from the plan that was shown.
	ErrPlanDrifted = errors.New("the plan is not what it was")
	// ErrRepairRunning: another repair is being applied.
	ErrRepairRunning = errors.New("another repair is being applied")
	// errAborted: the controller stopped before it answered a request.
	errAborted = errors.New("the pass ended without a result")
)

// Cluster reads and writes the objects in Kubernetes; *KubeCluster implements it. Errors wrap
// errorclass.ErrConflict and errorclass.ErrUnavailable. Writes fail without a term.
type Cluster interface {
	// Stores returns where the cluster stores its allocations.
	Stores(ctx context.Context) ([]allocation.Store, error)
	// Identity returns the identity of the cluster, nil if the Service default/kubernetes does not
	// exist.
	Identity(ctx context.Context) (*rangestore.ClusterIdentity, error)
	// Watch calls handler with all objects of the kinds and then with their changes, until ctx
	// ends.
	Watch(ctx context.Context, kinds []Kind, handler ObjectHandler)
	// Service, Services and IPAddress read from kube-apiserver with quorum. Service and IPAddress
	// return nil for an absent object.
	Service(ctx context.Context, key allocation.Key) (*allocation.Service, error)
	Services(ctx context.Context) ([]allocation.Service, error)
	IPAddress(ctx context.Context, name string) (*allocation.IPAddress, error)
	Create(ctx context.Context, wanted allocation.IPAddress) error
	Relabel(ctx context.Context, wanted allocation.IPAddress, guard allocation.Guard) error
	Delete(ctx context.Context, name string, guard allocation.Guard) error
}

// Ranges reads and writes the bitmaps in etcd; *rangestore.Store implements it.
type Ranges interface {
	Read(ctx context.Context, name rangestore.Name) (rangestore.Value, error)
	CompareAndSwap(ctx context.Context, name rangestore.Name, revision int64, next rangestore.Range) (int64, error)
	Watch(ctx context.Context, handler rangestore.Handler)
	VerifyCluster(ctx context.Context, identity rangestore.ClusterIdentity) (string, error)
}

// RepairStore stores findings and repairs across restarts; *repairstore.Store implements it.
type RepairStore interface {
	Findings(ctx context.Context) ([]allocation.Finding, int, error)
	WriteFindings(ctx context.Context, findings []allocation.Finding, deleted []string) error
	Begin(ctx context.Context, plan repairstore.RepairPlan) error
	Record(ctx context.Context, id string, results map[int]repairstore.StepResult) error
	End(ctx context.Context, id string, now time.Time) error
	DeleteRepairs(ctx context.Context, ids []string) error
	Repairs(ctx context.Context) ([]repairstore.Repair, int, error)
}

// Reporter publishes events and metrics; *Telemetry implements it. The controller calls its methods
// from one goroutine; they must not block.
type Reporter interface {
	// FindingOpened reports a finding when it opens, once.
	FindingOpened(finding allocation.Finding)
	// PassFinished reports a pass: the duration of the comparison, the snapshot (nil if there is
	// none), and the error of the pass.
	PassFinished(compareDuration time.Duration, snapshot *Snapshot, err error)
	// StepFinished reports a step of a repair that is done, unneeded or failed.
	StepFinished(step allocation.Step, result repairstore.StepResult)
}

// Config is the part of the configuration that an operator sets.
type Config struct {
	// AutoRepair repairs safe findings without approval.
	AutoRepair bool
	// FindingHistory and RepairHistory are how many ended findings and repairs are kept.
	FindingHistory, RepairHistory int
	// ExpectedRanges are the expected ranges of the bitmaps; see allocation.Settings.
	ExpectedRanges map[allocation.Store]string
	// GracePeriods say when a finding opens. The zero value means the default.
	GracePeriods allocation.GracePeriods
}

// Deps are the dependencies of a Controller. All are required.
type Deps struct {
	Cluster  Cluster
	Ranges   Ranges
	Store    RepairStore
	Reporter Reporter
	Logger   *slog.Logger
}

// Controller runs the allocation audit of one cluster, for one term after the other. Its methods
// are safe for concurrent use. Run may be called again after it has returned.
type Controller struct {
	Config
	Deps
	// requests is unbuffered: after a send, the goroutine of Run has taken the request.
	requests chan request
	// snapshot is nil before the first pass of a term and outside of a term.
	snapshot atomic.Pointer[Snapshot]
	// problem says why snapshot is nil.
	problem atomic.Pointer[string]
	// running is the ID of the repair whose steps are being applied, nil if there is none.
	running atomic.Pointer[string]
}

// New returns a controller. It starts nothing.
func New(cfg Config, deps Deps) *Controller {
	return &Controller{Config: cfg, Deps: deps, requests: make(chan request)}
}

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

// Snapshot returns the current snapshot. Before the first pass of a term, and outside of a term,
// its error wraps ErrNotSynced.
func (c *Controller) Snapshot() (*Snapshot, error) {
	if snapshot := c.snapshot.Load(); snapshot != nil {
		return snapshot, nil
	}
	if problem := c.problem.Load(); problem != nil {
		return nil, fmt.Errorf("%w: %s", ErrNotSynced, *problem)
	}
	return nil, ErrNotSynced
}

func (c *Controller) dropSnapshot(reason error) {
	problem := strings.TrimPrefix(reason.Error(), ErrNotSynced.Error()+": ") // Snapshot adds it
	c.problem.Store(&problem)
	c.snapshot.Store(nil)
}

// Audit makes a comparison now and returns its snapshot.
func (c *Controller) Audit(ctx context.Context) (*Snapshot, error) {
	var snapshot *Snapshot
	err := c.do(ctx, func(ctx context.Context, r *reconciler) error {
		if err := r.watches.err(); err != nil {
			return err
		}
		now := time.Now()
		if err := r.verifyRanges(ctx, now); err != nil {
			return err
		}
		if err := r.compare(ctx, now); err != nil {
			return err
		}
		snapshot = r.publish()
		return nil
	}, func() error { return nil })
	if err != nil {
		return nil, err
	}
	return snapshot, nil
}

// Repairs returns the stored repairs, the newest first. It works on every replica.
func (c *Controller) Repairs(ctx context.Context) ([]repairstore.Repair, error) {
	repairs, _, err := c.Store.Repairs(ctx)
	return repairs, err
}

// request is a function that the goroutine of Run calls between passes.
type request struct {
	do func(ctx context.Context, r *reconciler) error
	// reply holds one error, so that the goroutine never waits for the caller. It is closed after
	// do.
	reply chan error
}

// do makes the goroutine of Run call a function, and returns its error. It returns early if ctx
// ends; the function then still runs. While the goroutine is busy, do calls reject every
// busyCheckInterval and returns its error.
func (c *Controller) do(ctx context.Context, do func(ctx context.Context, r *reconciler) error, reject func() error) error {
	asked := request{do: do, reply: make(chan error, 1)}
	busy := time.NewTicker(busyCheckInterval)
	defer busy.Stop()
	for sent := false; !sent; {
		select {
		case c.requests <- asked:
			sent = true
		case <-busy.C:
			if err := reject(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	select {
	case err, ok := <-asked.reply:
		if !ok {
			return errAborted
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

const (
	// changeDelay is how long changes are collected before a pass, so that a burst causes one pass.
	changeDelay = 50 * time.Millisecond
	// period is the longest time between passes.
	period = 20 * time.Second
	// passTimeout bounds a pass, so that a call that hangs cannot stop the loop.
	passTimeout = 30 * time.Second
	// busyCheckInterval is how long a caller that wants to apply a repair waits while another
	// repair is applied.
	busyCheckInterval = time.Second
)

// Run runs the controller until ctx, which carries the term, ends.
func (c *Controller) Run(ctx context.Context, report loop.Report) error {
	r, err := c.start(ctx)
	if err != nil {
		c.dropSnapshot(err)
		return err
	}
	defer r.close()
	timer := time.NewTimer(period)
	defer timer.Stop()
	for {
		timer.Reset(time.Until(r.nextPass))
		select {
		case <-ctx.Done():
			return nil
		case change := <-r.watches.changes:
			change()
			r.requestPass(time.Now().Add(changeDelay))
			continue
		case <-timer.C:
		case asked := <-c.requests:
			answer(ctx, r, asked)
		}
		report(r.pass(ctx))
	}
}

func answer(ctx context.Context, r *reconciler, asked request) {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	defer close(asked.reply) // after a panic, too, so that the caller does not wait forever
	asked.reply <- asked.do(ctx, r)
}

// start reads what an earlier term stored and starts the watches.
func (c *Controller) start(ctx context.Context) (*reconciler, error) {
	stores, err := c.Cluster.Stores(ctx)
	if err != nil {
		return nil, err
	}
	findings, unreadableFindings, err := c.Store.Findings(ctx)
	if err != nil {
		return nil, err
	}
	repairs, unreadableRepairs, err := c.Store.Repairs(ctx)
	if err != nil {
		return nil, err
	}
	if unreadableFindings+unreadableRepairs > 0 {
		c.Logger.Warn("cannot read some stored findings or repairs; they stay as they are",
			"findings", unreadableFindings, "repairs", unreadableRepairs)
	}
	r := newReconciler(ctx, c, stores)
	r.findings.restore(findings, repairs)
	r.repairs.restore(repairs)
	r.startWatches()
	return r, nil
}

var _ RepairStore = (*repairstore.Store)(nil)
