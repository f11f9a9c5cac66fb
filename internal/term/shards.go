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

// writeRetry is the pause after a write that failed or was refused, before jitter.
const writeRetry = 200 * time.Millisecond

// claimShards creates the keys of the planned claims and starts their bodies.
func (r *replica) claimShards(ctx context.Context, steps []sharding.Step) error {
	borrowed := map[int]bool{}
	var shards []int
	for _, step := range steps {
		if step.Verb == sharding.Claim {
			shards = append(shards, step.Shard)
			borrowed[step.Shard] = step.Reason == sharding.Unclaimed
		}
	}
	anchor := r.anchor()
	var batches shardLog
	defer func() { batches.info(r.logger, "shards claimed") }()
	for batch := range slices.Chunk(shards, batchSize) {
		records, err := r.session.claim(ctx, r.keys, r.cfg.Member.ID, anchor, batch)
		if err != nil {
			return r.writeFailed(err)
		}
		if len(records) == 0 {
			r.refusedBy = anchor
			r.delayWrites()
			return nil
		}
		for i, known := range records {
			r.startTerm(batch[i], known, borrowed[batch[i]], &batches)
		}
		r.publish() // a slow etcd delays the next batch
	}
	return nil
}

func (r *replica) anchor() anchorKey {
	anchor, _ := sharding.Anchor(r.view.shardingMembers(time.Now()))
	return anchorKey{key: r.keys.member(anchor.ID), revision: anchor.Joined}
}

// startTerm records the result of a claim and starts the body if this session holds the shard.
func (r *replica) startTerm(shard int, known record, borrowed bool, log *shardLog) {
	now := time.Now()
	before := r.view.shard(shard)
	r.view.put(now, shard, known)
	if known.lease != r.session.id || r.held[shard] != nil {
		return
	}
	wait := time.Duration(0)
	if !before.handedOver {
		wait = max(0, takeoverPause-now.Sub(before.since))
	}
	h := newHeldShard(r.session, localterm.Claim{Shard: shard, Epoch: known.epoch, Key: r.keys.term(shard)}, now)
	h.borrowed = borrowed
	r.held[shard] = h
	r.metrics.takeovers.Inc()
	if !before.held && before.revision > 0 { // otherwise the start of the gap is unknown
		r.metrics.gaps.Observe((now.Sub(before.since) + wait).Seconds())
	}
	log.add(shard, fmt.Sprintf("borrowed=%t paused=%t", borrowed, wait > 0), "borrowed", borrowed, "pause", wait)
	r.logger.Debug("shard claimed", "shard", shard, "epoch", known.epoch, "borrowed", borrowed, "pause", wait)
	r.notify(Change{Kind: Taken, Shard: shard, Epoch: known.epoch})
	go func() {
		h.run(r.body, wait)
		r.finished <- h
	}()
}

// releaseShards ends the terms of the planned releases and deletes the keys of returned bodies.
func (r *replica) releaseShards(ctx context.Context, now time.Time, steps []sharding.Step) error {
	var batches shardLog
	for _, step := range steps {
		if step.Verb != sharding.Release {
			continue
		}
		if step.Reason == sharding.Unready {
			r.eligibility.backOff(now)
		}
		r.moves.AllowN(now, 1)
		r.held[step.Shard].next = step.To
		r.giveUp(r.held[step.Shard], string(step.Reason), releaseCause(step), &batches)
	}
	batches.info(r.logger, "shards given up; waiting for their bodies")
	return r.deleteKeys(ctx)
}

func releaseCause(step sharding.Step) error {
	if step.Reason == sharding.Unready {
		return fmt.Errorf("this replica cannot do the work of the shard and replica %q can", step.To)
	}
	return fmt.Errorf("shard is %s to replica %q", step.Reason, step.To)
}

// recordPostponed notes which shards wait for the budget of moves, and their next replicas.
func (r *replica) recordPostponed(now time.Time, postponed []sharding.Step) {
	next := make(map[int]string, len(postponed))
	for _, step := range postponed {
		next[step.Shard] = step.To
	}
	for _, h := range r.inPhase(running) {
		if to := next[h.shard]; to != h.next {
			h.next, h.queued = to, now
		}
	}
}

// giveUp ends a term that this replica releases.
func (r *replica) giveUp(h *heldShard, reason string, cause error, log *shardLog) {
	if h.end(time.Now(), cause) {
		r.metrics.releases.WithLabelValues(reason).Inc()
		log.add(h.shard, cause.Error(), "reason", cause)
		r.logger.Debug("shard given up; waiting for its body", "shard", h.shard, "epoch", h.term.Epoch(), "reason", cause)
		r.notify(Change{Kind: GivenUp, Shard: h.shard, Epoch: h.term.Epoch(), Cause: cause})
	}
}

// notify calls Config.OnChange.
func (r *replica) notify(change Change) {
	if r.cfg.OnChange != nil {
		r.cfg.OnChange(change)
	}
}

