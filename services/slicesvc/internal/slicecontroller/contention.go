// Package contention notices that somebody else keeps undoing what we write to
// the slices of a Service, as a second controller does that was left on.
//
// Promise: after several writes in a row were undone within a short time, Resting
// is true for a while, and longer each time it happens again right after; By names
// the other writer. A single hand in our slices, however often it comes, is not
// contention as long as it leaves alone what we made of it.
//
// Invariants: no I/O; time is a parameter. Not safe for concurrent use.
//
// What it does not do: it does not see writes, and it decides nothing about what
// may be written while a Service rests.
package slicecontroller

import "time"

const (
	// contentionWindow is how soon after a write of ours another one must come to count as undoing it.
	contentionWindow = 30 * time.Second
	// tolerated is how many writes may be undone before the Service rests.
	tolerated = 3
	// A Service rests firstSuspension, then twice as long each time, up to longestSuspension.
	firstSuspension   = 30 * time.Second
	longestSuspension = 16 * time.Minute
	// unnamed stands for a writer that does not say who it is.
	unnamed = "unknown"
)

// contention is what is remembered of one Service. The zero value is one without contention.
type contention struct {
	// undone counts writes undone in a row, the last one at latest.
	undone int
	latest time.Time
	by     string
	// rest is how long the last rest was, until its end.
	rest  time.Duration
	until time.Time
}

// Undone takes note that somebody wrote or deleted a slice that we wrote at the
// given time. It reports whether a rest begins.
func (r *contention) Undone(wrote, now time.Time, by string) (begins bool) {
	if wrote.IsZero() || now.Sub(wrote) > contentionWindow || now.Before(r.until) {
		return false
	}
	if now.Sub(r.latest) > contentionWindow && now.Sub(r.until) > contentionWindow {
		*r = contention{}
	}
	r.undone++
	r.latest = now
	if r.by = by; by == "" {
		r.by = unnamed
	}
	if r.undone < tolerated && r.rest == 0 {
		return false
	}
	r.undone = 0
	r.rest = min(max(2*r.rest, firstSuspension), longestSuspension)
	r.until = now.Add(r.rest)
	return true
}

// Resting reports how long the Service is still to be left alone; 0 for not at all.
func (r *contention) Resting(now time.Time) time.Duration { return max(r.until.Sub(now), 0) }

// By names the other writer while the Service rests and until it is clear
// whether the writer is still there; empty for none.
func (r *contention) By(now time.Time) string {
	if r.rest == 0 || now.Sub(r.until) > contentionWindow {
		return ""
	}
	return r.by
}
