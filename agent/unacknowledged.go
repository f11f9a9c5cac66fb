package agent

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trivet-dev/trivet/internal/acknowledge"
	"github.com/trivet-dev/trivet/internal/backoff"
)

const (
	// defaultInterval stands for the interval of a class before its first grant.
	defaultInterval = 5 * time.Second
	// intervalsPerLease is how often a Node beats in the 40 s of its Lease, with the defaults.
	intervalsPerLease = 8
	// maxUnacknowledged is how many calls of Config.Unacknowledged run at once.
	maxUnacknowledged = 256
	// minLook and maxLook bound the time between two looks for unacknowledged beats: a look reads
	// the state of all holders, and a holder that was just added is due before others.
	minLook = 100 * time.Millisecond
	maxLook = time.Second
)

// renewUnacknowledged calls Config.Unacknowledged for the holders whose beats are not acknowledged
// in time. It returns after ctx has ended and the last call has returned.
func (a *Agent) renewUnacknowledged(ctx context.Context) {
	a.router.begin(time.Now())
	var calls errgroup.Group
	calls.SetLimit(maxUnacknowledged)
	for alive := true; alive; {
		overdue, next := a.router.overdue(time.Now())
		for _, e := range overdue {
			calls.Go(func() error { // waits while too many calls run
				a.renewOtherwise(ctx, e)
				return nil
			})
		}
		alive = backoff.Sleep(ctx, max(time.Until(next), minLook))
	}
	_ = calls.Wait() // always nil
}

// renewOtherwise calls Config.Unacknowledged for a holder, unless that has become needless.
func (a *Agent) renewOtherwise(ctx context.Context, e *entry) {
	if ctx.Err() != nil {
		return
	}
	timeout, needed := a.router.beginCall(e, time.Now())
	if !needed {
		return
	}
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := a.cfg.Unacknowledged(call, e.holder)
	if err != nil {
		a.router.failCall(e, time.Now())
	}
	if ctx.Err() != nil {
		return // the end of Run may have failed it
	}
	a.history.update(func(s *Status) {
		s.Unacknowledged++
		if err != nil {
			s.UnacknowledgedFailed++
		}
	})
	if n := a.unacknowledged.add(time.Now()); n > 0 {
		a.cfg.Logger.Warn("beats are not acknowledged in time; their holders are renewed in another way",
			"calls", n, "last_holder", e.holder.Name, "last_error", err)
	}
}

// begin counts the waiting of all holders from now on.
func (r *router) begin(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		e.addedAt = now
	}
}

// interval is the one that is granted to a class.
func (r *router) interval(class string) time.Duration {
	return cmp.Or(r.intervals[class], defaultInterval)
}

// overdue returns the holders to renew in another way, the most overdue one first, and when to look
// again.
func (r *router) overdue(now time.Time) (found []*entry, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next = now.Add(maxLook)
	due := map[*entry]time.Time{}
	for _, e := range r.entries {
		at := r.renewBy(e)
		switch {
		case at.After(now):
			next = earlier(next, at)
		case r.needsRenewal(e, now):
			due[e] = at
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b *entry) int { return due[a].Compare(due[b]) })
	return found, next
}

// renewBy returns when a holder is renewed in another way, if no beat is acknowledged before.
func (r *router) renewBy(e *entry) time.Time {
	interval, begun := r.interval(e.holder.Class), e.addedAt
	if accepted := e.renewal.Accepted; !accepted.IsZero() {
		begun = accepted.Add(interval) // the next beat is sent by then
	}
	by := acknowledge.By(begun, e.renewal.Observed, intervalsPerLease*interval, 0)
	if e.renewAgain.After(by) {
		return e.renewAgain
	}
	return by
}

// needsRenewal reports whether an overdue holder is to be renewed. One that was not observed for an
// interval may be dead.
func (r *router) needsRenewal(e *entry, now time.Time) bool {
	if e.superseded || r.entries[e.holder.key()] != e {
		return false
	}
	return !e.report.observes() || now.Sub(e.report.ObservedTime) <= r.interval(e.holder.Class)
}

// beginCall reports whether a holder is still to be renewed, and how long the call may take.
func (r *router) beginCall(e *entry, now time.Time) (timeout time.Duration, needed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.renewBy(e).After(now) || !r.needsRenewal(e, now) {
		return 0, false
	}
	interval := r.interval(e.holder.Class)
	e.renewAgain = now.Add(2 * interval)
	return interval, true
}

// failCall makes a call that failed be repeated before the session of the holder expires.
func (r *router) failCall(e *entry, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.renewAgain = now.Add(r.interval(e.holder.Class) * 2 / 5)
}
