// Package writebackcontroller carries what is to be written from the keeper to the kube-apiserver and brings back what came of it.
//
// Promise: at most Config.Workers writes are under way, and no more than package pace allows after how the last ones went,
// each bounded by Config.Timeout; what is most urgent when some more may begin is written next. A write is made under the term of its job and never after it. Every job that was taken is
// finished, also when the loop ends. A beat never waits for any of it: a slow or absent kube-apiserver makes objects late, not
// sessions.
//
// A pass fails when writes were tried and none succeeded, or when one panicked. A panic costs that one write, which is tried
// again, and no worker. A Lease without a Node, or one that another holder has, is a state of that Lease and no failure of
// the loop.
package writebackcontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

const (
	// poll is how often the keeper is asked for work while there is little.
	pollPeriod = 100 * time.Millisecond
	// pass is the time whose writes are judged together: long enough that one failure among many successes is not a pass.
	passPeriod = time.Second
	// batch is how many writes are taken at a time, at most: enough to keep the workers busy, few enough that what becomes
	// urgent meanwhile waits only milliseconds.
	maxBatch = 64
)

// Source has the jobs. *sessioncontroller.Keeper is one.
type WriteSource interface {
	// Start hands out at most budget jobs.
	StartWrites(ctx context.Context, budget int) ([]sessioncontroller.WriteJob, error)
	// Finish takes what came of a job.
	FinishWrite(sessioncontroller.WriteJob, sessioncontroller.WriteResult) error
	// Backlog is what could be started, as of a moment ago. It does not block.
	Backlog() writeback.Backlog
}

// Writer writes one object. *Writer is one.
type ObjectWriter interface {
	Write(ctx context.Context, r writeback.LeaseUpdate) (writeback.LeaseRecord, Verb, error)
}

// Config is what a Loop is made of.
type Config struct {
	Workers int
	Timeout time.Duration
	Metrics *Metrics
	// Logger gets the stack of a write that panicked.
	Logger *slog.Logger
}

// errTermOver is what came of a job whose term ended before its write began.
var errTermOver = errors.New("the term of the holder's shard is over")

// panicError is a write that panicked.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("the write panicked: %v", e.value) }

// Loop is the work for one source after another; Run may be called again after it has returned.
type Controller struct {
	cfg     Config
	writer  ObjectWriter
	limiter *limiter
}

// New returns a Loop that writes through writer.
func New(cfg Config, writer ObjectWriter) *Controller {
	return &Controller{cfg: cfg, writer: writer, limiter: newLimiter(cfg.Workers)}
}

