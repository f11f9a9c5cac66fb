package localterm

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrLapsed is the cause with which a lease ends when its local bound passes without a renewal.
var ErrLapsed = errors.New("no renewal was acknowledged in time")

// Lease says until when this process may act under one etcd lease. It is safe for concurrent use.
type Lease struct {
	margin time.Duration
	born   time.Time    // carries the monotonic reading that until counts from
	until  atomic.Int64 // nanoseconds after born

	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex // orders Extend against the timer, so that a lapsed lease cannot be extended
	timer *time.Timer
}

// NewLease returns a lease which etcd granted for ttl in answer to a request sent at the given time. It ends margin earlier
// than etcd's own, to leave room for clocks that run at different rates and for requests that are under way when it ends.
// Values in parent stay visible in [Lease.Context]. End must be called in the end; it stops the timer.
func NewLease(parent context.Context, sent time.Time, ttl, margin time.Duration) *Lease {
	ctx, cancel := context.WithCancelCause(parent)
	l := &Lease{margin: margin, born: sent, ctx: ctx, cancel: cancel}
	l.until.Store(int64(ttl - margin))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(l.Remaining(), l.lapse)
	return l
}

// Context ends with the lease. Its cause is [ErrLapsed] or what End was told.
func (l *Lease) Context() context.Context { return l.ctx }

// Remaining is how long the process may still act without another renewal; zero once the lease has ended.
func (l *Lease) Remaining() time.Duration {
	if l.ctx.Err() != nil {
		return 0
	}
	return max(0, time.Duration(l.until.Load())-time.Since(l.born))
}

// Extend moves the bound to ttl (less the margin) after sent, the time at which an acknowledged renewal was sent. It reports
// whether the lease lives; a lease whose bound has passed stays ended however fresh the acknowledgement is.
func (l *Lease) Extend(sent time.Time, ttl time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Remaining() == 0 {
		l.cancel(ErrLapsed)
		return false
	}
	if until := int64(sent.Sub(l.born) + ttl - l.margin); until > l.until.Load() {
		l.until.Store(until)
	}
	l.timer.Reset(l.Remaining())
	return true
}

// End ends the lease for the given cause. Ending an ended lease does nothing.
func (l *Lease) End(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	l.cancel(cause)
}

// lapse runs when the timer fires. A renewal may have moved the bound since, in which case Extend has set the timer anew.
func (l *Lease) lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Remaining() == 0 {
		l.cancel(ErrLapsed)
	}
}
