package baselinecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

const (
	// PassTimeout bounds one pass, so that a call that hangs cannot stop a loop.
	PassTimeout = 10 * time.Second
	// minBackoff is the pause after a first failure. It doubles up to the period, and less while
	// kube-apiserver is away.
	minBackoff = time.Second
	// maxRounds bounds how often one pass observes and writes. The first round writes, the second
	// finds nothing left. The remaining rounds are for concurrent writers.
	maxRounds = 4
)

var (
	// errContended: another writer keeps changing the objects.
	errContended = fmt.Errorf("objects still differ after %d rounds: another writer keeps changing them", maxRounds)
	// ErrWrite: everything was read, and writes failed.
	ErrWrite = errors.New("cannot write")
	// ErrDrifted: the plan is not the given one any more.
	ErrDrifted = errors.New("the plan has changed")
	// ErrDryRun: the loop is in dry run and writes no plan.
	ErrDryRun = errors.New("the loop is in dry run and writes nothing")
	// errAbandoned: the pass ended without a result, because it panicked.
	errAbandoned = errors.New("the pass ended without a result")
)

// Observation is what one look at the objects of a loop found.
type Observation struct {
	// Changes is the plan: the missing writes in their order, and reports.
	Changes []baseline.Change
	// Counts are facts for Service.Counts, by their stable names. It may be nil.
	Counts map[string]int64
	// Incomplete says what could not be read. What is planned nevertheless is written, and then the
	// pass fails with it.
	Incomplete error
}

// Observe reads the objects of one loop and plans their changes. It writes nothing.
type Observe func(ctx context.Context) (Observation, error)

// Writer applies one change under its guard. Its error wraps guarded.ErrConflict if the object has
// changed since the plan was made.
type Writer interface {
	Apply(ctx context.Context, step baseline.Change) error
}

// ReconcilerConfig describes one loop. All fields but Reasons, Tracer and Applied are required.
type ReconcilerConfig struct {
	// Loop is the name of the loop, for --loops, logs and metrics.
	Loop    string
	Period  time.Duration
	Observe Observe
	Writer  Writer
	// Reasons are the reports that the loop may make. Their metric series exist before the first
	// report.
	Reasons []baseline.Reason
	Logger  *slog.Logger
	Metrics *Metrics
	// Tracer starts the spans of the passes. The zero Tracer starts none.
	Tracer tracing.Tracer
	// Applied is called after each write. It must not block.
	Applied func(baseline.Change)
	// DryRun gets each observation of Compare, or the error of the observation. It must not block.
	// It may be nil if Compare is not called.
	DryRun func(Observation, error)
}

// Reconciler is one reconcile loop: it observes, plans and applies until nothing is left to write.
// Only the goroutine of Run makes passes, so passes never overlap. The other methods are safe for
// concurrent use.
type Reconciler struct {
	ReconcilerConfig

	// triggers holds one, so that a burst of triggers makes one pass.
	triggers chan struct{}
	// triggered is when the waiting trigger came; only with tracing.
	triggered atomic.Pointer[time.Time]
	// requests is unbuffered: a send succeeds only once Run has taken the request.
	requests chan request
	// counts is nil while this replica does not lead.
	counts atomic.Pointer[map[string]int64]
	// writes counts since the process started.
	writes atomic.Int64
	// last is what the last passes found; nil while this replica does not lead.
	last atomic.Pointer[State]
	// reports are those of the last pass that read everything, logged their details. The goroutine
	// of Run owns them.
	reports []baseline.Change
	logged  []string
}

// State is what the last passes of a Reconciler found. It is not modified.
type State struct {
	// Reports and Counts are those of the last pass that read everything.
	Reports []baseline.Change
	Counts  map[string]int64
	// Err is why the last pass failed, and FailingSince when the first of the failed passes ended.
	Err          error
	FailingSince time.Time
}

