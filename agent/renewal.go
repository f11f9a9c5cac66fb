package agent

import (
	"context"
	"fmt"
	"time"
)

// Renewal is what the servers made of the beats of one holder.
type Renewal struct {
	// Accepted is when the last answer arrived that accepted a beat of the holder; zero before the
	// first. Observed is when that beat says that the holder was observed.
	Accepted, Observed time.Time
	// Live is true while the holder is registered at a replica and its last beat was not rejected.
	Live bool
	// Reason is why the holder is not registered, for example SUPERSEDED or NOT_AUTHORIZED; empty
	// if it is, or if no server has answered yet.
	Reason string
	// Reported is the ObservedTime of the last Report: when the holder was last seen. It is zero
	// without a report, or if the report has none.
	Reported time.Time
}

// Renewed returns what the servers made of the beats of a holder; the zero Renewal for a holder
// that the Agent does not have.
func (a *Agent) Renewed(h Holder) Renewal {
	a.router.mu.Lock()
	defer a.router.mu.Unlock()
	return a.router.renewalOf(h)
}

// AwaitRenewal waits until a server has accepted a beat that says that the holder was observed at a
// time, or later. It returns the cause if ctx ends before.
func (a *Agent) AwaitRenewal(ctx context.Context, h Holder, observed time.Time) error {
	for {
		renewal, changed := a.router.nextRenewal(h)
		if !renewal.Accepted.IsZero() && !renewal.Observed.Before(observed) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("agent: no server has accepted the beat of holder %+v: %w", h, context.Cause(ctx))
		}
	}
}

func (r *router) renewalOf(h Holder) Renewal {
	e := r.entries[h.key()]
	if e == nil || e.holder != h {
		return Renewal{}
	}
	renewal := e.renewal
	renewal.Live = e.handle != 0
	if !renewal.Live {
		renewal.Reason = e.rejectedFor
	}
	return renewal
}

// nextRenewal returns a Renewal and a channel that is closed when a beat of any holder is accepted.
func (r *router) nextRenewal(h Holder) (Renewal, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.renewed == nil {
		r.renewed = make(chan struct{})
	}
	return r.renewalOf(h), r.renewed
}

// accept records that a server accepted the beats of a message, inside update. A beat whose handle
// was rejected, or whose holder has left meanwhile, has none.
func (r *router) accept(t *target, beats []beating, sent, now time.Time) {
	for i := range beats {
		if e := t.handles[beats[i].handle]; beats[i].handle != 0 && e != nil && e.holder == beats[i].holder {
			e.accepted(beats[i].report, sent, now)
		}
	}
	r.wakeWaiting()
}

func (e *entry) accepted(report *Report, sent, now time.Time) {
	e.renewal.Accepted, e.renewal.Observed = now, sent
	if report.observes() {
		e.renewal.Observed = report.ObservedTime
	}
}

func (r *router) wakeWaiting() {
	if r.renewed != nil {
		close(r.renewed)
		r.renewed = nil
	}
}
