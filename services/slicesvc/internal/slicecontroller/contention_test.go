package slicecontroller

import (
	"testing"
	"time"
)

func afterSeconds(seconds int) time.Time {
	return testEpoch().Add(time.Duration(seconds) * time.Second)
}

func TestContention_RevertsInARowBegin(t *testing.T) {
	t.Parallel()
	var c contention
	for i := range 2 {
		if c.recordRevert(afterSeconds(i), afterSeconds(i), "other") || c.pausedFor(afterSeconds(i)) > 0 || c.reactionDelay(afterSeconds(i)) > 0 || c.writer(afterSeconds(i)) != "" {
			t.Fatalf("contention after %d reverts", i+1)
		}
	}
	if !c.recordRevert(afterSeconds(2), afterSeconds(3), "other") {
		t.Fatal("three reverts are not reported")
	}
	if got := c.pausedFor(afterSeconds(3)); got != minPause {
		t.Errorf("paused for %v, want %v", got, minPause)
	}
	if got := c.reactionDelay(afterSeconds(3)); got != minReaction {
		t.Errorf("the reaction waits for %v, want %v", got, minReaction)
	}
	if got := c.writer(afterSeconds(4)); got != "other" {
		t.Errorf("writer is %q", got)
	}
	if c.recordRevert(afterSeconds(4), afterSeconds(5), "other") {
		t.Error("it is reported again at once")
	}
}

// Another writer reverts every write at once. Within the limits the rate of reactions and of
// changes without an effect on traffic falls.
func TestContention_DelaysDoubleUpToTheLimits(t *testing.T) {
	t.Parallel()
	var c contention
	now := afterSeconds(0)
	for range 3 {
		c.recordRevert(now, now, "")
	}
	wantPause, wantReaction := minPause, minReaction
	for range 20 {
		if got := c.pausedFor(now); got != wantPause {
			t.Errorf("paused for %v, want %v", got, wantPause)
		}
		if got := c.reactionDelay(now); got != wantReaction {
			t.Errorf("the reaction waits for %v, want %v", got, wantReaction)
		}
		if c.writer(now) == "" {
			t.Error("a writer without a name has no substitute")
		}
		now = now.Add(c.pausedFor(now))
		if c.pausedFor(now) != 0 {
			t.Fatalf("still paused at %v", now)
		}
		c.recordRevert(now, now, "")
		wantPause, wantReaction = min(2*wantPause, time.Minute), min(2*wantReaction, time.Second)
	}
}

func TestContention_IsReportedAgainAfterTenMinutes(t *testing.T) {
	t.Parallel()
	var c contention
	var reported []int
	for second := range 25 * 60 {
		if c.recordRevert(afterSeconds(second), afterSeconds(second), "other") {
			reported = append(reported, second)
		}
	}
	if len(reported) != 3 || reported[0] != 2 || reported[1] != 602 || reported[2] != 1202 {
		t.Errorf("reported after %v seconds, want 2, 602 and 1202", reported)
	}
}

func TestContention_SingleEditsAreNone(t *testing.T) {
	t.Parallel()
	var c contention
	for i := range 100 {
		written, reverted := afterSeconds(i*100), afterSeconds(i*100+10)
		c.recordRevert(written, reverted, "other")
		c.recordRevert(afterSeconds(i*100-60), reverted, "other")
		c.recordRevert(time.Time{}, reverted, "other")
		if c.pausedFor(reverted) > 0 || c.writer(reverted) != "" {
			t.Fatalf("contention after %d edits, each long after the one before", i+1)
		}
	}
}

func TestContention_EndsWithQuiet(t *testing.T) {
	t.Parallel()
	var c contention
	for range 3 {
		c.recordRevert(afterSeconds(0), afterSeconds(0), "other")
	}
	if got := c.writer(afterSeconds(30)); got != "other" {
		t.Errorf("writer is %q soon after the pause, want other", got)
	}
	if got := c.writer(afterSeconds(32)); got != "" || c.reactionDelay(afterSeconds(32)) > 0 {
		t.Errorf("writer is %q long after the pause, want none", got)
	}
	c.recordRevert(afterSeconds(100), afterSeconds(100), "other")
	c.recordRevert(afterSeconds(101), afterSeconds(101), "other")
	if c.writer(afterSeconds(101)) != "" {
		t.Error("old reverts count")
	}
	if !c.recordRevert(afterSeconds(102), afterSeconds(102), "other") || c.pausedFor(afterSeconds(102)) != minPause {
		t.Errorf("paused for %v, want as the first time", c.pausedFor(afterSeconds(102)))
	}
}