type request struct {
	observe Observe
	// exact says that only the plan with the fingerprint plan may be written.
	exact bool
	plan  string
	// reply holds one, so that Run never waits for the caller. Run closes it after the pass.
	reply chan reply
}

type reply struct {
	result Result
	err    error
}

// Result is what a pass did.
type Result struct {
	// Tries are the writes, in their order.
	Tries []Try
	// Reports are the changes of the last observation that write nothing.
	Reports []baseline.Change
}

// Try is one write that was tried.
type Try struct {
	baseline.Change

	// Err is why it failed; nil if it was made, or if NotNeeded says that another writer made it.
	Err       error
	NotNeeded bool
	Time      time.Time
}

// NewReconciler returns a reconciler and starts nothing.
func NewReconciler(cfg ReconcilerConfig) *Reconciler {
	cfg.Metrics.setReports(cfg.Loop, cfg.Reasons, nil)
	return &Reconciler{ReconcilerConfig: cfg, triggers: make(chan struct{}, 1), requests: make(chan request)}
}

// Run makes passes until ctx ends; ctx carries the term. It is the Run of a [loop.Loop].
func (r *Reconciler) Run(ctx context.Context, report loop.Report) error {
	return r.run(ctx, report, r.reconcile)
}

// Compare is Run in dry run: DryRun gets each observation, and nothing is written.
func (r *Reconciler) Compare(ctx context.Context, report loop.Report) error {
	return r.run(ctx, report, r.compare)
}

func (r *Reconciler) run(ctx context.Context, report loop.Report, reconcile reconcile) error {
	r.reports, r.logged = nil, nil
	due := time.NewTimer(0)
	defer due.Stop()
	failures := 0
	for {
		asked := request{observe: r.Observe}
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
		case <-r.triggers:
		case asked = <-r.requests:
		}
		err := r.pass(ctx, asked, reconcile)
		report(err)
		pause := r.Period
		if err != nil {
			failures++
			pause = backoff.Exponential{Min: minBackoff, Max: r.Period}.After(failures)
			if errors.Is(err, guarded.ErrUnavailable) {
				pause = min(pause, kubeconn.MaxOutagePause)
			}
		} else {
			failures = 0
		}
		due.Reset(pause)
	}
}

// Trigger makes the next pass start at once. It never blocks.
func (r *Reconciler) Trigger() {
	select {
	case r.triggers <- struct{}{}:
		if r.Tracer.On() {
			now := time.Now()
			r.triggered.Store(&now)
		}
	default:
	}
}

// Reconcile has Run make a pass now. It blocks until the pass ends or ctx ends. The pass runs under
// the context of Run, not under ctx, and goes on after ctx ends. Also a failed pass returns what it
// tried. The error wraps ErrWrite if nothing but writes failed.
func (r *Reconciler) Reconcile(ctx context.Context) (Result, error) {
	return r.ask(ctx, request{observe: r.Observe})
}

// ReconcileWith is Reconcile with another observation for this one pass.
func (r *Reconciler) ReconcileWith(ctx context.Context, observe Observe) (Result, error) {
	return r.ask(ctx, request{observe: observe})
}

// ReconcilePlan is Reconcile for exactly the given writes. It fails with ErrDrifted and writes
// nothing if other writes are planned now. It does not plan again after a conflict.
func (r *Reconciler) ReconcilePlan(ctx context.Context, writes []baseline.Change) (Result, error) {
	return r.ask(ctx, request{observe: r.Observe, exact: true, plan: baseline.Fingerprint(writes)})
}

func (r *Reconciler) ask(ctx context.Context, asked request) (Result, error) {
	asked.reply = make(chan reply, 1)
	select {
	case r.requests <- asked:
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	}
	select {
	case answer, ok := <-asked.reply:
		if !ok {
			return Result{}, errAbandoned
		}
		return answer.result, answer.err
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	}
}

// reconcile is what one pass does.
type reconcile func(ctx context.Context, asked request) (Result, error)

