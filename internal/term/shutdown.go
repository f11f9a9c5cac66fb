package term

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// maxStale bounds how many ended sessions are kept in order to revoke them. Leases of dropped
// sessions expire.
const maxStale = 8

// stop waits for the remaining bodies and revokes every lease without one. For the others it
// deletes the member keys.
func (r *replica) stop(ctx context.Context) error {
	r.drain(ctx)
	r.revokeStale(ctx)
	r.problems = problems{join: errStopped}
	r.publish()
	remaining := r.unreturned(nil)
	if len(remaining) == 0 {
		return nil
	}
	for _, s := range r.stale {
		if err := s.leave(ctx, r.keys.member(r.cfg.Member.ID)); err != nil {
			r.logger.Warn("cannot delete the member key; it goes when its lease expires", "error", err)
		}
	}
	err := fmt.Errorf("%s did not return within %v of the stop; their keys stay until the lease runs out",
		bodiesOf(remaining), r.cfg.StopTimeout)
	r.logger.Error("stopped with bodies still running", "error", err)
	return err
}

// drain gives up every shard and waits for the bodies, at most for the stop timeout and the lease.
// Each key is deleted as soon as its body returns, so that other replicas need not wait for the
// slowest.
func (r *replica) drain(ctx context.Context) {
	r.problems.write = nil
	active := r.inPhase(running)
	var batches shardLog
	for _, h := range active {
		r.giveUp(h, releaseStopped, errStopped, &batches)
	}
	batches.info(r.logger, "shards given up; waiting for their bodies")
	if len(active) > 0 {
		r.leaving = true
		r.problems.write = r.announce(ctx)
	}
	for r.waitForBody() {
		// After a failed write, the revocation of the lease releases the shards. Further requests
		// would only delay it.
		if r.problems.write == nil {
			r.problems.write = r.deleteKeys(ctx)
		}
		r.publish()
	}
}

// waitForBody waits for the next body to return. It is false if no body remains or the stop timeout
// has passed.
func (r *replica) waitForBody() bool {
	if r.deadline.IsZero() {
		r.deadline = time.Now().Add(r.cfg.StopTimeout)
	}
	if len(r.unreturned(nil)) == 0 {
		return false
	}
	timer := time.NewTimer(time.Until(r.deadline))
	defer timer.Stop()
	select {
	case h := <-r.finished:
		r.collectReturned(h)
		return true
	case <-timer.C:
		return false
	}
}

// endSession ends the present session, because of an error or because the replica stops.
// revokeStale revokes its lease later.
func (r *replica) endSession(err error) {
	s := r.session
	if err == nil {
		s.lease.End(errStopped)
	} else {
		s.lease.End(err)
		r.metrics.sessions.WithLabelValues(lossReason(err)).Inc()
		r.logger.Warn("session ended; joining again", "reason", err)
	}
	now := time.Now()
	var lost shardLog
	for _, h := range r.inPhase(running) {
		if h.end(now, err) {
			r.recordLoss(h, lossReason(err), err, &lost)
		}
	}
	lost.warn(r.logger, "shards lost")
	for _, h := range r.inPhase(returned) {
		delete(r.held, h.shard)
	}
	r.session = nil
}

// revokeStale revokes the leases of ended sessions without running bodies, so that their keys
// vanish before they expire. If etcd cannot be reached, the next call tries again.
func (r *replica) revokeStale(ctx context.Context) {
	var keep []*session
	for i, s := range r.stale {
		if s == r.session || len(r.unreturned(s)) > 0 {
			keep = append(keep, s)
			continue
		}
		if err := s.revoke(ctx); err != nil {
			r.logger.Warn("cannot revoke the lease of an ended session; its keys go when it expires", "error", err)
			keep = append(keep, r.stale[i:]...)
			break
		}
	}
	r.stale = keep[max(0, len(keep)-maxStale):]
}

// waitToRejoin waits between sessions. It records bodies of the last session that return meanwhile,
// so that its lease can be revoked.
func (r *replica) waitToRejoin(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case h := <-r.finished:
			r.collectReturned(h)
		case <-r.readiness.changed:
			r.eligibility.observe(time.Now())
		}
	}
}

// endingBodies returns the bodies that have not returned since their terms ended.
func (r *replica) endingBodies() []endingBody {
	var bodies []endingBody
	for _, h := range r.heldShards(func(h *heldShard) bool { return h.phase == ending }) {
		bodies = append(bodies, endingBody{
			shard: h.shard, epoch: h.term.Epoch(), ended: h.ended, cause: context.Cause(h.term.Context()),
		})
	}
	return bodies
}

// stuckBodies describes the bodies that ignore the end of their terms, or returns "".
func (r *replica) stuckBodies(now time.Time) string {
	stuck := r.heldShards(func(h *heldShard) bool { return h.stuck(now) })
	if len(stuck) == 0 {
		return ""
	}
	return bodiesOf(stuck) + " did not return after their terms ended; their shards stay claimed"
}

func bodiesOf(held []*heldShard) string {
	var shards []string
	for _, h := range held {
		shards = append(shards, fmt.Sprint(h.shard))
	}
	return "bodies of shards " + strings.Join(shards, ", ")
}

// logStuck logs each body that ignores the end of its term, once in stuckLogPeriod.
func (r *replica) logStuck(now time.Time) {
	for _, h := range r.heldShards(func(h *heldShard) bool { return h.stuck(now) }) {
		if now.Sub(h.reported) >= stuckLogPeriod {
			h.reported = now
			r.logger.Error("body ignores the end of its term; its shard stays claimed until it returns",
				"shard", h.shard, "epoch", h.term.Epoch(), "since", now.Sub(h.ended).Round(time.Second),
				"cause", context.Cause(h.term.Context()))
		}
	}
}
