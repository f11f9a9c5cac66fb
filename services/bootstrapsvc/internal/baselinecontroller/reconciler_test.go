package baselinecontroller

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/guarded"
)

// noWriter fails the test at each write.
type noWriter struct{ t *testing.T }

func (w noWriter) Apply(_ context.Context, step baseline.Change) error {
	w.t.Errorf("unexpected write: %+v", step)
	return nil
}

func newReconciler(t *testing.T, period time.Duration, observe Observe) *Reconciler {
	t.Helper()
	metrics := NewMetrics(nil)
	return NewReconciler(ReconcilerConfig{
		Loop: "test", Period: period, Observe: observe, Writer: noWriter{t},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: metrics,
	})
}

func TestReconciler_BurstOfTriggersMakesOnePass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		passes := 0
		r := newReconciler(t, time.Hour, func(context.Context) (Observation, error) {
			passes++
			return Observation{}, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = r.Run(ctx, func(error) {}) }()
		synctest.Wait()
		for range 100 {
			r.Trigger()
		}
		synctest.Wait()
		if passes < 2 || passes > 3 {
			t.Errorf("%d passes, want the first and one or two for the burst", passes)
		}
	})
}

func TestReconciler_RequestOfAPassThatPanicsEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReconciler(t, time.Hour, func(context.Context) (Observation, error) { panic("out of order") })
		go func() {
			defer func() { _ = recover() }()
			_ = r.pass(t.Context(), <-r.requests, r.reconcile)
		}()
		if _, err := r.Reconcile(t.Context()); !errors.Is(err, errAbandoned) {
			t.Errorf("Reconcile = %v, want %v", err, errAbandoned)
		}
	})
}

func TestReconciler_BackoffDoublesUpToThePeriodAndEndsWithASuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const period, failures = 10 * time.Second, 7
		var passes []time.Time
		r := newReconciler(t, period, func(context.Context) (Observation, error) {
			passes = append(passes, time.Now())
			if len(passes) <= failures || len(passes) == failures+2 {
				return Observation{}, errors.New("unavailable")
			}
			return Observation{}, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+10*time.Second)
		defer cancel()
		_ = r.Run(ctx, func(error) {})
		var pauses []time.Duration
		for i := 1; i < len(passes); i++ {
			pauses = append(pauses, passes[i].Sub(passes[i-1]))
		}
		want := []time.Duration{
			time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, period, period, period, // after failures
			period,      // after the success
			time.Second, // after the next failure
		}
		if diff := cmp.Diff(want, pauses[:min(len(want), len(pauses))]); diff != "" {
			t.Errorf("pauses (-want +got):\n%s", diff)
		}
	})
}

// A pass follows soon after kube-apiserver is back, also if the period is long.
func TestReconciler_BackoffIsShortWhileKubeAPIServerIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const outage = 5 * time.Minute
		var passes []time.Time
		r := newReconciler(t, time.Hour, func(context.Context) (Observation, error) {
			passes = append(passes, time.Now())
			return Observation{}, guarded.ErrUnavailable
		})
		ctx, cancel := context.WithTimeout(t.Context(), outage)
		defer cancel()
		_ = r.Run(ctx, func(error) {})
		if n := len(passes); n < 2 || passes[n-1].Sub(passes[n-2]) > kubeconn.MaxOutagePause {
			t.Errorf("passes at %v, want one every %v", passes, kubeconn.MaxOutagePause)
		}
	})
}

// findings are the series of trivet_bootstrap_baseline_reports as loop/reason.
func findings(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "trivet_bootstrap_baseline_reports" {
			continue
		}
		for _, series := range family.GetMetric() {
			found[series.GetLabel()[0].GetValue()+"/"+series.GetLabel()[1].GetValue()] = series.GetGauge().GetValue()
		}
	}
	return found
}

