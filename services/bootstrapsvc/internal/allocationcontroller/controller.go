package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
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
	// requests is unbuffered: after a send, the goroutine of Run has taken the request.
	requests  chan request
	published *published
}

// New returns a controller. It starts nothing.
func New(cfg Config, deps Deps) *Controller {
	return &Controller{Config: cfg, Deps: deps, requests: make(chan request), published: &published{}}
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
	}, nil)
	if err != nil {
		return nil, err
	}
	return snapshot, nil
}

// Repairs returns the stored repairs, the newest first. It works on every replica.
func (c *Controller) Repairs(ctx context.Context) ([]repairstore.Repair, error) {
	repairs, _, err := c.RepairStore.Repairs(ctx)
	return repairs, err
}

// PlanRepair plans the repair of the findings with the given names, or of all open findings if
// there are none. It writes nothing. The error wraps ErrFindingNotFound for the name of a finding
// that is not current.
func (c *Controller) PlanRepair(names []string, now time.Time) (PlannedRepair, error) {
	snapshot, err := c.Snapshot()
	if err != nil {
		return PlannedRepair{}, err
	}
	selected, err := selectFindings(snapshot.Current, names)
	if err != nil {
		return PlannedRepair{}, err
	}
	return newPlannedRepair(selected, now)
}

// ApplyRepair applies the plan of a token on behalf of requester, and returns the repair with its
// results. If the token was applied before, an unfinished repair is continued, and an ended one is
// returned. If the error wraps repairstore.ErrInvalidToken, ErrPlanExpired, ErrPlanDrifted or
// ErrRepairRunning, nothing was written. After any other error, the caller must apply the same
// token again.
func (c *Controller) ApplyRepair(ctx context.Context, text, requester string) (repairstore.Repair, error) {
	token, err := repairstore.ParseToken(text)
	if err != nil {
		return repairstore.Repair{}, err
	}
	var repair repairstore.Repair
	id := repairstore.TokenID(text)
	err = c.do(ctx, func(ctx context.Context, r *reconciler) error {
		var err error
		repair, err = r.applyToken(ctx, token, id, requester)
		return err
	}, func() error { return c.rejectOther(id) })
	if err != nil {
		return repairstore.Repair{}, err
	}
	return repair, nil
}

func (c *Controller) rejectOther(id string) error {
	if running := c.published.running.Load(); running != nil && *running != id {
		return fmt.Errorf("%w: %s", ErrRepairRunning, *running)
	}
	return nil
}

// busyCheckInterval is how long a caller that wants to apply a repair waits while another repair is
// applied.
const busyCheckInterval = time.Second

// errAborted is the error of a request that the controller did not answer before it stopped.
var errAborted = errors.New("the pass ended without a result")

// request is a function that the goroutine of Run calls between passes.
type request struct {
	do func(ctx context.Context, r *reconciler) error
	// reply holds one error, so that the goroutine never waits for the caller. It is closed after
	// do.
	reply chan error
}

// do makes the goroutine of Run call a function, and returns its error. It returns early if ctx
// ends; the function then still runs. While the goroutine is busy, do calls reject, unless it is
// nil, every busyCheckInterval and returns its error.
func (c *Controller) do(ctx context.Context, do func(ctx context.Context, r *reconciler) error, reject func() error) error {
	asked := request{do: do, reply: make(chan error, 1)}
	busy := time.NewTicker(busyCheckInterval)
	defer busy.Stop()
	for sent := false; !sent; {
		select {
		case c.requests <- asked:
			sent = true
		case <-busy.C:
			if reject == nil {
				continue
			}
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

// AuditLoop is the name of the loop, as --loops takes it.
const AuditLoop = "allocation-audit"

// stall is longer than a pass may take, and than the backoff after one that failed.
const stall = 2 * time.Minute

// Loop runs on the leader.
func (c *Controller) Loop() loop.Loop {
	return loop.Loop{
		Name: AuditLoop, Scope: loop.Leader, Stall: stall, Run: c.Run,
		Doc: "Compares the ClusterIPs and node ports that Services use with the allocated ones, and repairs what is safe to repair.",
	}
}

// CountInto adds "open_findings" and "pending_findings" to counts if there is a snapshot.
func (c *Controller) CountInto(counts map[string]int64) {
	snapshot, err := c.Snapshot()
	if err != nil {
		return
	}
	pending := int64(0)
	for _, finding := range snapshot.Current {
		if finding.State == allocation.StatePending {
			pending++
		}
	}
	counts["pending_findings"], counts["open_findings"] = pending, int64(len(snapshot.Current))-pending
}

// Run runs the controller until ctx, which carries the term, ends.
func (c *Controller) Run(ctx context.Context, report loop.Report) error {
	defer c.Reporter.Start(ctx)()
	r, err := c.start(ctx)
	if err != nil {
		c.published.drop(err)
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

func (c *Controller) start(ctx context.Context) (*reconciler, error) {
	stores, err := c.Cluster.Stores(ctx)
	if err != nil {
		return nil, err
	}
	findings, unreadableFindings, err := c.RepairStore.Findings(ctx)
	if err != nil {
		return nil, err
	}
	repairs, unreadableRepairs, err := c.RepairStore.Repairs(ctx)
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

// published is what other goroutines may read while the controller runs.
type published struct {
	// snapshot is nil before the first pass of a term and outside of a term.
	snapshot atomic.Pointer[Snapshot]
	// problem says why snapshot is nil.
	problem atomic.Pointer[string]
	// running is the ID of the repair whose steps are being applied, nil if there is none.
	running atomic.Pointer[string]
}

// drop removes the snapshot. reason is the error of Controller.Snapshot.
func (p *published) drop(reason error) {
	problem := strings.TrimPrefix(reason.Error(), ErrNotSynced.Error()+": ") // Controller.Snapshot adds it
	p.problem.Store(&problem)
	p.snapshot.Store(nil)
}
