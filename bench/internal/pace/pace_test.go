package pace

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

func TestLatencies_AtAQuantile(t *testing.T) {
	l := Latencies{1, 2, 3, 4}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 2, 0.51: 3, 1: 4} {
		if got := l.At(q); got != want {
			t.Errorf("at %v: %v, want %v", q, got, want)
		}
	}
	if got := (Latencies)(nil).At(0.5); got != 0 {
		t.Errorf("of none: %v, want 0", got)
	}
}

func TestRun_MakesEachChangeOnceAndSortsLatencies(t *testing.T) {
	var sum atomic.Int64
	latencies, rate, err := Steady{Count: 10, Rate: 1000}.Run(t.Context(), func(_ context.Context, n int) (time.Duration, error) {
		sum.Add(int64(n))
		return time.Duration(10 - n), nil
	})
	if err != nil || rate <= 0 || sum.Load() != 45 || latencies[0] != 1 || latencies[9] != 10 {
		t.Errorf("changes %d, latencies %v at %v/s, %v; want each of ten once", sum.Load(), latencies, rate, err)
	}
	broken := errors.New("broken")
	if _, _, err := (Steady{Count: 10, Rate: 1000}).Run(t.Context(), func(context.Context, int) (time.Duration, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want that of a change", err)
	}
}
