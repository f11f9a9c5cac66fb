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
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

const (
	// settle is how long changes are gathered before a pass, so that a burst makes one.
	settle = 50 * time.Millisecond
	// period is the longest time between passes.
	period = 20 * time.Second
	// passTimeout bounds a pass, so that a call that hangs cannot stop the loop.
	passTimeout = 30 * time.Second
	// retryMin and retryMax bound the pause after a pass that failed; it doubles from one to the other.
	retryMin, retryMax = time.Second, 20 * time.Second
	// runningPatience is how long somebody who wants a repair applied waits while another one is.
	runningPatience = time.Second
	// announceAfter is how long passes may fail before the error says since when.
	announceAfter = time.Minute
)

var (
	// ErrNotSynced: not everything has been read yet, so nothing can be said.
	ErrNotSynced = errors.New("what is allocated has not been read yet")
	// ErrFindingNotFound: no finding of that name stands.
	ErrFindingNotFound = errors.New("no such finding")
	// ErrPlanExpired: the plan is too old to be trusted.
	ErrPlanExpired = errors.New("the plan has expired")
	// ErrPlanDrifted: what would be done now is not what was shown.
	ErrPlanDrifted = errors.New("the plan is not what it was")
	// ErrRepairRunning: another repair has not ended.
	ErrRepairRunning = errors.New("another repair is being applied")
	// errAbandoned: a request ended without a result, because its pass panicked or the term ended.
	errAbandoned = errors.New("the pass ended without a result")
)

// Config is what an operator decides.
type Config struct {
	// AutoRepair applies what is safe to do alone.
	AutoRepair bool
	// FindingHistory and RepairHistory are how many ended findings and repairs are remembered.
	FindingHistory, RepairHistory int
	// ExpectedRanges are the ranges that are expected of the bitmaps, as texts; see allocation.Settings.
	ExpectedRanges map[allocation.Store]string
	// GracePeriods is how long findings ripen; its zero value means the default.
	GracePeriods allocation.GracePeriods
}

// Deps is what an auditor works with.
type Deps struct {
	Cluster  Cluster
	Ranges   Ranges
	Store    RepairStore
	Reporter Reporter
	Logger   *slog.Logger
}

// Controller audits one cluster, for one term after the other. Its methods are safe for concurrent use; Run may be called again
// after it has returned.
type Controller struct {
	Config
	Deps
	// requests is unbuffered: who asks knows that the goroutine has taken it.
	requests chan request
	// view is nil while nothing is known.
	view atomic.Pointer[Snapshot]
	// problem says why view is nil.
	problem atomic.Pointer[string]
	// underway is the id of the repair whose steps are being made; nil if there is none.
	underway atomic.Pointer[string]
}

// New returns an auditor; it starts nothing.
func New(cfg Config, deps Deps) *Controller {
	return &Controller{Config: cfg, Deps: deps, requests: make(chan request)}
}

// Snapshot is what is known now. Before the first pass of a term, and outside of one, its error wraps ErrNotSynced.
func (a *Controller) Snapshot() (*Snapshot, error) {
	if view := a.view.Load(); view != nil {
		return view, nil
	}
	if problem := a.problem.Load(); problem != nil {
		return nil, fmt.Errorf("%w: %s", ErrNotSynced, *problem)
	}
	return nil, ErrNotSynced
}

// request is something that the goroutine is to do between passes.
type request struct {
	do func(ctx context.Context, s *session) error
	// reply holds one, so that the goroutine never waits for who asked; it is closed after do.
	reply chan error
}

// do has the goroutine do something and waits for it, at most until ctx ends; it goes on when nobody waits any more. Who has
// waited for a while to be taken asks refuse whether to go on waiting.
func (a *Controller) do(ctx context.Context, do func(ctx context.Context, s *session) error, refuse func() error) error {
	asked := request{do: do, reply: make(chan error, 1)}
	if err := a.handOver(ctx, asked, refuse); err != nil {
		return err
	}
	select {
	case err, ok := <-asked.reply:
		if !ok {
			return errAbandoned
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *Controller) handOver(ctx context.Context, asked request, refuse func() error) error {
	patience := time.NewTicker(runningPatience)
	defer patience.Stop()
	for {
		select {
		case a.requests <- asked:
			return nil
		case <-patience.C:
			if err := refuse(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Audit makes a pass now and returns what it left.
func (a *Controller) Audit(ctx context.Context) (*Snapshot, error) {
	var view *Snapshot
	err := a.do(ctx, func(ctx context.Context, s *session) error {
		if err := s.healthy(); err != nil {
			return err
		}
		now := time.Now()
		if err := s.ascertain(ctx, now); err != nil {
			return err
		}
		if err := s.judge(ctx, now); err != nil {
			return err
		}
		view = s.publish()
		return nil
	}, func() error { return nil })
	if err != nil {
		return nil, err
	}
	return view, nil
}

// Run audits until ctx, which carries the term, ends; it is a loop's Run.
func (a *Controller) Run(ctx context.Context, report loop.Report) error {
	s, err := a.start(ctx)
	if err != nil {
		a.setNotSynced(err)
		return err
	}
	defer s.close()
	timer := time.NewTimer(period)
	defer timer.Stop()
	for {
		timer.Reset(time.Until(s.due))
		select {
		case <-ctx.Done():
			return nil
		case change := <-s.changes:
			change()
			s.hurry(time.Now().Add(settle))
			continue
		case <-timer.C:
		case asked := <-a.requests:
			answer(ctx, s, asked)
		}
		err := s.pass(ctx)
		report(err)
		s.schedule(time.Now(), err)
	}
}

// answer does what was asked for.
func answer(ctx context.Context, s *session, asked request) {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	defer close(asked.reply) // after a panic, too: nobody must wait for what is over
	asked.reply <- asked.do(ctx, s)
}

// setNotSynced takes back what was known.
func (a *Controller) setNotSynced(err error) {
	problem := strings.TrimPrefix(err.Error(), ErrNotSynced.Error()+": ") // View says it
	a.problem.Store(&problem)
	a.view.Store(nil)
}

// start reads what an earlier term left and begins to watch.
func (a *Controller) start(ctx context.Context) (*session, error) {
	stores, err := a.Cluster.Stores(ctx)
	if err != nil {
		return nil, err
	}
	findings, lost, err := a.Store.Findings(ctx)
	if err != nil {
		return nil, err
	}
	repairs, lostRepairs, err := a.Store.Repairs(ctx)
	if err != nil {
		return nil, err
	}
	if lost+lostRepairs > 0 {
		a.Logger.Warn("parts of the journal cannot be read and are left as they are", "findings", lost, "repairs", lostRepairs)
	}
	s := newSession(ctx, a, stores)
	s.book.recall(findings, repairs)
	s.history.recall(repairs)
	s.watch()
	return s, nil
}

var _ RepairStore = (*repairstore.Store)(nil)
