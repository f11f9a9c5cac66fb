package backoff_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trivet-dev/trivet/internal/backoff"
)

func TestExponential_DoublesUpToItsMaximum(t *testing.T) {
	e := backoff.Exponential{Min: time.Second, Max: 5 * time.Second}
	pause := time.Duration(0)
	for failures, want := range map[int]time.Duration{
		-1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 4: 5 * time.Second, math.MaxInt: 5 * time.Second,
	} {
		if got := e.After(failures); got != want {
			t.Errorf("after %d failures %v, want %v", failures, got, want)
		}
	}
	for failures := range 10 {
		if pause = e.Next(pause); pause != e.After(failures+1) {
			t.Errorf("pause %d is %v, want %v", failures+1, pause, e.After(failures+1))
		}
	}
	if got := (backoff.Exponential{Min: time.Second, Max: math.MaxInt64}).After(100); got != math.MaxInt64 {
		t.Errorf("without a maximum %v", got)
	}
}

func TestJitter_IsBetweenHalfAndWhole(t *testing.T) {
	for range 1000 {
		if got := backoff.Jitter(time.Second); got < time.Second/2 || got > time.Second {
			t.Fatalf("%v", got)
		}
	}
	if got := backoff.Jitter(0); got != 0 {
		t.Errorf("of 0: %v", got)
	}
}

func TestSleep_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		if !backoff.Sleep(ctx, 2*time.Second) || time.Since(begin) != 2*time.Second {
			t.Errorf("slept for %v", time.Since(begin))
		}
		if backoff.Sleep(ctx, time.Hour) || time.Since(begin) != 3*time.Second {
			t.Errorf("ended after %v", time.Since(begin))
		}
	})
}
