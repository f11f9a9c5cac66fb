package slicecontroller

import (
	"testing"
	"time"
)

func afterSeconds(seconds int) time.Time {
	return testEpoch().Add(time.Duration(seconds) * time.Second)
}

func TestContention_RevertsInARowSuspend(t *testing.T) {
	var c contention
	for i := range 2 {
		if c.recordRevert(afterSeconds(i), afterSeconds(i), "other") {
			t.Fatalf("suspended after %d reverts", i+1)
		}
	}
	if !c.recordRevert(afterSeconds(2), afterSeconds(3), "other") {
		t.Fatal("not suspended after three reverts")
	}
	if got := c.suspendedFor(afterSeconds(4)); got != 29*time.Second {
		t.Errorf("suspended for %v more, want 29s", got)
	}
	if got := c.writer(afterSeconds(4)); got != "other" {
		t.Errorf("writer is %q", got)
	}
	if c.recordRevert(afterSeconds(4), afterSeconds(5), "other") {
		t.Error("another suspension begins during the first")
	}
}

func TestContention_SuspensionsDoubleUpToTheLimit(t *testing.T) {
	var c contention
	now := afterSeconds(0)
	for range 3 {
		c.recordRevert(now, now, "")
	}
	for _, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 16 * time.Minute} {
		now = now.Add(c.suspendedFor(now) + time.Second)
		if c.suspendedFor(now) != 0 {
			t.Fatalf("still suspended at %v", now)
		}
		if !c.recordRevert(now, now, "") || c.suspendedFor(now) != want {
			t.Errorf("suspended for %v, want %v", c.suspendedFor(now), want)
		}
		if c.writer(now) == "" {
			t.Error("a writer without a name has no substitute")
		}
	}
}

func TestContention_SingleEditsAreNone(t *testing.T) {
	var c contention
	for i := range 100 {
		written, reverted := afterSeconds(i*100), afterSeconds(i*100+10)
		if c.recordRevert(written, reverted, "other") {
			t.Fatalf("suspended after %d edits, each long after the one before", i+1)
		}
		if c.recordRevert(afterSeconds(i*100-60), reverted, "other") || c.recordRevert(time.Time{}, reverted, "other") {
			t.Fatal("an edit of a slice without a recent write counts")
		}
	}
	if got := c.writer(afterSeconds(10_000)); got != "" {
		t.Errorf("writer is %q", got)
	}
}

func TestContention_EndsWithQuietAfterASuspension(t *testing.T) {
	var c contention
	for range 3 {
		c.recordRevert(afterSeconds(0), afterSeconds(0), "other")
	}
	if got := c.writer(afterSeconds(59)); got != "other" {
		t.Errorf("writer is %q soon after the suspension, want other", got)
	}
	if got := c.writer(afterSeconds(61)); got != "" {
		t.Errorf("writer is %q long after the suspension, want none", got)
	}
	if c.recordRevert(afterSeconds(100), afterSeconds(100), "other") || c.recordRevert(afterSeconds(101), afterSeconds(101), "other") {
		t.Error("old reverts count")
	}
	if !c.recordRevert(afterSeconds(102), afterSeconds(102), "other") || c.suspendedFor(afterSeconds(102)) != 30*time.Second {
		t.Errorf("suspended for %v, want as the first time", c.suspendedFor(afterSeconds(102)))
	}
}
