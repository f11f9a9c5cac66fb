package loop_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trivet-dev/trivet/internal/loop"
)

func TestEvery_PassesAtOnceThenOncePerPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const period, work = time.Minute, 7 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 100*period)
		defer cancel()
		begun := time.Now()
		var starts []time.Time
		run := loop.Every(period, func(context.Context) error {
			starts = append(starts, time.Now())
			time.Sleep(work)
			return nil
		})
		if err := run(ctx, func(error) {}); err != nil {
			t.Fatal(err)
		}
		if !starts[0].Equal(begun) {
			t.Errorf("first pass after %s, want it at once", starts[0].Sub(begun))
		}
		// 100 periods hold between 100/1.04 and 100 passes.
		if len(starts) < 96 || len(starts) > 100 {
			t.Errorf("%d passes in 100 periods, want 96 to 100", len(starts))
		}
		distinct := map[time.Duration]bool{}
		for i := 1; i < len(starts); i++ {
			gap := starts[i].Sub(starts[i-1])
			distinct[gap] = true
			if gap < period || gap > period+period*4/100 {
				t.Errorf("pass %d came %s after the one before, want %s to 4 %% more", i, gap, period)
			}
		}
		if len(distinct) < 2 {
			t.Errorf("all gaps are %v, want jitter", distinct)
		}
	})
}

func TestEvery_SlowPassesNeverOverlap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const period, work = time.Second, 10 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 10*work-time.Second)
		defer cancel()
		passes, inside := 0, 0
		run := loop.Every(period, func(context.Context) error {
			passes++
			inside++
			if inside > 1 {
				t.Error("two passes at once")
			}
			time.Sleep(work)
			inside--
			return nil
		})
		if err := run(ctx, func(error) {}); err != nil {
			t.Fatal(err)
		}
		if passes != 10 {
			t.Errorf("%d passes, want 10: one after the other without a pause", passes)
		}
	})
}

func TestEvery_NoPassBeginsAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// Each round, the timer and the context are both due when the pass returns.
		for range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			passes := 0
			run := loop.Every(time.Second, func(context.Context) error {
				passes++
				time.Sleep(2 * time.Second)
				cancel()
				return nil
			})
			if err := run(ctx, func(error) {}); err != nil {
				t.Fatal(err)
			}
			if passes != 1 {
				t.Fatalf("%d passes, want none after the context's end", passes)
			}
		}
	})
}

func TestEvery_ReportsEachPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		odd := errors.New("odd pass")
		passes := 0
		run := loop.Every(time.Second, func(context.Context) error {
			passes++
			if passes%2 == 1 {
				return odd
			}
			return nil
		})
		var reports []bool
		if err := run(ctx, func(err error) { reports = append(reports, errors.Is(err, odd)) }); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]bool{true, false, true}, reports); diff != "" {
			t.Errorf("reported the error (-want +got):\n%s", diff)
		}
	})
}

func TestEvery_RefusesAPeriodThatIsNotPositive(t *testing.T) {
	t.Parallel()
	for _, period := range []time.Duration{0, -time.Second} {
		run := loop.Every(period, func(context.Context) error {
			t.Errorf("a pass ran every %s", period)
			return nil
		})
		if err := run(t.Context(), func(error) {}); err == nil {
			t.Errorf("Every(%s) ran", period)
		}
	}
}
