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

// Config configures a Runner. All fields are optional.
type Config struct {
	// Loops are all loops of the process, with different names.
	Loops []Loop
	// Selection is the value of --loops, see [ParseSelection].
	Selection []string
	// DryRun are the loops that call Shadow in place of Run until they are switched on; see
	// [ParseDryRun] and [Runner.SetSwitched].
	DryRun []string
	// Logger logs failures, recoveries and panics of loops; nil discards them.
	Logger *slog.Logger
	// Metrics registers trivet_loop_*; nil means none.
	Metrics prometheus.Registerer
}

// Runner runs the enabled loops of a process and records their states. Its methods are safe for
// concurrent use.
type Runner struct {
	records []*record // ordered by name
	logger  *slog.Logger
	metrics *metrics
	running atomic.Bool // whether Run is in progress
}

// NewRunner returns a runner. It starts nothing. Its error names each invalid loop and each unknown
// name in the selection.
func NewRunner(cfg Config) (*Runner, error) {
	names := make([]string, 0, len(cfg.Loops))
	for _, l := range cfg.Loops {
		names = append(names, l.Name)
	}
	selection, err := ParseSelection(names, cfg.Selection)
	var capable []string
	for _, l := range cfg.Loops {
		if l.Shadow != nil {
			capable = append(capable, l.Name)
		}
	}
	dryRun, dryRunErr := ParseDryRun(capable, cfg.DryRun, cfg.Selection)
	if err := errors.Join(checkLoops(cfg.Loops), err, dryRunErr); err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	r := &Runner{
		logger:  cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		metrics: m,
	}
	for _, l := range cfg.Loops {
		shadow := slices.Contains(dryRun, l.Name)
		r.add(l, shadow || selection.Enabled(l.Name, l.OffByDefault), shadow)
	}
	slices.SortFunc(r.records, func(a, b *record) int { return cmp.Compare(a.loop.Name, b.loop.Name) })
	return r, nil
}

func (r *Runner) add(l Loop, enabled, shadow bool) {
	rec := newRecord(l, enabled)
	rec.shadow = shadow
	r.records = append(r.records, rec)
	if enabled {
		r.metrics.expect(l.Name)
	}
}

// Run runs the enabled Always loops until ctx ends and all of them have returned; then it returns
// nil. A second call while one runs is an error.
func (r *Runner) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("loop runner is running already")
	}
	defer r.running.Store(false)
	r.runAll(ctx, Always)
	return nil
}

// RunTerm runs the enabled Leader loops for one held term, until ctx ends and all of them have
// returned; then it returns nil. It may run for several terms concurrently.
func (r *Runner) RunTerm(ctx context.Context) error {
	r.runAll(ctx, Leader)
	return nil
}

// SetSwitched says which loops of Config.DryRun write: they call Run in place of Shadow. The
// context of a run ends when the mode of its loop changes. Other names change nothing. It does not
// block.
func (r *Runner) SetSwitched(loops []string) {
	now := time.Now()
	for _, rec := range r.records {
		rec.setSwitched(now, slices.Contains(loops, rec.loop.Name))
	}
}

// DryRun reports whether a loop must not write: it is in dry run and not switched on. A run that
// wrote before may not have returned yet; [Status] tells that.
func (r *Runner) DryRun(name string) bool {
	for _, rec := range r.records {
		if rec.loop.Name == name {
			return rec.dryRun()
		}
	}
	return false
}

// Status returns the status of every loop, including disabled ones, ordered by name. It does not
// block.
func (r *Runner) Status() []Status {
	now := time.Now()
	statuses := make([]Status, 0, len(r.records))
	for _, rec := range r.records {
		statuses = append(statuses, rec.status(now))
	}
	return statuses
}

// Check is the check of /livez. It fails for each loop that is stalled or has panicked three times
// in a row, because only a restart of the process can help. It ignores loops in dry run.
func (r *Runner) Check() error {
	now := time.Now()
	var problems []error
	for _, rec := range r.records {
		problems = append(problems, rec.dead(now))
	}
	return errors.Join(problems...)
}

// CheckReady is the check of /readyz. It fails for each enabled loop that has not succeeded since
// the process started, or has failed three times in a row. Leader loops count only during a term,
// and loops in dry run never.
func (r *Runner) CheckReady() error {
	var problems []error
	for _, rec := range r.records {
		problems = append(problems, rec.unready())
	}
	return errors.Join(problems...)
}

// runAll supervises the loops of one scope, each in its own goroutine. It waits for ctx even
// without such a loop, because a body must not return during its term.
func (r *Runner) runAll(ctx context.Context, scope Scope) {
	var loops sync.WaitGroup
	for _, rec := range r.records {
		if rec.enabled && (rec.loop.Scope == scope || rec.shadow && rec.loop.ShadowScope == scope) {
			loops.Go(func() { r.supervise(ctx, rec, scope) })
		}
	}
	<-ctx.Done()
	loops.Wait()
}

// checkLoops returns all mistakes in the declarations.
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
		case l.ShadowScope != Always && l.ShadowScope != Leader:
			problems = append(problems, fmt.Errorf("loop %s has unknown scope %d of its dry run", l.Name, l.ShadowScope))
		}
		seen[l.Name] = true
	}
	return errors.Join(problems...)
}
