package term

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

// claim creates the keys that the plan asks for and starts their bodies.
func (r *replica) claim(ctx context.Context, steps []sharding.Step) error {
	borrowed := map[int]bool{}
	var shards []int
	for _, step := range steps {
		if step.Verb == sharding.Claim {
			shards = append(shards, step.Shard)
			borrowed[step.Shard] = step.Reason == sharding.Unclaimed
		}
	}
	anchor := r.anchor()
	for batch := range slices.Chunk(shards, batchSize) {
		records, err := r.session.claim(ctx, r.keys, r.cfg.Member.ID, anchor, batch)
		if err != nil {
			return r.unanswered(err)
		}
		if len(records) == 0 {
			r.refusedBy = anchor
			r.hesitate()
			return nil
		}
		for i, answer := range records {
			r.take(batch[i], answer, borrowed[batch[i]])
		}
	}
	return nil
}

func (r *replica) anchor() anchorKey {
	anchor, _ := sharding.Anchor(r.view.shardingMembers())
	return anchorKey{key: r.keys.member(anchor.ID), revision: anchor.Joined}
}

// take notes the answer to a claim and starts the body if the shard is this session's.
func (r *replica) take(shard int, answer record, borrowed bool) {
	now := time.Now()
	before := r.view.shard(shard)
	r.view.put(now, shard, answer)
	if answer.lease != r.session.id || r.work[shard] != nil {
		return
	}
	wait := time.Duration(0)
	if !before.handedOver {
		wait = max(0, takeoverPause-now.Sub(before.since))
	}
	h := newHolding(r.session, localterm.Claim{Shard: shard, Epoch: answer.epoch, Key: r.keys.term(shard)}, now)
	h.borrowed = borrowed
	r.work[shard] = h
	r.metrics.takeovers.Inc()
	if !before.held && before.revision > 0 { // else nobody knows for how long the shard had no holder
		r.metrics.gaps.Observe((now.Sub(before.since) + wait).Seconds())
	}
	r.logger.Info("shard claimed", "shard", shard, "epoch", answer.epoch, "borrowed", borrowed, "pause", wait)
	go func() {
		h.work(r.body, wait)
		r.finished <- h
	}()
}

// yield gives up what the plan says and deletes the keys of bodies that have returned.
func (r *replica) yield(ctx context.Context, now time.Time, steps []sharding.Step) error {
	for _, step := range steps {
		if step.Verb != sharding.Release {
			continue
		}
		if step.Reason == sharding.Unready {
			r.retreat(now)
		}
		r.moves.AllowN(now, 1)
		r.work[step.Shard].next = step.To
		r.give(r.work[step.Shard], string(step.Reason), causeOf(step))
	}
	return r.flush(ctx)
}

func causeOf(step sharding.Step) error {
	if step.Reason == sharding.Unready {
		return fmt.Errorf("this replica cannot do the work of the shard and replica %q can", step.To)
	}
	return fmt.Errorf("shard is %s to replica %q", step.Reason, step.To)
}

// queue notes which shards wait for their turn to move, and where to.
func (r *replica) queue(now time.Time, postponed []sharding.Step) {
	next := make(map[int]string, len(postponed))
	for _, step := range postponed {
		next[step.Shard] = step.To
	}
	for _, h := range r.withPhase(running) {
		if to := next[h.shard]; to != h.next {
			h.next, h.queued = to, now
		}
	}
}

// give ends a term by this replica's own will.
func (r *replica) give(h *holding, reason string, cause error) {
	if h.end(time.Now(), cause) {
		r.metrics.releases.WithLabelValues(reason).Inc()
		r.logger.Info("shard given up; waiting for its body", "shard", h.shard, "epoch", h.term.Epoch(), "reason", cause)
	}
}

// lost notes that a term ended against this replica's will.
func (r *replica) lost(h *holding, reason string, cause error) {
	r.metrics.losses.WithLabelValues(reason).Inc()
	r.logger.Warn("shard lost", "shard", h.shard, "epoch", h.term.Epoch(), "reason", cause)
}

// settle takes in that a body has returned, and every other one that has by now, so that one transaction releases them all.
func (r *replica) settle(h *holding) {
	for {
		r.settleOne(h)
		select {
		case h = <-r.finished:
		default:
			return
		}
	}
}

func (r *replica) settleOne(h *holding) {
	now := time.Now()
	if h.end(now, errReturned) {
		r.unasked(h, now)
	}
	h.phase = returned
	if h.session != r.session {
		delete(r.work, h.shard) // its key goes with its lease
	}
}

// unasked notes that a body returned without having been told to: because its lease ended before anybody noticed, or because
// it could not do its work, and then the shard rests.
func (r *replica) unasked(h *holding, now time.Time) {
	if h.session.lease.Remaining() == 0 {
		cause := context.Cause(h.session.lease.Context())
		r.lost(h, lossReason(cause), cause)
		return
	}
	next := r.rests[h.shard].after(now, now.Sub(h.begun))
	r.rests[h.shard] = next
	r.metrics.releases.WithLabelValues(releaseReturned).Inc()
	r.logger.Error("body returned during its term; giving the shard up for a while",
		"shard", h.shard, "epoch", h.term.Epoch(), "error", h.err, "rest", next.until.Sub(now))
}

// flush deletes the keys of this session's bodies that have returned.
func (r *replica) flush(ctx context.Context) error {
	for batch := range slices.Chunk(r.withPhase(returned), batchSize) {
		deleted, revision, err := r.session.release(ctx, r.keys, batch)
		if err != nil {
			return r.unanswered(err)
		}
		for _, shard := range deleted {
			r.view.dropTerm(time.Now(), shard, revision, true)
		}
		for _, h := range batch {
			delete(r.work, h.shard)
		}
	}
	return nil
}

// withPhase returns the holdings of the present session in a phase, ordered by shard.
func (r *replica) withPhase(p phase) []*holding {
	var found []*holding
	for _, h := range r.work {
		if h.session == r.session && h.phase == p {
			found = append(found, h)
		}
	}
	slices.SortFunc(found, func(a, b *holding) int { return a.shard - b.shard })
	return found
}

// hesitate puts off the next claim or release.
func (r *replica) hesitate() { r.retryAt = time.Now().Add(jittered(writeRetry)) }

// unanswered puts off the next claim or release after one that failed, and ends the lease if etcd does not know it.
func (r *replica) unanswered(err error) error {
	r.hesitate()
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		r.session.lease.End(errLeaseGone)
	}
	return err
}