// Run writes what source has until ctx ends or source does. It reports a pass at once and every second from then on.
func (l *Controller) Run(ctx context.Context, source WriteSource, report func(error)) error {
	r := &run{Controller: l, source: source, jobs: make(chan sessioncontroller.WriteJob)}
	var workers sync.WaitGroup
	defer workers.Wait()
	defer close(r.jobs)
	for range l.cfg.Workers {
		workers.Go(func() { r.work(ctx) })
	}
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	defer l.cfg.Metrics.show(0, writeback.Backlog{})
	var reported time.Time
	for {
		more, err := r.distribute(ctx)
		if ctx.Err() != nil || errors.Is(err, sessioncontroller.ErrStopped) {
			return nil
		}
		if now := time.Now(); now.Sub(reported) >= passPeriod {
			report(errors.Join(err, r.tally.take()))
			r.cfg.Metrics.show(r.limiter.limit(), source.Backlog())
			reported = now
		}
		if more {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// run is one call of Run.
type run struct {
	*Controller
	source WriteSource
	jobs   chan sessioncontroller.WriteJob // closed by Run
	tally  passResult
}

// distribute gives the workers what they can begin at once, and tells whether there may be more.
func (r *run) distribute(ctx context.Context) (more bool, err error) {
	budget := min(maxBatch, r.limiter.await(ctx))
	jobs, err := r.source.StartWrites(ctx, budget)
	if err != nil {
		return false, err
	}
	for _, job := range jobs {
		r.limiter.begin()
		r.jobs <- job // there are as many workers as the gate has room for
	}
	return len(jobs) == budget, nil
}

func (r *run) work(ctx context.Context) {
	for job := range r.jobs {
		result := r.write(ctx, job)
		// The only error is that nothing is kept any more, and nobody is left who would want to know.
		_ = r.source.FinishWrite(job, result)
	}
}

// write writes under the job's term, bounded by the end of ctx and by Timeout.
func (r *run) write(ctx context.Context, job sessioncontroller.WriteJob) sessioncontroller.WriteResult {
	held, end, ok := job.BeginWrite()
	if !ok {
		r.limiter.end(inconclusive, 0, 0)
		return sessioncontroller.WriteResult{Err: errTermOver}
	}
	defer end()
	write, cancel := context.WithTimeout(held, r.cfg.Timeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	begin := time.Now()
	lease, verb, err := r.try(write, job)
	if errors.Is(err, nodestore.ErrNodeMissing) {
		err = fmt.Errorf("%w: %w", sessioncontroller.ErrNoOwner, err)
	}
	took, verdict := time.Since(begin), outcomeOf(verb, err)
	if held.Err() == nil {
		r.tally.note(err) // what the end of a term does to its writes says nothing about the loop
	} else {
		verdict = inconclusive
	}
	r.limiter.end(verdict, took, pauseIn(err))
	r.cfg.Metrics.observe(job.Reason, verb, err, took)
	return sessioncontroller.WriteResult{Lease: lease, Err: err, Pause: pauseAfter(err)}
}

// try makes one write. A panic in it is an error of it.
func (r *run) try(ctx context.Context, job sessioncontroller.WriteJob) (lease writeback.LeaseRecord, verb Verb, err error) {
	defer func() {
		if value := recover(); value != nil {
			lease, verb, err = writeback.LeaseRecord{}, VerbNone, &panicError{value: value}
			r.cfg.Logger.ErrorContext(ctx, "writing a lease panicked, it will be tried again",
				"namespace", job.Namespace, "lease", job.Name, "panic", value, "stack", string(debug.Stack()))
		}
	}()
	return r.writer.Write(ctx, writeback.LeaseUpdate{
		Namespace: job.Namespace, Name: job.Name, Class: job.Class, Duration: job.Duration,
		RenewTime: job.RenewTime, ExpireTime: job.ExpireTime, Last: job.Last,
	})
}

const (
	// strangerPause is how long a Lease is left alone that is another's: to find out costs a read each time.
	foreignHolderPause = time.Minute
	// maxPause is the longest that one Lease waits because it was asked to: a proxy may ask for an hour, and Leases lapse.
	maxPause = 10 * time.Second
)

// pauseAfter is how long the object is left alone at least.
func pauseAfter(err error) time.Duration {
	if errors.Is(err, writeback.ErrForeignHolder) {
		return foreignHolderPause
	}
	return pauseIn(err)
}

// pauseIn is how long the kube-apiserver wants to be left alone, as far as that can be granted.
func pauseIn(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return time.Duration(min(max(seconds, 0), int(maxPause/time.Second))) * time.Second
}

// tally is how the writes of a pass went.
type passResult struct {
	mu        sync.Mutex // guards what follows
	succeeded bool
	failed    error // the first
	panicked  error // the first
}

func (t *passResult) note(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var panicked *panicError
	switch {
	case err == nil:
		t.succeeded = true
	case errors.As(err, &panicked):
		t.panicked = cmp.Or(t.panicked, err)
	case !isLeaseState(err) && t.failed == nil:
		t.failed = err
	}
}

// take returns the failure of the pass, if it was one, and begins the next.
func (t *passResult) take() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	failed := t.failed
	if t.succeeded {
		failed = nil
	}
	failed = cmp.Or(t.panicked, failed)
	t.succeeded, t.failed, t.panicked = false, nil, nil
	return failed
}

// isState tells errors that describe a Lease from errors that describe the world.
func isLeaseState(err error) bool {
	return errors.Is(err, sessioncontroller.ErrNoOwner) || errors.Is(err, writeback.ErrForeignHolder) || errors.Is(err, writeback.ErrTerminating)
}
