package loop_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/trivet-dev/trivet/internal/loop"
)

// idle is a Loop.Run that succeeds once and then waits.
func idle(ctx context.Context, report loop.Report) error {
	report(nil)
	<-ctx.Done()
	return nil
}

// silent is a Loop.Run that never finishes a pass.
func silent(ctx context.Context, _ loop.Report) error {
	<-ctx.Done()
	return nil
}

// failing fails every second.
func failing(err error) func(context.Context, loop.Report) error {
	return loop.Every(time.Second, func(context.Context) error { return err })
}

func newRunner(t *testing.T, loops ...loop.Loop) *loop.Runner {
	t.Helper()
	runner, err := loop.NewRunner(loop.Config{Loops: loops})
	if err != nil {
		t.Fatal(err)
	}
	return runner
}

// begin calls run in a goroutine of the bubble. The returned function cancels it and waits.
func begin(t *testing.T, run func(context.Context) error) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("runner returned %v", err)
		}
	}
}

// after advances the clock by d and waits until all goroutines block.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func states(runner *loop.Runner) map[string]string {
	states := map[string]string{}
	for _, status := range runner.Status() {
		states[status.Name] = status.State.String()
	}
	return states
}

func wantStates(t *testing.T, runner *loop.Runner, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, states(runner)); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

