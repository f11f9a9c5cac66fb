package baselinecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trivet-dev/trivet/internal/loop"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

const (
	// PassTimeout bounds one pass, so that a call that hangs cannot stop a loop.
	PassTimeout = 10 * time.Second
	// minBackoff is the pause after a first failure. It doubles up to the period.
	minBackoff = time.Second
	// maxRounds bounds how often one pass observes and writes. The first round writes, the second
	// finds nothing left. The remaining rounds are for concurrent writers.
	maxRounds = 4
)

var (
	// errContended: another writer keeps changing the objects.
	errContended = fmt.Errorf("objects still differ after %d rounds: another writer keeps changing them", maxRounds)
	// errAbandoned: the pass ended without a result, because it panicked.
	errAbandoned = errors.New("the pass ended without a result")
)

// Observation is what one look at the objects of a loop found.
type Observation struct {
	// Changes is the plan: the missing writes in their order, and reports.
	Changes []baseline.Change
	// Counts are facts for Service.Counts, by their stable names. It may be nil.
	Counts map[string]int64
}

// Observe reads the objects of one loop and plans their changes. It writes nothing.
type Observe func(ctx context.Context) (Observation, error)

// Writer applies one change under its guard. Its error wraps guarded.ErrConflict if the object has
// changed since the plan was made.
type Writer interface {
	Apply(ctx context.Context, step baseline.Change) error
}

// ReconcilerConfig describes one loop. All fields but Reasons are required.
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
}

// Reconciler is one reconcile loop: it observes, plans and applies until nothing is left to write.
// Only the goroutine of Run makes passes, so passes never overlap. The other methods are safe for
// concurrent use.
type Reconciler struct {
	ReconcilerConfig

	// triggers holds one, so that a burst of triggers makes one pass.
	triggers chan struct{}
	// requests is unbuffered: a send succeeds only once Run has taken the request.
	requests chan request
	// counts is nil while this replica does not lead.
	counts atomic.Pointer[map[string]int64]
	// writes counts since the process started.
	writes atomic.Int64
	// logged are the details of the reports of the last pass. The goroutine of Run owns it.
	logged []string
}

type request struct {
	observe Observe
	// reply holds one, so that Run never waits for the caller. Run closes it after the pass.
	reply chan result
}

type result struct {
	changes []baseline.Change
	err     error
}

// NewReconciler returns a reconciler and starts nothing.
func NewReconciler(cfg ReconcilerConfig) *Reconciler {
	cfg.Metrics.setReports(cfg.Loop, cfg.Reasons, nil)
	return &Reconciler{ReconcilerConfig: cfg, triggers: make(chan struct{}, 1), requests: make(chan request)}
}

// Run makes passes until ctx ends; ctx carries the term. It is the Run of a [loop.Loop].
func (r *Reconciler) Run(ctx context.Context, report loop.Report) error {
	due := time.NewTimer(0)
	defer due.Stop()
	backoff := r.newBackoff()
	for {
		asked := request{observe: r.Observe}
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
		case <-r.triggers:
		case asked = <-r.requests:
		}
		err := r.pass(ctx, asked)
		report(err)
		pause := r.Period
		if err != nil {
			pause = backoff.Step()
		} else {
			backoff = r.newBackoff()
		}
		due.Reset(pause)
	}
}

func (r *Reconciler) newBackoff() wait.Backoff {
	return wait.Backoff{Duration: minBackoff, Factor: 2, Cap: r.Period, Steps: math.MaxInt32}
}

// Trigger makes the next pass start at once. It never blocks.
func (r *Reconciler) Trigger() {
	select {
	case r.triggers <- struct{}{}:
	default:
	}
}

// Reconcile has Run make a pass now. It returns the writes in their order and then the reports. It
// blocks until the pass ends or ctx ends. The pass runs under the context of Run, not under ctx,
// and goes on after ctx ends.
func (r *Reconciler) Reconcile(ctx context.Context) ([]baseline.Change, error) {
	return r.ReconcileWith(ctx, r.Observe)
}

// ReconcileWith is Reconcile with another observation for this one pass.
func (r *Reconciler) ReconcileWith(ctx context.Context, observe Observe) ([]baseline.Change, error) {
	asked := request{observe: observe, reply: make(chan result, 1)}
	select {
	case r.requests <- asked:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	select {
	case answer, ok := <-asked.reply:
		if !ok {
			return nil, errAbandoned
		}
		return answer.changes, answer.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (r *Reconciler) pass(ctx context.Context, asked request) error {
	ctx, cancel := context.WithTimeout(ctx, PassTimeout)
	defer cancel()
	if asked.reply == nil {
		_, err := r.reconcile(ctx, asked.observe)
		return err
	}
	defer close(asked.reply) // also after a panic: the caller must not wait for a pass that is over
	changes, err := r.reconcile(ctx, asked.observe)
	asked.reply <- result{changes: changes, err: err}
	return err
}

func (r *Reconciler) reconcile(ctx context.Context, observe Observe) ([]baseline.Change, error) {
	var done []baseline.Change
	var conflict error
	for range maxRounds {
		observation, err := observe(ctx)
		if err != nil {
			return done, err
		}
		r.counts.Store(&observation.Counts)
		writes := baseline.Writes(observation.Changes)
		if len(writes) == 0 {
			r.showReports(observation.Changes)
			return append(done, observation.Changes...), nil
		}
		written, err := r.apply(ctx, writes)
		done = append(done, written...)
		if err != nil && !errors.Is(err, guarded.ErrConflict) {
			return done, err
		}
		conflict = err
	}
	return done, errors.Join(fmt.Errorf("%w: %w", errContended, guarded.ErrConflict), conflict)
}

// apply tries every write: an object that cannot be written does not stop the remaining ones.
func (r *Reconciler) apply(ctx context.Context, writes []baseline.Change) ([]baseline.Change, error) {
	var written []baseline.Change
	var failures []error
	for _, step := range writes {
		if err := r.Writer.Apply(ctx, step); err != nil {
			failures = append(failures, err)
			continue
		}
		r.writes.Add(1)
		r.Logger.InfoContext(ctx, "applied change", "kind", step.Kind().Kind, "name", step.Object.GetName(),
			"verb", step.Verb, "reason", step.Reason, "detail", step.Detail)
		written = append(written, step)
	}
	return written, errors.Join(failures...)
}

// showReports sets the metrics and logs each report once for as long as it lasts.
func (r *Reconciler) showReports(reports []baseline.Change) {
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
		Name: "trivet_bootstrap_findings",
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