func TestReconciler_FindingSeriesExistBeforeTheFirstReport(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	metrics := NewMetrics(registry)
	var reports []baseline.Change
	r := NewReconciler(ReconcilerConfig{
		Loop: "test", Period: time.Hour, Writer: noWriter{t}, Metrics: metrics, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Reasons: []baseline.Reason{baseline.NamespaceTerminating, baseline.NamespaceMislabelled},
		Observe: func(context.Context) (Observation, error) {
			return Observation{Changes: slices.Clone(reports)}, nil
		},
	})
	want := map[string]float64{"test/NAMESPACE_TERMINATING": 0, "test/NAMESPACE_MISLABELLED": 0}
	check := func(when string) {
		t.Helper()
		if diff := cmp.Diff(want, findings(t, registry)); diff != "" {
			t.Errorf("findings %s (-want +got):\n%s", when, diff)
		}
	}
	pass := func() {
		t.Helper()
		if err := r.pass(t.Context(), request{observe: r.Observe}, r.reconcile); err != nil {
			t.Fatal(err)
		}
	}
	check("before a term")
	report := baseline.Change{Verb: planned.Report, Reason: baseline.NamespaceTerminating, Object: &corev1.Namespace{}}
	reports = []baseline.Change{report, report}
	pass()
	want["test/NAMESPACE_TERMINATING"] = 2
	check("of a pass")
	reports = nil
	pass()
	want["test/NAMESPACE_TERMINATING"] = 0
	check("of a pass without reports")
	reports = []baseline.Change{report}
	pass()
	r.Forget()
	check("after a term")
}

// scriptedWriter fails the writes of an object with the error of its name.
type scriptedWriter map[string]error

func (w scriptedWriter) Apply(_ context.Context, step baseline.Change) error {
	return w[step.Object.GetName()]
}

func creating(names ...string) []baseline.Change {
	var changes []baseline.Change
	for _, name := range names {
		changes = append(changes, baseline.Change{Verb: planned.Create, Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}})
	}
	return changes
}

// outcomes has each try as its name and what came of it.
func outcomes(tries []Try) []string {
	var texts []string
	for _, try := range tries {
		text := try.Object.GetName() + " applied"
		switch {
		case try.NotNeeded:
			text = try.Object.GetName() + " not needed"
		case try.Err != nil:
			text = try.Object.GetName() + " failed"
		}
		texts = append(texts, text)
	}
	return texts
}

func TestReconciler_TriesHaveOutcomes(t *testing.T) {
	t.Parallel()
	conflict, denied := guarded.ErrConflict, errors.New("denied")
	for name, c := range map[string]struct {
		rounds [][]baseline.Change // what is missing in each round
		errors map[string]error
		want   []string
		err    error
	}{
		"all are written":         {[][]baseline.Change{creating("a", "b"), nil}, nil, []string{"a applied", "b applied"}, nil},
		"another writer was it":   {[][]baseline.Change{creating("a", "b"), nil}, map[string]error{"a": conflict}, []string{"a not needed", "b applied"}, nil},
		"a write is denied":       {[][]baseline.Change{creating("a", "b")}, map[string]error{"a": denied}, []string{"a failed", "b applied"}, ErrWrite},
		"a conflict does not end": {[][]baseline.Change{creating("a"), creating("a"), creating("a"), creating("a")}, map[string]error{"a": conflict}, []string{"a failed"}, conflict},
		"a conflict, then denied": {[][]baseline.Change{creating("a", "b"), creating("c")}, map[string]error{"a": conflict, "c": denied}, []string{"a not needed", "b applied", "c failed"}, ErrWrite},
	} {
		t.Run(name, func(t *testing.T) {
			round := 0
			r := newReconciler(t, time.Hour, func(context.Context) (Observation, error) {
				round++
				return Observation{Changes: c.rounds[round-1]}, nil
			})
			r.Writer = scriptedWriter(c.errors)
			result, err := r.reconcile(t.Context(), request{observe: r.Observe})
			if diff := cmp.Diff(c.want, outcomes(result.Tries)); diff != "" || !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v; outcomes (-want +got):\n%s", err, c.err, diff)
			}
		})
	}
}

func TestReconcilePlan_WritesThatPlanOrNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		missing := creating("a")
		r := newReconciler(t, time.Hour, func(context.Context) (Observation, error) { return Observation{Changes: missing}, nil })
		written := scriptedWriter{"a": guarded.ErrConflict}
		r.Writer = written
		asked := func(plan []baseline.Change) (Result, error) {
			return r.reconcile(t.Context(), request{observe: r.Observe, exact: true, plan: baseline.Fingerprint(plan)})
		}
		if result, err := asked(creating("b")); !errors.Is(err, ErrDrifted) || len(result.Tries) != 0 {
			t.Errorf("another plan: %v after %v, want ErrDrifted and no write", err, outcomes(result.Tries))
		}
		if result, err := asked(creating("a")); !errors.Is(err, guarded.ErrConflict) || len(result.Tries) != 1 {
			t.Errorf("conflict: %v after %v, want no second try", err, outcomes(result.Tries))
		}
		delete(written, "a")
		if result, err := asked(creating("a")); err != nil || len(result.Tries) != 1 {
			t.Errorf("the plan: %v after %v, want one write", err, outcomes(result.Tries))
		}
	})
}
