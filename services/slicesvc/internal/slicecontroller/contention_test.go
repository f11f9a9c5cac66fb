package slicecontroller

import (
	"testing"
	"time"
)

func at(seconds int) time.Time {
	return time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second)
}

func TestUndone_ManyInARowBeginARest(t *testing.T) {
	var r contention
	for i := range 2 {
		if r.Undone(at(i), at(i), "other") {
			t.Fatalf("rests after %d writes undone", i+1)
		}
	}
	if !r.Undone(at(2), at(3), "other") {
		t.Fatal("does not rest after three writes undone")
	}
	if got := r.Resting(at(4)); got != 29*time.Second {
		t.Errorf("rests for %v more, want 29s", got)
	}
	if got := r.By(at(4)); got != "other" {
		t.Errorf("contended by %q", got)
	}
	if r.Undone(at(4), at(5), "other") {
		t.Error("another rest begins during the first")
	}
}

func TestUndone_ComingBackRestsLongerUpToALimit(t *testing.T) {
	var r contention
	now := at(0)
	for range 3 {
		r.Undone(now, now, "")
	}
	for _, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 16 * time.Minute} {
		now = now.Add(r.Resting(now) + time.Second)
		if r.Resting(now) != 0 {
			t.Fatalf("still rests at %v", now)
		}
		if !r.Undone(now, now, "") || r.Resting(now) != want {
			t.Errorf("rests for %v, want %v", r.Resting(now), want)
		}
		if r.By(now) == "" {
			t.Error("a writer without a name is nobody")
		}
	}
}

func TestUndone_HandsNowAndThenAreNoContention(t *testing.T) {
	var r contention
	for i := range 100 {
		written, undone := at(i*100), at(i*100+10)
		if r.Undone(written, undone, "somebody") {
			t.Fatalf("rests after %d edits, each long after the one before", i+1)
		}
		if r.Undone(at(i*100-60), undone, "somebody") || r.Undone(time.Time{}, undone, "somebody") {
			t.Fatal("an edit of a slice that we have not written lately counts")
		}
	}
	if got := r.By(at(10_000)); got != "" {
		t.Errorf("contended by %q", got)
	}
}

func TestBy_QuietAfterARestEndsIt(t *testing.T) {
	var r contention
	for range 3 {
		r.Undone(at(0), at(0), "other")
	}
	if got := r.By(at(59)); got != "other" {
		t.Errorf("by %q soon after the rest, want the other writer", got)
	}
	if got := r.By(at(61)); got != "" {
		t.Errorf("by %q long after the rest, want nobody", got)
	}
	if r.Undone(at(100), at(100), "other") || r.Undone(at(101), at(101), "other") {
		t.Error("what was long ago counts")
	}
	if !r.Undone(at(102), at(102), "other") || r.Resting(at(102)) != 30*time.Second {
		t.Errorf("rests for %v, want as at the first time", r.Resting(at(102)))
	}
}