// recordLoss records that a term ended although this replica did not release it.
func (r *replica) recordLoss(h *heldShard, reason string, cause error, log *shardLog) {
	r.metrics.losses.WithLabelValues(reason).Inc()
	log.add(h.shard, cause.Error(), "reason", cause)
	r.logger.Debug("shard lost", "shard", h.shard, "epoch", h.term.Epoch(), "reason", cause)
	r.notify(Change{Kind: Lost, Shard: h.shard, Epoch: h.term.Epoch(), Cause: cause})
}

// collectReturned records h and every further body that has returned by now, so that one
// transaction releases them all.
func (r *replica) collectReturned(h *heldShard) {
	var lost shardLog
	defer func() { lost.warn(r.logger, "shards lost") }()
	for {
		r.recordReturned(h, &lost)
		select {
		case h = <-r.finished:
		default:
			return
		}
	}
}

func (r *replica) recordReturned(h *heldShard, lost *shardLog) {
	now := time.Now()
	if h.end(now, errReturned) {
		r.recordEarlyReturn(h, now, lost)
	}
	h.phase = returned
	if h.session != r.session {
		delete(r.held, h.shard) // etcd deletes the key with its lease
	}
}

// recordEarlyReturn records that a body returned before this replica ended its term. Either the
// lease ended first, or the body failed and the shard backs off.
func (r *replica) recordEarlyReturn(h *heldShard, now time.Time, lost *shardLog) {
	if h.session.lease.Remaining() == 0 {
		cause := context.Cause(h.session.lease.Context())
		r.recordLoss(h, lossReason(cause), cause, lost)
		return
	}
	next := r.backoffs[h.shard].after(now, now.Sub(h.started))
	r.backoffs[h.shard] = next
	r.metrics.releases.WithLabelValues(releaseReturned).Inc()
	r.logger.Error("body returned during its term; giving the shard up for a while",
		"shard", h.shard, "epoch", h.term.Epoch(), "error", h.err, "rest", next.until.Sub(now))
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

// deleteKeys deletes the keys of this session's returned bodies.
func (r *replica) deleteKeys(ctx context.Context) error {
	for batch := range slices.Chunk(r.inPhase(returned), batchSize) {
		next := r.announced.withReleased(batch)
		value, err := next.encode()
		if err != nil {
			return err
		}
		self := memberKey{key: r.keys.member(r.cfg.Member.ID), value: value}
		deleted, revision, err := r.session.release(ctx, r.keys, self, batch)
		if err != nil {
			return r.writeFailed(err)
		}
		r.announced = next
		for _, shard := range deleted {
			r.view.dropTerm(time.Now(), shard, revision, true)
		}
		for _, h := range batch {
			delete(r.held, h.shard)
		}
		r.publish()
	}
	return nil
}

// inPhase returns the shards of the present session in a phase, ordered.
func (r *replica) inPhase(p phase) []*heldShard {
	return r.heldShards(func(h *heldShard) bool { return h.session == r.session && h.phase == p })
}

// unreturned returns the shards of a session whose bodies have not returned, ordered; nil means all
// sessions.
func (r *replica) unreturned(s *session) []*heldShard {
	return r.heldShards(func(h *heldShard) bool { return h.phase != returned && (s == nil || h.session == s) })
}

func (r *replica) heldShards(selected func(*heldShard) bool) []*heldShard {
	var found []*heldShard
	for _, h := range r.held {
		if selected(h) {
			found = append(found, h)
		}
	}
	slices.SortFunc(found, func(a, b *heldShard) int { return a.shard - b.shard })
	return found
}

// announcement returns the value that the member key should have.
func (r *replica) announcement() announcement {
	next := announcement{Member: r.cfg.Member, Shards: r.cfg.Shards, DryRun: r.cfg.DryRun, Leaving: r.leaving, Released: r.announced.Released}
	if r.cfg.Shards > 0 {
		rank := r.eligibility.rank()
		next.Unready, next.Able = rank != sharding.Ready, rank == sharding.Able
	}
	return next
}

// announce updates the member key if its value has changed. Without it, other replicas would wait
// for this one to claim the shards that it releases.
func (r *replica) announce(ctx context.Context) error {
	next := r.announcement()
	if next == r.announced {
		return nil
	}
	value, err := next.encode()
	if err != nil {
		return err
	}
	if err := r.session.announce(ctx, r.keys.member(r.cfg.Member.ID), value); err != nil {
		return r.writeFailed(err)
	}
	r.announced = next
	return nil
}

// writeFailed delays the next write, and ends the lease if etcd does not know it.
func (r *replica) writeFailed(err error) error {
	r.delayWrites()
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		r.session.lease.End(errLeaseGone)
	}
	return err
}

func (r *replica) delayWrites() { r.retryAt = time.Now().Add(jittered(writeRetry)) }