func TestNewRunner_NamesEveryMistake(t *testing.T) {
	t.Parallel()
	_, err := loop.NewRunner(loop.Config{
		Loops: []loop.Loop{
			{Name: "good", Run: idle},
			{Name: "good", Run: idle},
			{Name: "", Run: idle},
			{Name: "-minus", Run: idle},
			{Name: "*", Run: idle},
			{Name: "empty"},
			{Name: "lost", Scope: 7, Run: idle},
		},
		Selection: []string{"unknown", "*"},
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`good is declared twice`, `name "" cannot`, `name "-minus" cannot`, `name "*" cannot`,
		`empty has nothing to run`, `lost has unknown scope 7`, `no such loop: "unknown"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q:\n%v", want, err)
		}
	}
}

func TestRunner_StartsNothingUntilRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runner := newRunner(t,
			loop.Loop{Name: "always", Run: idle},
			loop.Loop{Name: "leader", Scope: loop.Leader, Run: idle},
			loop.Loop{Name: "rare", OffByDefault: true, Run: idle},
		)
		after(time.Hour)
		wantStates(t, runner, map[string]string{"always": "standby", "leader": "standby", "rare": "disabled"})
	})
}

func TestRunner_LeaderLoopsRunOnlyDuringATerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runner := newRunner(t,
			loop.Loop{Name: "always", Run: idle},
			loop.Loop{Name: "leader", Scope: loop.Leader, Run: idle},
		)
		defer begin(t, runner.Run)()
		after(time.Second)
		wantStates(t, runner, map[string]string{"always": "running", "leader": "standby"})

		endTerm := begin(t, runner.RunTerm)
		after(time.Second)
		wantStates(t, runner, map[string]string{"always": "running", "leader": "running"})

		endTerm()
		wantStates(t, runner, map[string]string{"always": "running", "leader": "standby"})
	})
}

func TestRunner_ReturnsOnlyAfterItsLoops(t *testing.T) {
	t.Parallel()
	const farewell = 5 * time.Second
	slow := func(ctx context.Context, report loop.Report) error {
		report(nil)
		<-ctx.Done()
		time.Sleep(farewell)
		return ctx.Err()
	}
	for name, start := range map[string]func(*loop.Runner) func(context.Context) error{
		"Run":     func(r *loop.Runner) func(context.Context) error { return r.Run },
		"RunTerm": func(r *loop.Runner) func(context.Context) error { return r.RunTerm },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				runner := newRunner(t,
					loop.Loop{Name: "always", Run: slow},
					loop.Loop{Name: "leader", Scope: loop.Leader, Run: slow},
				)
				end := begin(t, start(runner))
				after(time.Second)
				ended := time.Now()
				end()
				if took := time.Since(ended); took != farewell {
					t.Errorf("returned %s after the end, its loop %s after it", took, farewell)
				}
				for _, status := range runner.Status() {
					if status.Failures != 0 || status.State != loop.Standby {
						t.Errorf("after an orderly end: %+v", status)
					}
				}
			})
		})
	}
}

func TestRunner_WithoutLoopsWaitsForTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begun := time.Now()
		if err := newRunner(t).RunTerm(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took != time.Hour {
			t.Errorf("returned after %s: the term would be given up", took)
		}
	})
}

func TestRunner_RunsOnlyOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runner := newRunner(t, loop.Loop{Name: "one", Run: idle})
		end := begin(t, runner.Run)
		after(time.Second)
		if err := runner.Run(t.Context()); err == nil {
			t.Error("a second Run started every loop again")
		}
		end()
		begin(t, runner.Run)() // after the first has returned it may run again
	})
}

func TestRunner_PassesTheTermsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		seen := make(chan any, 1)
		runner := newRunner(t, loop.Loop{Name: "leader", Scope: loop.Leader, Run: func(ctx context.Context, report loop.Report) error {
			seen <- ctx.Value(key{})
			return idle(ctx, report)
		}})
		end := begin(t, func(ctx context.Context) error {
			return runner.RunTerm(context.WithValue(ctx, key{}, "term"))
		})
		if got := <-seen; got != "term" {
			t.Errorf("the loop's context carries %v", got)
		}
		end()
	})
}

func TestRunner_DisabledLoopsNeverRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		forbidden := func(context.Context, loop.Report) error {
			t.Error("a disabled loop ran")
			return nil
		}
		runner, err := loop.NewRunner(loop.Config{
			Loops: []loop.Loop{
				{Name: "off", Run: forbidden},
				{Name: "off-leader", Scope: loop.Leader, Run: forbidden},
				{Name: "on", Run: idle},
			},
			Selection: []string{"on"},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer begin(t, runner.Run)()
		defer begin(t, runner.RunTerm)()
		after(time.Hour)
		wantStates(t, runner, map[string]string{"off": "disabled", "off-leader": "disabled", "on": "running"})
		if err := errors.Join(runner.Check(), runner.CheckReady()); err != nil {
			t.Errorf("a disabled loop counts against health: %v", err)
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A dry run is no work: neither its failures nor its hanging take the replica from the other loops.
func TestRunner_ChecksIgnoreLoopsInDryRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := func(ctx context.Context, _ loop.Report) error {
			<-ctx.Done()
			return nil
		}
		fails := func(context.Context, loop.Report) error { return errBroken }
		for _, dryRun := range [][]string{{"fails", "hangs"}, nil} {
			runner, err := loop.NewRunner(loop.Config{DryRun: dryRun, Loops: []loop.Loop{
				{Name: "hangs", Stall: time.Minute, Shadow: hangs, Run: hangs}, {Name: "fails", Shadow: fails, Run: fails},
			}})
			if err != nil {
				t.Fatal(err)
			}
			end := begin(t, runner.Run)
			after(3 * time.Minute)
			live, ready := runner.Check(), runner.CheckReady()
			if wanted := dryRun == nil; (live != nil) != wanted || (ready != nil) != wanted {
				t.Errorf("in dry run %v: live %v, ready %v", dryRun, live, ready)
			}
			if got := states(runner); got["hangs"] != "stalled" || got["fails"] != "failing" {
				t.Errorf("in dry run %v: states %v, want that the status tells", dryRun, got)
			}
			end()
		}
	})
}

// A loop in dry run writes while it is switched on, in the scope of its Run. Its status calls it a
// dry run only when nothing that writes runs any more.
func TestSetSwitched_ChangesTheModeAndItsScope(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var writing, comparing atomic.Int64
		mayReturn := make(chan struct{})
		runner, err := loop.NewRunner(loop.Config{
			Loops: []loop.Loop{{
				Name: "duty", Scope: loop.Leader, ShadowScope: loop.Always,
				Run: func(ctx context.Context, report loop.Report) error {
					writing.Add(1)
					defer writing.Add(-1)
					report(nil)
					<-ctx.Done()
					<-mayReturn // a write that is under way
					return nil
				},
				Shadow: func(ctx context.Context, report loop.Report) error {
					comparing.Add(1)
					defer comparing.Add(-1)
					return idle(ctx, report)
				},
			}},
			DryRun: []string{"duty"},
		})
		if err != nil {
			t.Fatal(err)
		}
		endAlways, endTerm := begin(t, runner.Run), begin(t, runner.RunTerm)
		expect := func(what string, wantWriting, wantComparing int64, mustNotWrite, dryRun, switched bool) {
			t.Helper()
			synctest.Wait()
			status := runner.Status()[0]
			if writing.Load() != wantWriting || comparing.Load() != wantComparing || runner.DryRun("duty") != mustNotWrite ||
				status.DryRun != dryRun || status.Switched.IsZero() == switched {
				t.Errorf("%s: %d write, %d compare, must not write %t, status %+v; want %d, %d, %t, dry run %t, switched %t", what, writing.Load(), comparing.Load(),
					runner.DryRun("duty"), status, wantWriting, wantComparing, mustNotWrite, dryRun, switched)
			}
		}
		expect("from the start", 0, 1, true, true, false)
		runner.SetSwitched([]string{"duty", "unknown"})
		expect("switched on", 1, 0, false, false, true)
		runner.SetSwitched([]string{"duty"})
		expect("switched on again", 1, 0, false, false, true)
		runner.SetSwitched(nil)
		expect("switched off, a write is under way", 1, 1, true, false, false)
		close(mayReturn)
		expect("switched off", 0, 1, true, true, false)
		endTerm()
		runner.SetSwitched([]string{"duty"})
		expect("switched on without a term", 0, 0, false, false, true)
		endAlways()
	})
}
