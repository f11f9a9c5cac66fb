// Package localterm holds leases and terms in memory and knows when they end.
//
// A [Lease] is the local half of an etcd lease: the time until which this process may act without a
// further answer from etcd. A [Term] is one shard held under a lease. Both read memory and the
// monotonic clock; the package does not talk to etcd. Only [Lease.Extend] prolongs a lease. Its
// caller passes the time at which it sent the acknowledged renewal.
//
// Invariants:
//   - A lease that has passed its bound stays ended, even if an acknowledgement arrives late.
//   - A check compares clocks and does not rely on a timer. A process that was frozen is therefore
//     refused before the runtime runs its timers.
//   - A term ends when its lease ends, when it is given up, or when its parent context ends. The
//     first of these is the cause.
//
// Linux stops the monotonic clock while the machine is suspended. After a suspension, a process
// learns from etcd that its lease is gone. Until then, the guard of the term and the
// resourceVersion of a Kubernetes write prevent conflicting writes.
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

// Lease is the time until which this process may act under one etcd lease. It is safe for
// concurrent use.
type Lease struct {
	margin time.Duration
	born   time.Time    // has the monotonic reading from which until counts
	until  atomic.Int64 // nanoseconds after born

	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex // orders Extend and the timer, so that a lapsed lease is not extended
	timer *time.Timer
}

// NewLease returns a lease that etcd granted for ttl in its answer to a request sent at sent. The
// lease ends margin earlier than etcd's lease, which allows for clock drift and for requests in
// flight. [Lease.Context] keeps the values of parent. The caller must call End, which stops the
// timer.
func NewLease(parent context.Context, sent time.Time, ttl, margin time.Duration) *Lease {
	ctx, cancel := context.WithCancelCause(parent)
	l := &Lease{margin: margin, born: sent, ctx: ctx, cancel: cancel}
	l.until.Store(int64(ttl - margin))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(l.Remaining(), l.lapse)
	return l
}

// Context ends with the lease. Its cause is [ErrLapsed] or the cause that End was given.
func (l *Lease) Context() context.Context { return l.ctx }

// Remaining returns how long the process may still act without another renewal. It returns zero
// once the lease has ended.
func (l *Lease) Remaining() time.Duration {
	if l.ctx.Err() != nil {
		return 0
	}
	return max(0, time.Duration(l.until.Load())-time.Since(l.born))
}

// Extend moves the bound to ttl minus the margin after sent, the time at which an acknowledged
// renewal was sent. It reports whether the lease is alive. A lease that has passed its bound stays
// ended.
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

// End ends the lease with cause. On an ended lease it does nothing.
func (l *Lease) End(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer.Stop()
	l.cancel(cause)
}

// lapse runs when the timer fires. If Extend has moved the bound meanwhile, it has also reset the
// timer.
func (l *Lease) lapse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Remaining() == 0 {
		l.cancel(ErrLapsed)
	}
}
