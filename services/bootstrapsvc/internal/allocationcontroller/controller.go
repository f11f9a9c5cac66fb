package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// Controller runs the allocation audit of one cluster, for one term after the other. Its methods
// are safe for concurrent use. Run may be called again after it has returned.
type Controller struct {
	Config
	Deps
	// Repairs serves reads and watches of repairs on every replica. The caller runs it.
	Repairs *RepairWatch
	// requests is unbuffered: after a send, the goroutine of Run has taken the request.
	requests   chan request
	cancelling cancelRequests
	published  *published
}

// New returns a controller. It starts nothing.
func New(cfg Config, deps Deps) *Controller {
	return &Controller{
		Config: cfg, Deps: deps, Repairs: newRepairWatch(deps.RepairStore), requests: make(chan request), published: &published{},
	}
}

// Snapshot returns the current snapshot. Before the first pass of a term, and outside of a term,
// its error wraps ErrNotSynced.
func (c *Controller) Snapshot() (*Snapshot, error) {
	if snapshot := c.published.snapshot.Load(); snapshot != nil {
		return snapshot, nil
	}
	if problem := c.published.problem.Load(); problem != nil {
		return nil, fmt.Errorf("%w: %s", ErrNotSynced, *problem)
	}
	return nil, ErrNotSynced
}

// Audit makes a comparison now and returns its snapshot. It blocks until ctx ends at most.
func (c *Controller) Audit(ctx context.Context) (*Snapshot, error) {
	return ask(ctx, c, func(_ context.Context, r *reconciler) (*Snapshot, error) {
		if err := r.watches.err(); err != nil {
			return nil, err
		}
		r.compare(time.Now())
		return r.publish(), nil
	})
}

// IgnoreRequest asks for the mark of a finding.
type IgnoreRequest struct {
	// Finding is the name of the finding.
	Finding string
	// TTL is how long the mark lasts: nil means until the finding ends, 0 takes the mark away.
	TTL     *time.Duration
	Comment string
	Caller  allocation.Caller
	// Etag is the etag of the finding that the caller read; empty accepts any.
	Etag string
	// ValidateOnly checks everything and writes nothing.
	ValidateOnly bool
}

// Ignore marks a finding as ignored, or takes the mark away, and returns the finding as it is then.
// The error wraps ErrFindingNotFound if the finding is not current, and ErrEtagMismatch.
func (c *Controller) Ignore(ctx context.Context, request IgnoreRequest) (allocation.Finding, error) {
	return ask(ctx, c, func(ctx context.Context, r *reconciler) (allocation.Finding, error) { return r.ignore(ctx, request) })
}

// CreatePlan plans the repair of the findings with the given names, or of all open findings if
// there are none, and stores the plan. With validateOnly, it does not store the plan, which then
// has no ID. The error wraps ErrFindingNotFound for the name of a finding that is not open.
func (c *Controller) CreatePlan(ctx context.Context, names []string, caller allocation.Caller, validateOnly bool) (repairstore.Plan, error) {
	snapshot, err := c.Snapshot()
	if err != nil {
		return repairstore.Plan{}, err
	}
	selected, err := selectFindings(snapshot.Current, names)
	if err != nil {
		return repairstore.Plan{}, err
	}
	plan := newPlan(selected, caller, time.Now())
	if validateOnly {
		return plan, nil
	}
	for range idAttempts {
		plan.ID = repairstore.NewID()
		err = c.do(ctx, func(ctx context.Context, r *reconciler) error { return r.storePlan(ctx, plan) })
		if !errors.Is(err, repairstore.ErrExists) {
			break
		}
	}
	return plan, err
}

// idAttempts is how often an ID is drawn for one plan.
const idAttempts = 3

// ApplyRequest asks for the repair of a plan.
type ApplyRequest struct {
	// Plan is the ID of the plan, Etag its etag.
	Plan, Etag string
	Caller     allocation.Caller
	// ValidateOnly checks everything and writes nothing.
	ValidateOnly bool
}

// Apply begins the repair of a plan, applies its steps and returns it. The repair still runs if a
// step could not be written yet. If the plan was applied before, Apply continues an unfinished
// repair and returns an ended one. If the error wraps ErrPlanNotFound, ErrEtagMismatch,
// ErrPlanExpired, ErrPlanDrifted or ErrRepairRunning, nothing was written. After any other error,
// the caller must apply the same plan again.
func (c *Controller) Apply(ctx context.Context, request ApplyRequest) (repairstore.Repair, error) {
	for deadline := time.Now().Add(otherRepairDelay); ; {
		applied, err := ask(ctx, c, func(ctx context.Context, r *reconciler) (applying, error) { return r.apply(ctx, request) })
		switch {
		case err != nil:
			return repairstore.Repair{}, err
		case !applied.isOther && applied.result == nil:
			return applied.repair, nil
		case !applied.isOther:
			return awaitRepair(ctx, applied.result)
		}
		waiting, cancel := context.WithDeadline(ctx, deadline)
		other, err := awaitRepair(waiting, applied.result)
		cancel()
		if err != nil || other.Ended.IsZero() {
			return repairstore.Repair{}, c.otherErr(ctx, applied.repair.ID)
		}
	}
}