func (r *Reconciler) pass(ctx context.Context, asked request, reconcile reconcile) error {
	ctx, cancel := context.WithTimeout(ctx, PassTimeout)
	defer cancel()
	if asked.reply != nil {
		defer close(asked.reply) // also after a panic: the caller must not wait for a pass that is over
	}
	ctx, span := r.startSpan(ctx, asked)
	result, err := reconcile(ctx, asked)
	endSpan(span, &result, err)
	r.remember(err)
	if asked.reply != nil {
		asked.reply <- reply{result: result, err: err}
	}
	if errors.Is(err, ErrDrifted) || errors.Is(err, ErrDryRun) {
		return nil // the caller's plan failed, not the loop
	}
	return err
}

func (r *Reconciler) reconcile(ctx context.Context, asked request) (Result, error) {
	var tries []Try
	var conflict error
	for range maxRounds {
		observation, err := r.tracedObserve(ctx, asked.observe)
		if err != nil {
			return Result{Tries: tries}, err
		}
		r.counts.Store(&observation.Counts)
		writes, reports := baseline.Writes(observation.Changes), baseline.Reports(observation.Changes)
		tries = settle(tries, writes)
		if asked.exact && baseline.Fingerprint(writes) != asked.plan {
			return Result{}, ErrDrifted
		}
		if !asked.exact {
			writes = baseline.Automatic(writes)
		}
		if len(writes) == 0 {
			r.showReports(reports)
			return Result{Tries: tries, Reports: reports}, observation.Incomplete
		}
		tried, err := r.apply(ctx, writes)
		tries = append(tries, tried...)
		if asked.exact || err != nil && !errors.Is(err, guarded.ErrConflict) {
			return Result{Tries: tries, Reports: reports}, err
		}
		conflict = err
	}
	return Result{Tries: tries}, errors.Join(fmt.Errorf("%w: %w", errContended, guarded.ErrConflict), conflict)
}

// compare observes and writes nothing. A caller that asked for a pass gets ErrDryRun.
func (r *Reconciler) compare(ctx context.Context, asked request) (Result, error) {
	observation, err := r.Observe(ctx)
	r.DryRun(observation, err)
	if err != nil {
		return Result{}, err
	}
	r.counts.Store(&observation.Counts)
	reports := baseline.Reports(observation.Changes)
	r.showReports(reports)
	if asked.reply != nil {
		return Result{Reports: reports}, ErrDryRun
	}
	return Result{Reports: reports}, observation.Incomplete
}

// settle returns the tries of earlier rounds, given the writes that are missing now. A write that
// failed and is missing is tried again, so the failure does not count. One that is not missing any
// more was made by another writer.
func settle(tries []Try, missing []baseline.Change) []Try {
	var settled []Try
	for _, try := range tries {
		if try.Err != nil {
			if slices.ContainsFunc(missing, func(c baseline.Change) bool { return sameObject(c, try.Change) }) {
				continue
			}
			try.Err, try.NotNeeded = nil, true
		}
		settled = append(settled, try)
	}
	return settled
}

func sameObject(a, b baseline.Change) bool { return a.Verb == b.Verb && isOneObject(a, b) }

func isOneObject(a, b baseline.Change) bool {
	return a.Kind() == b.Kind() && a.Object.GetName() == b.Object.GetName() && a.Object.GetNamespace() == b.Object.GetNamespace()
}

// apply tries every write. The writes of one object are made in their order, and different objects
// at the same time: one that cannot be written, or whose write hangs, does not stop the others.
func (r *Reconciler) apply(ctx context.Context, writes []baseline.Change) ([]Try, error) {
	tries := make([]Try, len(writes))
	var objects []func()
	for first, step := range writes {
		if slices.ContainsFunc(writes[:first], func(earlier baseline.Change) bool { return isOneObject(earlier, step) }) {
			continue // it follows the earlier write
		}
		objects = append(objects, func() {
			for i, other := range writes[first:] {
				if isOneObject(other, step) {
					tries[first+i] = r.try(ctx, other)
				}
			}
		})
	}
	Together(objects...)
	var failures []error
	for _, try := range tries {
		if try.Err != nil {
			failures = append(failures, try.Err)
		} else if r.Applied != nil {
			r.Applied(try.Change)
		}
	}
	if len(failures) > 0 {
		return tries, fmt.Errorf("%w: %w", ErrWrite, errors.Join(failures...))
	}
	return tries, nil
}

