package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trivet-dev/trivet/internal/loop"
)

func TestStatus_MergesTheTermsOfSeveralShards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type shard struct{}
		var broken atomic.Int64 // the shard that fails; 0 is none
		runner := newRunner(t, loop.Loop{
			Name: "leader", Scope: loop.Leader, Stall: time.Minute,
			Run: func(ctx context.Context, report loop.Report) error {
				return loop.Every(10*time.Second, func(context.Context) error {
					if ctx.Value(shard{}) == broken.Load() {
						return errors.New("shard is broken")
					}
					return nil
				})(ctx, report)
			},
		})
		term := func(number int64) func() {
			return begin(t, func(ctx context.Context) error {
				return runner.RunTerm(context.WithValue(ctx, shard{}, number))
			})
		}
		status := func() loop.Status { return runner.Status()[0] }

		endFirst, endSecond := term(1), term(2)
		after(time.Second)
		if got := status(); got.State != loop.Running || got.Runs != 2 || got.Failures != 0 {
			t.Errorf("both shards fine: %+v", got)
		}

		broken.Store(2)
		after(10 * time.Second)
		if got := status(); got.State != loop.Failing || got.LastError != "shard is broken" || got.Runs != 4 || got.Failures != 1 {
			t.Errorf("second shard fails: %+v", got)
		}

		endSecond()
		if got := status(); got.State != loop.Running || got.LastError != "" {
			t.Errorf("the broken shard is elsewhere now: %+v", got)
		}
		endFirst()
		if got := status(); got.State != loop.Standby || got.Runs != 4 {
			t.Errorf("no shard is left: %+v", got)
		}
	})
}

func TestStatus_IsOrderedAndItsJSONIsStable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a bubble's clock begins at midnight UTC, 2000-01-01
		runner, err := loop.NewRunner(loop.Config{
			Loops: []loop.Loop{
				{Name: "works", Run: idle},
				{Name: "fails", Run: failing(errBroken)},
				{Name: "off", OffByDefault: true, Run: idle},
				{Name: "leader", Scope: loop.Leader, Run: idle},
				{Name: "hangs", Stall: time.Millisecond, Run: silent},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer begin(t, runner.Run)()
		after(500 * time.Millisecond)
		statuses := runner.Status()
		for i := range statuses {
			statuses[i].LastRun = statuses[i].LastRun.UTC()
			statuses[i].LastSuccess = statuses[i].LastSuccess.UTC()
		}
		got, err := json.MarshalIndent(statuses, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		const want = `[
  {
    "name": "fails",
    "state": "failing",
    "last_run": "2000-01-01T00:00:00Z",
    "last_error": "broken",
    "runs": 1,
    "failures": 1
  },
  {
    "name": "hangs",
    "state": "stalled",
    "runs": 0,
    "failures": 0
  },
  {
    "name": "leader",
    "state": "standby",
    "runs": 0,
    "failures": 0
  },
  {
    "name": "off",
    "state": "disabled",
    "runs": 0,
    "failures": 0
  },
  {
    "name": "works",
    "state": "running",
    "last_run": "2000-01-01T00:00:00Z",
    "last_success": "2000-01-01T00:00:00Z",
    "runs": 1,
    "failures": 0
  }
]`
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("JSON (-want +got):\n%s", diff)
		}
		var back []loop.Status
		if err := json.Unmarshal(got, &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(statuses, back); diff != "" {
			t.Errorf("read back (-want +got):\n%s", diff)
		}
	})
}

func TestState_UnknownTextIsRefused(t *testing.T) {
	t.Parallel()
	var state loop.State
	if err := json.Unmarshal([]byte(`"tired"`), &state); err == nil {
		t.Error("accepted")
	}
	if got := loop.State(42).String(); got != "State(42)" {
		t.Errorf("a state from nowhere is called %q", got)
	}
}

func TestMetrics_CountPassesByResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		passes := 0
		runner, err := loop.NewRunner(loop.Config{
			Metrics: registry,
			Loops: []loop.Loop{
				{Name: "off", OffByDefault: true, Run: idle},
				{Name: "mixed", Run: loop.Every(time.Minute, func(ctx context.Context) error {
					passes++
					switch passes {
					case 1, 2, 3:
						return nil
					case 4, 5:
						return errBroken
					case 6:
						panic("sixth")
					default: // after the restart
						<-ctx.Done()
						return ctx.Err()
					}
				})},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]float64{
			"trivet_loop_runs_total mixed success": 0, "trivet_loop_runs_total mixed error": 0, "trivet_loop_runs_total mixed panic": 0,
			"trivet_loop_last_success_timestamp_seconds mixed": 0,
		}, gather(t, registry)); diff != "" {
			t.Errorf("before the first pass (-want +got):\n%s", diff)
		}
		begun := time.Now()
		end := begin(t, runner.Run)
		after(5*time.Minute + 15*time.Second)
		end()
		got := gather(t, registry)
		last := got["trivet_loop_last_success_timestamp_seconds mixed"] - float64(begun.Unix())
		if last < 120 || last > 125 {
			t.Errorf("last success %.1f s after the start, want the third pass", last)
		}
		delete(got, "trivet_loop_last_success_timestamp_seconds mixed")
		if diff := cmp.Diff(map[string]float64{
			"trivet_loop_runs_total mixed success": 3, "trivet_loop_runs_total mixed error": 2, "trivet_loop_runs_total mixed panic": 1,
		}, got); diff != "" {
			t.Errorf("after six passes (-want +got):\n%s", diff)
		}
	})
}

func TestMetrics_OfTwoRunnersDoNotMix(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	if _, err := loop.NewRunner(loop.Config{Metrics: registry}); err != nil {
		t.Fatal(err)
	}
	if _, err := loop.NewRunner(loop.Config{Metrics: registry}); err == nil {
		t.Error("a second runner on the same registry was accepted")
	}
}

// gather reads every series as "name loop result".
func gather(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			series[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return series
}