// otherErr says why a plan is not applied while another repair is unfinished.
func (c *Controller) otherErr(ctx context.Context, id string) error {
	return c.do(ctx, func(_ context.Context, r *reconciler) error {
		if repair := r.repairs.find(id); repair != nil {
			return repair.runningErr()
		}
		return fmt.Errorf("%w: repairs/%s", ErrRepairRunning, id)
	})
}

// CancelRequest asks for the end of a repair.
type CancelRequest struct {
	// ID is the ID of the repair. Etag is its etag; empty accepts any.
	ID, Etag string
	Caller   allocation.Caller
	// ValidateOnly checks everything and writes nothing.
	ValidateOnly bool
}

// Cancel ends a repair that has steps left, and returns it. A running pass stops before its next
// step; what was written stays. The error wraps ErrRepairNotFound, ErrRepairNotCancellable or
// ErrEtagMismatch if nothing was written.
func (c *Controller) Cancel(ctx context.Context, request CancelRequest) (repairstore.Repair, error) {
	repair, exists, err := c.RepairStore.Repair(ctx, request.ID)
	if err != nil {
		return repairstore.Repair{}, err
	}
	if err := request.check(repair, exists); err != nil {
		return repairstore.Repair{}, err
	}
	if request.ValidateOnly || repair.State() == repairstore.Cancelled {
		return repair, nil
	}
	defer c.cancelling.begin(request.ID)()
	for {
		var running <-chan repairResult
		repair, err := ask(ctx, c, func(ctx context.Context, r *reconciler) (repair repairstore.Repair, err error) {
			repair, running, err = r.cancelRepair(ctx, request)
			return repair, err
		})
		if err != nil || running == nil {
			return repair, err
		}
		if _, err := awaitRepair(ctx, running); err != nil {
			return repairstore.Repair{}, err
		}
	}
}

// AuditLoop is the name of the loop, as --loops takes it.
const AuditLoop = "allocation-audit"

// stall is longer than the time between two passes, and than the writes to the store of one.
const stall = 2 * time.Minute

// Loop runs on the leader.
func (c *Controller) Loop() loop.Loop {
	return loop.Loop{
		Name: AuditLoop, Scope: loop.Leader, Stall: stall, Run: c.Run,
		Doc: "Compares the ClusterIPs and node ports that Services use with the allocated ones, and repairs what is safe to repair.",
	}
}

// CountInto adds "open_findings", "pending_findings" and "ignored_findings" to counts if there is a
// snapshot.
func (c *Controller) CountInto(counts map[string]int64) {
	snapshot, err := c.Snapshot()
	if err != nil {
		return
	}
	open, pending, ignored := int64(0), int64(0), int64(0)
	for _, finding := range snapshot.Current {
		switch {
		case finding.Ignore != nil:
			ignored++
		case finding.State == allocation.StatePending:
			pending++
		default:
			open++
		}
	}
	counts["open_findings"], counts["pending_findings"], counts["ignored_findings"] = open, pending, ignored
}

// Run runs the controller until ctx, which carries the term, ends.
func (c *Controller) Run(ctx context.Context, report loop.Report) error {
	defer c.Reporter.Start(ctx)()
	for ctx.Err() == nil {
		r, err := c.start(ctx)
		if err != nil {
			c.published.drop(err)
			c.published.problems.Store(problemsOf(nil, err, nil))
			context.AfterFunc(ctx, func() { c.published.problems.Store(nil) })
			return err
		}
		r.run(ctx, report)
		r.close(r.stores.endReason())
	}
	return nil
}

// startTimeout bounds the reads at the start of a term.
const startTimeout = 30 * time.Second

func (c *Controller) start(ctx context.Context) (*reconciler, error) {
	reading, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	stores, err := c.Cluster.Stores(reading)
	if err != nil {
		return nil, err
	}
	findings, unreadableFindings, err := c.RepairStore.Findings(reading)
	if err != nil {
		return nil, err
	}
	ignores, unreadableIgnores, err := c.RepairStore.Ignores(reading)
	if err != nil {
		return nil, err
	}
	repairs, unreadableRepairs, err := c.RepairStore.Repairs(reading)
	if err != nil {
		return nil, err
	}
	if unreadableFindings+unreadableIgnores+unreadableRepairs > 0 {
		c.Logger.Warn("cannot read some stored findings or repairs; they stay as they are",
			"findings", unreadableFindings, "ignore_marks", unreadableIgnores, "repairs", unreadableRepairs)
	}
	r := newReconciler(ctx, c, stores)
	r.findings.restore(findings, ignores, repairs)
	r.repairs.restore(repairs)
	r.startWatches()
	return r, nil
}
