package loop_test

import (
	"context"
	"errors"
	"strings"
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

func TestRunner_StartsWithinTheJitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const jitter = 10 * time.Second
		begun := time.Now()
		starts := make(chan time.Duration, 40)
		var loops []loop.Loop
		for i := range cap(starts) {
			loops = append(loops, loop.Loop{
				Name: strings.Repeat("x", i+1),
				Run: func(ctx context.Context, report loop.Report) error {
					starts <- time.Since(begun)
					return idle(ctx, report)
				},
			})
		}
		runner, err := loop.NewRunner(loop.Config{Loops: loops, StartJitter: jitter})
		if err != nil {
			t.Fatal(err)
		}
		end := begin(t, runner.Run)
		after(jitter)
		end()
		if len(starts) != cap(starts) {
			t.Fatalf("%d loops started within %s, want all %d", len(starts), jitter, cap(starts))
		}
		distinct := map[time.Duration]bool{}
		for range cap(starts) {
			distinct[<-starts] = true
		}
		if len(distinct) < cap(starts)/2 {
			t.Errorf("only %d different starts among %d", len(distinct), cap(starts))
		}
	})
}

func TestRunner_EndDuringTheStartJitterIsPrompt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runner, err := loop.NewRunner(loop.Config{
			Loops:       []loop.Loop{{Name: "late", Run: idle}},
			StartJitter: 1000 * time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		begin(t, runner.Run)()
		if took := time.Since(begun); took != 0 {
			t.Errorf("the end took %s", took)
		}
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
