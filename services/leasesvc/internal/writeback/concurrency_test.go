package writeback_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

var (
	good       = writeback.Observation{Answered: 10, Latency: 5 * time.Millisecond, Saturated: true}
	throttled  = writeback.Observation{Answered: 9, Throttled: 1, Latency: 5 * time.Millisecond, Saturated: true, Pause: time.Second}
	slow       = writeback.Observation{Answered: 10, Latency: 200 * time.Millisecond, Saturated: true}
	unanswered = writeback.Observation{Failed: 3}
)

// limitFixture feeds observations, one for each window.
type limitFixture struct {
	writeback.ConcurrencyLimit
	now monotonic.Instant
}

func newLimitFixture(ceiling int) *limitFixture {
	return &limitFixture{ConcurrencyLimit: writeback.NewConcurrencyLimit(ceiling)}
}

func (c *limitFixture) feed(times int, o writeback.Observation) *limitFixture {
	for range times {
		c.now = c.now.Add(writeback.ObservationWindow)
		c.ConcurrencyLimit = c.Next(c.now, o)
	}
	return c
}

// limit returns the limit after the pause, if there is one.
func (c *limitFixture) limit() int {
	for c.At(c.now) == 0 {
		c.now = c.now.Add(time.Millisecond)
	}
	return c.At(c.now)
}

func TestNext_GrowsInGoodSaturatedWindows(t *testing.T) {
	if got := newLimitFixture(32).feed(3, good).limit(); got != 32 {
		t.Errorf("after three good windows %d, want the ceiling of 32", got)
	}
	idle := good
	idle.Saturated = false
	if got := newLimitFixture(32).feed(100, idle).limit(); got != 4 {
		t.Errorf("never saturated: %d, want the initial 4", got)
	}
}

func TestNext_HalvesAndThenGrowsByOne(t *testing.T) {
	for name, trouble := range map[string]writeback.Observation{"throttled": throttled, "slow": slow} {
		c := newLimitFixture(32).feed(10, good).feed(1, trouble)
		if got := c.limit(); got != 16 {
			t.Errorf("%s: %d, want half of 32", name, got)
		}
		if got := c.feed(3, good).limit(); got != 19 {
			t.Errorf("%s and three good windows: %d, want 19", name, got)
		}
	}
	if got := newLimitFixture(32).feed(10, good).feed(10, throttled).limit(); got != 1 {
		t.Errorf("throttled for long: %d, want 1", got)
	}
}

func TestNext_HalvesUntilTheLatencyIsLow(t *testing.T) {
	c, highest := newLimitFixture(32).feed(10, good), 0
	for window := range 200 { // each write in flight makes all of them 20 ms slower
		o := writeback.Observation{Answered: 10, Latency: time.Duration(c.limit()) * 20 * time.Millisecond, Saturated: true}
		if c.feed(1, o); window > 20 {
			highest = max(highest, c.limit())
		}
	}
	if highest > 7 {
		t.Errorf("limit up to %d, want at most 7: 5 are answered within 100 ms", highest)
	}
}

// An etcd with a slow disk is as slow with one write as with thirty.
func TestNext_LatencyWithAnotherCauseIsCutForOnce(t *testing.T) {
	c, least := newLimitFixture(32).feed(10, good), 32
	for range 100 {
		least = min(least, c.feed(1, slow).limit())
	}
	if least != 16 {
		t.Errorf("limit down to %d, want 16", least)
	}
}

func TestNext_PausesAsLongAsTheAPIServerAsks(t *testing.T) {
	c := newLimitFixture(32).feed(5, good).feed(1, throttled)
	if got := c.At(c.now.Add(time.Second - 1)); got != 0 {
		t.Errorf("during the pause %d, want 0", got)
	}
	if got := c.At(c.now.Add(time.Second)); got != 16 {
		t.Errorf("after it %d, want 16", got)
	}
}

func TestNext_OneProbeAtATimeWhileUnanswered(t *testing.T) {
	c := newLimitFixture(32).feed(10, good)
	var pauses []time.Duration
	for range 7 {
		c.feed(1, unanswered)
		before := c.now
		if got := c.limit(); got != 1 {
			t.Fatalf("limit %d, want 1", got)
		}
		pauses = append(pauses, c.now.Sub(before))
	}
	for i, want := range []float64{0.2, 0.4, 0.8, 1.6, 3.2, 5, 5} {
		if pauses[i] != time.Duration(want*float64(time.Second)) {
			t.Errorf("pause %d is %v, want %v s", i+1, pauses[i], want)
		}
	}
	if got := c.feed(4, good).limit(); got != 16 {
		t.Errorf("four good windows after it: %d, want half of the limit before", got)
	}
}

func TestNext_LastingLatencyBecomesTheBase(t *testing.T) {
	c := newLimitFixture(32).feed(10, good).feed(40, slow)
	if got := c.limit(); got != 32 {
		t.Errorf("after ten seconds of a slower kube-apiserver %d, want 32", got)
	}
}

func TestNext_StaysWithinItsBoundsAndRecovers(t *testing.T) {
	observation := rapid.Custom(func(t *rapid.T) writeback.Observation {
		return writeback.Observation{
			Answered: rapid.IntRange(0, 3).Draw(t, "answered"), Throttled: rapid.IntRange(0, 3).Draw(t, "throttled"),
			Failed: rapid.IntRange(0, 3).Draw(t, "failed"), Saturated: rapid.Bool().Draw(t, "saturated"),
			Latency: time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "latency")),
			Pause:   time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "pause")),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		ceiling := rapid.IntRange(1, 64).Draw(t, "ceiling")
		c := newLimitFixture(ceiling)
		for _, o := range rapid.SliceOf(observation).Draw(t, "observations") {
			c.feed(1, o)
			if got := c.At(c.now); got < 0 || got > ceiling {
				t.Fatalf("limit %d of at most %d", got, ceiling)
			}
			if c.At(c.now.Add(5*time.Second)) < 1 {
				t.Fatalf("paused for longer than 5 s")
			}
		}
		well := writeback.Observation{Answered: 1, Saturated: true} // lower latency than any before
		if got := c.feed(80, well).limit(); got != ceiling {
			t.Fatalf("after 80 good windows %d, want %d", got, ceiling)
		}
	})
}
