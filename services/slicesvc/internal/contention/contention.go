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
package contention

import "time"

const (
	// Window is how soon after a write of ours another one must come to count as undoing it.
	Window = 30 * time.Second
	// tolerated is how many writes may be undone before the Service rests.
	tolerated = 3
	// A Service rests firstRest, then twice as long each time, up to lastRest.
	firstRest = 30 * time.Second
	lastRest  = 16 * time.Minute
	// unnamed stands for a writer that does not say who it is.
	unnamed = "unknown"
)

// Record is what is remembered of one Service. The zero value is one without contention.
type Record struct {
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
func (r *Record) Undone(wrote, now time.Time, by string) (begins bool) {
	if wrote.IsZero() || now.Sub(wrote) > Window || now.Before(r.until) {
		return false
	}
	if now.Sub(r.latest) > Window && now.Sub(r.until) > Window {
		*r = Record{}
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
	r.rest = min(max(2*r.rest, firstRest), lastRest)
	r.until = now.Add(r.rest)
	return true
}

// Resting reports how long the Service is still to be left alone; 0 for not at all.
func (r *Record) Resting(now time.Time) time.Duration { return max(r.until.Sub(now), 0) }

// By names the other writer while the Service rests and until it is clear
// whether the writer is still there; empty for none.
func (r *Record) By(now time.Time) string {
	if r.rest == 0 || now.Sub(r.until) > Window {
		return ""
	}
	return r.by
}