func (r *Reconciler) try(ctx context.Context, step baseline.Change) Try {
	try := Try{Change: step, Time: time.Now()}
	if try.Err = r.tracedApply(ctx, step); try.Err == nil {
		r.writes.Add(1)
		r.Logger.InfoContext(ctx, "applied change", "kind", step.Kind().Kind, "name", step.Object.GetName(),
			"verb", step.Verb, "reason", step.Reason, "detail", step.Detail)
	}
	return try
}

// remember publishes what the pass found.
func (r *Reconciler) remember(err error) {
	if errors.Is(err, ErrDrifted) || errors.Is(err, ErrDryRun) {
		return
	}
	state := &State{Reports: r.reports, Err: err}
	if counts := r.counts.Load(); counts != nil {
		state.Counts = *counts
	}
	if err != nil {
		state.FailingSince = time.Now()
		if before := r.last.Load(); before != nil && before.Err != nil {
			state.FailingSince = before.FailingSince
		}
	}
	r.last.Store(state)
}

// State returns what the last passes found; nil while this replica does not lead, and before its
// first pass.
func (r *Reconciler) State() *State { return r.last.Load() }

// showReports sets the metrics and logs each report once for as long as it lasts.
func (r *Reconciler) showReports(reports []baseline.Change) {
	r.reports = reports
	r.Metrics.setReports(r.Loop, r.Reasons, reports)
	details := make([]string, 0, len(reports))
	for _, report := range reports {
		details = append(details, report.Detail)
		if !slices.Contains(r.logged, report.Detail) {
			r.Logger.Warn("cannot repair object", "kind", report.Kind().Kind,
				"name", report.Object.GetName(), "reason", report.Reason, "detail", report.Detail)
		}
	}
	r.logged = details
}

// Writes is how many changes were applied since the process started.
func (r *Reconciler) Writes() int64 { return r.writes.Load() }

// CountInto adds the counts of the last observation to all. It adds nothing while this replica does
// not lead.
func (r *Reconciler) CountInto(all map[string]int64) {
	if counts := r.counts.Load(); counts != nil {
		maps.Copy(all, *counts)
	}
}

// Forget drops what only a leader knows. Call it when a term has ended.
func (r *Reconciler) Forget() {
	r.counts.Store(nil)
	r.last.Store(nil)
	r.Metrics.setReports(r.Loop, r.Reasons, nil)
}

// Metrics shows the reports of the reconcile loops. Findings about allocations are no reports; see
// allocationcontroller.Telemetry.
type Metrics struct {
	reports *prometheus.GaugeVec
}

// NewMetrics registers the metrics; a nil registerer leaves them unregistered.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	return &Metrics{reports: promauto.With(registerer).NewGaugeVec(prometheus.GaugeOpts{
		Name: "trivet_bootstrap_baseline_reports",
		Help: "Problems that the last pass of a loop could not repair, by loop and reason; 0 on replicas that do not lead.",
	}, []string{"loop", "reason"})}
}

// setReports replaces the reports of a loop. The series of reasons exist before the first report,
// so that an alert sees the change.
func (m *Metrics) setReports(loop string, reasons []baseline.Reason, reports []baseline.Change) {
	counts := map[baseline.Reason]int{}
	for _, reason := range reasons {
		counts[reason] = 0
	}
	for _, report := range reports {
		counts[report.Reason]++
	}
	m.reports.DeletePartialMatch(prometheus.Labels{"loop": loop}) // also reasons that are not listed
	for reason, count := range counts {
		m.reports.WithLabelValues(loop, string(reason)).Set(float64(count))
	}
}
