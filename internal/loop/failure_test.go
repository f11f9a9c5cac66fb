package loop_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/loop"
)

var errBroken = errors.New("broken")

func TestRunner_RestartsWithGrowingBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var starts []time.Time
		runner := newRunner(t, loop.Loop{Name: "short", Run: func(context.Context, loop.Report) error {
			starts = append(starts, time.Now())
			return errBroken
		}})
		end := begin(t, runner.Run)
		after(3 * time.Minute)
		end()
		for i, seconds := range []int{1, 2, 4, 8, 16, 30, 30} {
			base := time.Duration(seconds) * time.Second
			if pause := starts[i+1].Sub(starts[i]); pause < base || pause > base*12/10 {
				t.Errorf("pause %d is %s, want %s to 20 %% more", i, pause, base)
			}
		}
	})
}

func TestRunner_SuccessResetsTheBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var starts []time.Time
		runner := newRunner(t, loop.Loop{Name: "short", Run: func(_ context.Context, report loop.Report) error {
			starts = append(starts, time.Now())
			if len(starts) == 5 {
				report(nil)
			}
			return errBroken
		}})
		end := begin(t, runner.Run)
		after(time.Minute)
		end()
		if pause := starts[5].Sub(starts[4]); pause > 1200*time.Millisecond {
			t.Errorf("pause after a success is %s, want about 1s", pause)
		}
	})
}

func TestRunner_EarlyReturnIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runner := newRunner(t, loop.Loop{Name: "short", Run: func(context.Context, loop.Report) error { return nil }})
		defer begin(t, runner.Run)()
		after(500 * time.Millisecond)
		want := []loop.Status{{
			Name: "short", State: loop.Failing, LastRun: time.Now().Add(-500 * time.Millisecond),
			LastError: "returned before it was told to stop", Runs: 1, Failures: 1,
		}}
		if diff := cmp.Diff(want, runner.Status()); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	})
}

func TestRunner_PanicEndsOnlyItsLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		runner, err := loop.NewRunner(loop.Config{
			Loops: []loop.Loop{
				{Name: "bad", Run: func(context.Context, loop.Report) error { panic("no such index") }},
				{Name: "good", Run: loop.Every(time.Second, func(context.Context) error { return nil })},
			},
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		end := begin(t, runner.Run)
		after(500 * time.Millisecond)
		wantStates(t, runner, map[string]string{"bad": "failing", "good": "running"})
		if err := runner.Check(); err != nil {
			t.Errorf("one panic must not end the process: %v", err)
		}

		after(10 * time.Second) // the third panic comes after at most 1.2 + 2.4 s
		const want = "loop bad dead: panicked 4 times in a row: panic: no such index"
		if err := runner.Check(); err == nil || err.Error() != want {
			t.Errorf("Check() = %v, want %s", err, want)
		}
		good := runner.Status()[1]
		if good.Runs < 10 || good.Failures != 0 {
			t.Errorf("the other loop suffered: %+v", good)
		}
		end()
		if !strings.Contains(log.String(), "failure_test.go") {
			t.Errorf("the log does not show where it panicked:\n%s", log.String())
		}
	})
}

func TestRunner_PanicAtTheEndIsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runner := newRunner(t, loop.Loop{Name: "bad", Run: func(ctx context.Context, _ loop.Report) error {
			<-ctx.Done()
			panic("while tidying up")
		}})
		end := begin(t, runner.Run)
		after(time.Second)
		end()
		if got := runner.Status()[0].LastError; got != "panic: while tidying up" {
			t.Errorf("last error %q", got)
		}
	})
}

func TestRunner_ErrorsNeverMakeALoopDead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runner := newRunner(t,
			loop.Loop{Name: "ends", Stall: 2 * time.Second, Run: func(context.Context, loop.Report) error { return errBroken }},
			loop.Loop{Name: "tries", Stall: 2 * time.Second, Run: failing(errBroken)},
		)
		defer begin(t, runner.Run)()
		after(time.Hour)
		if err := runner.Check(); err != nil {
			t.Errorf("an outage of a dependency would restart the process: %v", err)
		}
		wantStates(t, runner, map[string]string{"ends": "failing", "tries": "failing"})
	})
}

