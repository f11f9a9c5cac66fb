package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is what a Runner is made of.
type Config struct {
	// Loops are all loops of the process; their names differ.
	Loops []Loop
	// Selection is the value of --loops, see [ParseSelection].
	Selection []string
	// StartJitter delays each start of a loop by a random share of it.
	StartJitter time.Duration
	// Logger gets one line when a loop begins to fail, recovers or panics;
	// nil discards.
	Logger *slog.Logger
	// Metrics gets trivet_loop_*; nil leaves them unregistered.
	Metrics prometheus.Registerer
}

// Runner runs the enabled loops of one process and knows how they fare. Its
// methods are safe for concurrent use.
type Runner struct {
	records []*record // ordered by name
	jitter  time.Duration
	logger  *slog.Logger
	metrics *metrics
	running atomic.Bool // whether Run is in progress
}

// NewRunner checks cfg and starts nothing. Its error names every loop that is
// declared wrongly and every unknown name in the selection.
func NewRunner(cfg Config) (*Runner, error) {
	names := make([]string, 0, len(cfg.Loops))
	for _, l := range cfg.Loops {
		names = append(names, l.Name)
	}
	selection, err := ParseSelection(names, cfg.Selection)
	if err := errors.Join(checkLoops(cfg.Loops), err); err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	r := &Runner{
		jitter:  max(cfg.StartJitter, 0),
		logger:  cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		metrics: m,
	}
	for _, l := range cfg.Loops {
		r.add(l, selection.Enabled(l.Name, l.OffByDefault))
	}
	slices.SortFunc(r.records, func(a, b *record) int { return cmp.Compare(a.loop.Name, b.loop.Name) })
	return r, nil
}

func (r *Runner) add(l Loop, enabled bool) {
	r.records = append(r.records, newRecord(l, enabled))
	if enabled {
		r.metrics.expect(l.Name)
	}
}

// Run runs the enabled Always loops until ctx ends and all of them have
// returned; then it returns nil. It may run only once at a time.
func (r *Runner) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("loop runner is running already")
	}
	defer r.running.Store(false)
	r.runAll(ctx, Always)
	return nil
}

// RunTerm runs the enabled Leader loops for one held term, until ctx ends and
// all of them have returned; then it returns nil. Terms of several shards may
// run at the same time.
func (r *Runner) RunTerm(ctx context.Context) error {
	r.runAll(ctx, Leader)
	return nil
}

// Status is what every loop is doing, disabled ones included, ordered by
// name. It asks no loop and does not wait.
func (r *Runner) Status() []Status {
	now := time.Now()
	statuses := make([]Status, 0, len(r.records))
	for _, rec := range r.records {
		statuses = append(statuses, rec.status(now))
	}
	return statuses
}

// Check is for /livez: it names every loop that only a new process can heal,
// because it is stalled or has panicked three times in a row.
func (r *Runner) Check() error {
	now := time.Now()
	var problems []error
	for _, rec := range r.records {
		problems = append(problems, rec.dead(now))
	}
	return errors.Join(problems...)
}

// CheckReady is for /readyz: it names every loop that should be running here
// and has never succeeded since the process started, or has failed three
// times in a row. Leader loops count only during a term.
func (r *Runner) CheckReady() error {
	var problems []error
	for _, rec := range r.records {
		problems = append(problems, rec.unready())
	}
	return errors.Join(problems...)
}

// runAll supervises the loops of one scope, each in a goroutine of its own.
// It waits for ctx even when there is no such loop, because that is what a
// term's body promises.
func (r *Runner) runAll(ctx context.Context, scope Scope) {
	var loops sync.WaitGroup
	for _, rec := range r.records {
		if rec.enabled && rec.loop.Scope == scope {
			loops.Go(func() { r.supervise(ctx, rec) })
		}
	}
	<-ctx.Done()
	loops.Wait()
}

// checkLoops finds every mistake in the declarations.
func checkLoops(loops []Loop) error {
	var problems []error
	seen := map[string]bool{}
	for _, l := range loops {
		switch {
		case l.Name == "" || l.Name == everything || l.Name[0] == '-':
			problems = append(problems, fmt.Errorf("loop name %q cannot be selected by --loops", l.Name))
		case seen[l.Name]:
			problems = append(problems, fmt.Errorf("loop %s is declared twice", l.Name))
		case l.Run == nil:
			problems = append(problems, fmt.Errorf("loop %s has nothing to run", l.Name))
		case l.Scope != Always && l.Scope != Leader:
			problems = append(problems, fmt.Errorf("loop %s has unknown scope %d", l.Name, l.Scope))
		}
		seen[l.Name] = true
	}
	return errors.Join(problems...)
}
