package decisions

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Log keeps the decisions of one process. Its methods are safe for concurrent use and do not block;
// a nil Log records nothing and has no decisions.
type Log struct {
	now func() time.Time

	mu      sync.Mutex // guards all below
	rings   rings
	last    time.Time     // of the newest decision
	changed chan struct{} // closed and replaced by Record, if a reader waits for it
	awaited bool
}

// NewLog returns an empty Log.
func NewLog() *Log { return newLog(limits, time.Now) }

func newLog(limits [ringCount]bounds, now func() time.Time) *Log {
	return &Log{now: now, rings: newRings(limits), changed: make(chan struct{})}
}

// Record keeps a decision. It sets the time, which is later than that of every earlier decision,
// the ring and the number.
func (l *Log) Record(d Decision) {
	if l == nil {
		return
	}
	if len(d.Message) > MaxMessage {
		d.Message = strings.Clone(d.Message[:MaxMessage-len("…")]) + "…" // the rest must not stay in memory
	}
	d.Ring = d.Action.ring()
	l.mu.Lock()
	defer l.mu.Unlock()
	d.Time = l.now().Round(0)
	if !d.Time.After(l.last) { // names and order follow from the time, and a clock may be set back
		d.Time = l.last.Add(1)
	}
	l.last = d.Time
	l.rings[d.Ring].add(d)
	if l.awaited {
		close(l.changed)
		l.changed, l.awaited = make(chan struct{}), false
	}
}

// After returns the decisions after a position, ordered by time, how many decisions are lost
// because they were dropped meanwhile, and the position after them.
func (l *Log) After(at Cursor) (kept []Decision, lost uint64, end Cursor) {
	if l == nil {
		return nil, 0, at
	}
	l.mu.Lock()
	kept, lost, end = l.rings.after(at)
	l.mu.Unlock()
	slices.SortFunc(kept, func(a, b Decision) int { return a.Time.Compare(b.Time) })
	return kept, lost, end
}

// Dropped returns the position up to which no decision is kept.
func (l *Log) Dropped() Cursor {
	if l == nil {
		return Cursor{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rings.dropped()
}

// Changed returns a channel that is closed once there is a decision after a position.
func (l *Log) Changed(at Cursor) <-chan struct{} {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.rings {
		if l.rings[i].next-1 > at[i] {
			closed := make(chan struct{})
			close(closed)
			return closed
		}
	}
	l.awaited = true
	return l.changed
}
