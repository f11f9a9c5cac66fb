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

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

const (
	// pollPeriod is how often due writes are asked for while there are few.
	pollPeriod = 100 * time.Millisecond
	// passPeriod is the time whose writes make up one pass.
	passPeriod = time.Second
	// maxBatch is the number of writes that are taken at a time. It keeps the workers busy, and a
	// write that becomes urgent waits for milliseconds only.
	maxBatch = 64
	// foreignHolderPause is the pause after ErrForeignHolder, because each attempt costs a read.
	foreignHolderPause = time.Minute
	// maxPause bounds the pause that the kube-apiserver may ask for. A proxy may ask for an hour;
	// Leases would lapse.
	maxPause = 10 * time.Second
)

// WriteSource has the due writes. *sessioncontroller.Controller is one.
type WriteSource interface {
	// StartWrites returns at most limit jobs.
	StartWrites(ctx context.Context, limit int) ([]sessioncontroller.WriteJob, error)
	// FinishWrite takes the result of a job.
	FinishWrite(sessioncontroller.WriteJob, sessioncontroller.WriteResult) error
	// Backlog does not block.
	Backlog() writeback.Backlog
}

// ObjectWriter writes one Lease. *LeaseWriter is one.
type ObjectWriter interface {
	Write(ctx context.Context, u writeback.LeaseUpdate) (writeback.LeaseRecord, planned.Verb, error)
}

// Config configures a Controller. All fields are required.
type Config struct {
	// Workers is the maximum number of concurrent writes.
	Workers int
	// Timeout bounds one write.
	Timeout time.Duration
	Metrics *Metrics
	Logger  *slog.Logger
}

// Controller writes the due Leases. Run may be called again after it has returned.
type Controller struct {
	cfg     Config
	writer  ObjectWriter
	limiter *limiter
}

// New returns a Controller.
func New(cfg Config, writer ObjectWriter) *Controller {
	return &Controller{cfg: cfg, writer: writer, limiter: newLimiter(cfg.Workers)}
}

// Run writes what is due until ctx ends or the source stops. It reports a pass at once and then
// every second.
func (c *Controller) Run(ctx context.Context, source WriteSource, report func(error)) error {
	r := &run{Controller: c, source: source, jobs: make(chan sessioncontroller.WriteJob)}
	var workers sync.WaitGroup
	defer workers.Wait()
	defer close(r.jobs)
	for range c.cfg.Workers {
		workers.Go(func() { r.work(ctx) })
	}
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	defer c.cfg.Metrics.setBacklog(0, writeback.Backlog{})
	var reported time.Time
	for {
		more, err := r.distribute(ctx)
		if ctx.Err() != nil || errors.Is(err, sessioncontroller.ErrStopped) {
			return nil
		}
		if now := time.Now(); now.Sub(reported) >= passPeriod {
			report(errors.Join(err, r.result.take()))
			c.cfg.Metrics.setBacklog(c.limiter.limit(), source.Backlog())
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
	result passResult
}

// distribute gives the workers as many writes as may start now. more reports whether further ones
// may be due.
func (r *run) distribute(ctx context.Context) (more bool, err error) {
	limit := min(maxBatch, r.limiter.await(ctx))
	jobs, err := r.source.StartWrites(ctx, limit)
	if err != nil {
		return false, err
	}
	for _, job := range jobs {
		r.limiter.begin()
		r.jobs <- job // does not block for long: the limit is at most the number of workers
	}
	return len(jobs) == limit, nil
}

func (r *run) work(ctx context.Context) {
	for job := range r.jobs {
		result := r.write(ctx, job)
		// The only error is ErrStopped; the result is not needed then.
		_ = r.source.FinishWrite(job, result)
	}
}

// write makes one write under the term of the job's shard. The end of ctx and the timeout cancel
// it.
func (r *run) write(ctx context.Context, job sessioncontroller.WriteJob) sessioncontroller.WriteResult {
	termCtx, end, ok := job.Shard.BeginWrite()
	if !ok {
		r.limiter.end(inconclusive, 0, 0)
		return sessioncontroller.WriteResult{Err: errTermEnded}
	}
	defer end()
	writeCtx, cancel := context.WithTimeout(termCtx, r.cfg.Timeout)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	begin := time.Now()
	lease, verb, err := r.tryWrite(writeCtx, job)
	if errors.Is(err, nodestore.ErrNodeMissing) {
		err = fmt.Errorf("%w: %w", sessioncontroller.ErrNoOwner, err)
	}
	took, outcome := time.Since(begin), outcomeOf(verb, err)
	if termCtx.Err() == nil {
		r.result.add(err)
	} else {
		outcome = inconclusive // the end of the term cancelled the write
	}
	r.limiter.end(outcome, took, pauseOf(err))
	r.cfg.Metrics.observe(job.Reason, verb, err, took)
	result := sessioncontroller.WriteResult{Lease: lease, Err: err, Pause: pauseOf(err)}
	if errors.Is(err, writeback.ErrForeignHolder) {
		result.Pause = foreignHolderPause
	}
	return result
}

// tryWrite turns a panic of the write into an error.
func (r *run) tryWrite(ctx context.Context, job sessioncontroller.WriteJob) (lease writeback.LeaseRecord, verb planned.Verb, err error) {
	defer func() {
		if value := recover(); value != nil {
			lease, verb, err = writeback.LeaseRecord{}, planned.None, &panicError{value: value}
			r.cfg.Logger.ErrorContext(ctx, "lease write panicked",
				"namespace", job.Namespace, "lease", job.Name, "panic", value, "stack", string(debug.Stack()))
		}
	}()
	return r.writer.Write(ctx, job.LeaseUpdate)
}

// errTermEnded is the result of a job whose term ended before its write began.
var errTermEnded = errors.New("the term of the holder's shard has ended")

// panicError is the error of a write that panicked.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("the write panicked: %v", e.value) }

// pauseOf returns the pause that the kube-apiserver asked for, at most maxPause.
func pauseOf(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return time.Duration(min(max(seconds, 0), int(maxPause/time.Second))) * time.Second
}

// isLeaseState reports whether the error describes the state of one Lease. Other errors are
// failures of the controller.
func isLeaseState(err error) bool {
	return errors.Is(err, sessioncontroller.ErrNoOwner) || errors.Is(err, writeback.ErrForeignHolder) || errors.Is(err, writeback.ErrTerminating)
}

// passResult collects the results of a pass. It is safe for concurrent use.
type passResult struct {
	mu         sync.Mutex // guards all fields
	succeeded  bool
	firstError error
	firstPanic error
}

func (p *passResult) add(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var panicked *panicError
	switch {
	case err == nil:
		p.succeeded = true
	case errors.As(err, &panicked):
		p.firstPanic = cmp.Or(p.firstPanic, err)
	case !isLeaseState(err) && p.firstError == nil:
		p.firstError = err
	}
}

// take returns the error of the pass and begins the next pass.
func (p *passResult) take() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.firstError
	if p.succeeded {
		err = nil
	}
	err = cmp.Or(p.firstPanic, err)
	p.succeeded, p.firstError, p.firstPanic = false, nil, nil
	return err
}