func TestRunner_StalledLoopShowsAndRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		runner := newRunner(t,
			loop.Loop{Name: "hangs", Stall: time.Minute, Run: func(ctx context.Context, report loop.Report) error {
				for {
					select {
					case <-ctx.Done():
						return nil
					case <-proceed:
						report(nil)
					}
				}
			}},
			loop.Loop{Name: "patient", Run: silent},
		)
		defer begin(t, runner.Run)()

		after(time.Minute)
		wantStates(t, runner, map[string]string{"hangs": "running", "patient": "running"})
		if err := runner.Check(); err != nil {
			t.Errorf("within its promise: %v", err)
		}

		after(5 * time.Second)
		wantStates(t, runner, map[string]string{"hangs": "stalled", "patient": "running"})
		const want = "loop hangs stalled: no pass finished for 1m5s, expected one every 1m0s"
		if err := runner.Check(); err == nil || err.Error() != want {
			t.Errorf("Check() = %v, want %s", err, want)
		}

		proceed <- struct{}{}
		after(time.Second)
		wantStates(t, runner, map[string]string{"hangs": "running", "patient": "running"})
		if err := runner.Check(); err != nil {
			t.Errorf("after a finished pass: %v", err)
		}
	})
}

func TestRunner_EndOfContextIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runner := newRunner(t, loop.Loop{Name: "waits", Run: func(ctx context.Context, report loop.Report) error {
			report(nil)
			<-ctx.Done()
			report(fmt.Errorf("list nodes: %w", ctx.Err()))
			return ctx.Err()
		}})
		end := begin(t, runner.Run)
		after(time.Second)
		end()
		want := []loop.Status{{
			Name: "waits", State: loop.Standby, Runs: 1,
			LastRun: time.Now().Add(-time.Second), LastSuccess: time.Now().Add(-time.Second),
		}}
		if diff := cmp.Diff(want, runner.Status()); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	})
}

func TestRunner_ReadyOnceEveryLoopHasSucceeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var healthy atomic.Bool
		runner := newRunner(t,
			loop.Loop{Name: "always", Run: loop.Every(time.Minute, func(context.Context) error {
				if healthy.Load() {
					return nil
				}
				return errBroken
			})},
			loop.Loop{Name: "leader", Scope: loop.Leader, Run: silent},
		)
		ready := func(want string) {
			t.Helper()
			got := ""
			if err := runner.CheckReady(); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("CheckReady() = %q, want %q", got, want)
			}
		}
		ready("loop always has not finished its first pass")
		defer begin(t, runner.Run)()
		after(time.Second)
		ready("loop always has not succeeded yet: broken")
		healthy.Store(true)
		after(time.Minute + 10*time.Second)
		ready("")
		healthy.Store(false)
		after(2 * time.Minute)
		ready("") // two failures in a row
		after(time.Minute)
		ready("loop always failed 3 times in a row: broken")
		healthy.Store(true)
		after(time.Minute + 10*time.Second)
		ready("")

		endTerm := begin(t, runner.RunTerm)
		after(time.Second)
		ready("loop leader has not finished its first pass")
		endTerm()
		ready("")
	})
}

func TestRunner_LogsTheBeginningAndTheEndOfAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		passes := 0
		runner, err := loop.NewRunner(loop.Config{
			Loops: []loop.Loop{{Name: "tries", Run: loop.Every(time.Second, func(context.Context) error {
				passes++
				if passes <= 100 {
					return errBroken
				}
				return nil
			})}},
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
				ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
					if a.Key == slog.TimeKey {
						return slog.Attr{}
					}
					return a
				},
			})),
		})
		if err != nil {
			t.Fatal(err)
		}
		end := begin(t, runner.Run)
		after(5 * time.Minute)
		end()
		var want []string
		for _, n := range []int{1, 2, 4, 8, 16, 32, 64} {
			want = append(want, fmt.Sprintf(`level=WARN msg="loop pass failed" loop=tries failures_in_a_row=%d error=broken`, n))
		}
		want = append(want, `level=INFO msg="loop recovered" loop=tries after_failures=100`)
		if diff := cmp.Diff(want, slices.Collect(strings.SplitSeq(strings.TrimSpace(log.String()), "\n"))); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestRunner_KeepsErrorsShortAndValid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runner := newRunner(t, loop.Loop{Name: "loud", Run: failing(errors.New("\xff" + strings.Repeat("ä", 10_000)))})
		defer begin(t, runner.Run)()
		after(time.Second)
		text := runner.Status()[0].LastError
		if len(text) > 1100 || !utf8.ValidString(text) || !strings.HasPrefix(text, "\uFFFDää") {
			t.Errorf("%d bytes, valid %t: %.20q…", len(text), utf8.ValidString(text), text)
		}
	})
}
