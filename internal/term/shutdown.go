package term

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
)

// maxStale bounds how many ended sessions are remembered in order to revoke them. Those forgotten run out by themselves.
const maxStale = 8

// drain gives up every shard and waits for the bodies, no longer than the stop timeout and the lease allow. Keys are deleted
// as their bodies return, so that others can go on while the slowest is still busy.
func (r *replica) drain(ctx context.Context) {
	r.troubles.write = nil
	given := r.withPhase(running)
	for _, h := range given {
		r.give(h, releaseStopped, errStopped)
	}
	if len(given) > 0 {
		r.leaving = true
		r.troubles.write = r.announce(ctx)
	}
	for r.await() {
		if r.troubles.write == nil { // else the lease is revoked in the end; waiting for etcd once more would only delay that
			r.troubles.write = r.flush(ctx)
		}
		r.publish()
	}
}

// await waits for the next body to return. It is false when there is none to wait for or the time is up.
func (r *replica) await() bool {
	if r.stopBy.IsZero() {
		r.stopBy = time.Now().Add(r.cfg.StopTimeout)
	}
	if len(r.busy(nil)) == 0 {
		return false
	}
	timer := time.NewTimer(time.Until(r.stopBy))
	defer timer.Stop()
	select {
	case h := <-r.finished:
		r.settle(h)
		return true
	case <-timer.C:
		return false
	}
}

// retire ends the present session, for an error or because the replica stops. Its lease is left to sweep.
func (r *replica) retire(err error) {
	s := r.session
	if err == nil {
		s.lease.End(errStopped)
	} else {
		s.lease.End(err)
		r.logger.Warn("session ended; joining again", "reason", err)
	}
	now := time.Now()
	for _, h := range r.withPhase(running) {
		if h.end(now, err) {
			r.lost(h, lossReason(err), err)
		}
	}
	for _, h := range r.withPhase(returned) {
		delete(r.work, h.shard)
	}
	r.session = nil
}

func lossReason(err error) string {
	switch {
	case errors.Is(err, localterm.ErrLapsed):
		return lossLapsed
	case errors.Is(err, errLeaseGone), errors.Is(err, errMemberGone):
		return lossLease
	default:
		return lossSession
	}
}

// sweep revokes the leases of ended sessions none of whose bodies runs any more, so that their keys do not have to run out.
// A lease that etcd cannot be asked about now is tried again at the next occasion.
func (r *replica) sweep(ctx context.Context) {
	var keep []*session
	for i, s := range r.stale {
		if s == r.session || len(r.busy(s)) > 0 {
			keep = append(keep, s)
			continue
		}
		if err := s.revoke(ctx); err != nil {
			r.logger.Warn("lease of an ended session not revoked; its keys go when it runs out", "error", err)
			keep = append(keep, r.stale[i:]...)
			break
		}
	}
	r.stale = keep[max(0, len(keep)-maxStale):]
}

// busy returns the holdings of a session, of any if it is nil, whose bodies have not returned; ordered by shard.
func (r *replica) busy(s *session) []*holding {
	var found []*holding
	for _, h := range r.work {
		if h.phase != returned && (s == nil || h.session == s) {
			found = append(found, h)
		}
	}
	slices.SortFunc(found, func(a, b *holding) int { return a.shard - b.shard })
	return found
}

// idle waits between sessions. Bodies of the last one that return meanwhile make way for its lease to be revoked.
func (r *replica) idle(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case h := <-r.finished:
			r.settle(h)
		case <-r.nudged:
			r.assess(time.Now())
		}
	}
}

// stop waits for what still runs, revokes every lease it may, and takes back the member keys of the others.
func (r *replica) stop(ctx context.Context) error {
	r.drain(ctx)
	r.sweep(ctx)
	r.troubles = troubles{join: errStopped}
	r.publish()
	stuck := r.busy(nil)
	if len(stuck) == 0 {
		return nil
	}
	for _, s := range r.stale {
		if err := s.withdraw(ctx, r.keys.member(r.cfg.Member.ID)); err != nil {
			r.logger.Warn("member key not withdrawn; it goes when its lease runs out", "error", err)
		}
	}
	err := fmt.Errorf("%s did not return within %v of the stop; their keys stay until the lease runs out",
		describe(stuck), r.cfg.StopTimeout)
	r.logger.Error("stopped with bodies still running", "error", err)
	return err
}

// stuck describes the bodies that have ignored the end of their terms for long, "" when there is none.
func (r *replica) stuck(now time.Time) string {
	var late []*holding
	for _, h := range r.busy(nil) {
		if h.phase == ending && now.Sub(h.over) >= stuckAfter {
			late = append(late, h)
		}
	}
	if len(late) == 0 {
		return ""
	}
	return describe(late) + " did not return after their terms ended; their shards stay claimed"
}

func describe(holdings []*holding) string {
	var shards []string
	for _, h := range holdings {
		shards = append(shards, fmt.Sprint(h.shard))
	}
	return "bodies of shards " + strings.Join(shards, ", ")
}

// complain logs, now and then, each body that ignores the end of its term.
func (r *replica) complain(now time.Time) {
	for _, h := range r.busy(nil) {
		if h.phase == ending && now.Sub(h.over) >= stuckAfter && now.Sub(h.reported) >= stuckAgain {
			h.reported = now
			r.logger.Error("body ignores the end of its term; its shard stays claimed until it returns",
				"shard", h.shard, "epoch", h.term.Epoch(), "since", now.Sub(h.over).Round(time.Second),
				"cause", context.Cause(h.term.Context()))
		}
	}
}
