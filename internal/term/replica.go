package term

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

const (
	// minRejoin and maxRejoin bound the backoff between sessions, before jitter. It is at most a
	// quarter of the TTL, so that replicas return soon after a long outage of etcd.
	minRejoin = 100 * time.Millisecond
	maxRejoin = 3 * time.Second
	// reconcilePeriod is the longest time between two plans. A plan without steps sends no request.
	reconcilePeriod = time.Second
)

// shared is what a candidate and its replica have in common.
type shared struct {
	client    *clientv3.Client
	cfg       Config
	metrics   *metrics
	readiness *readiness
	published *atomic.Pointer[snapshot] // never holds nil
}

// replica is one Run of a candidate. It belongs to the goroutine of Run. Other goroutines send it
// changes and returned bodies, and read the snapshots that it publishes.
type replica struct {
	shared
	body   Body
	keys   keys
	logger *slog.Logger

	eligibility *eligibilityState
	leaving     bool
	announced   announcement // the value of the member key

	session  *session // nil between sessions
	view     *view    // of the present or the last session
	stale    []*session
	held     map[int]*heldShard
	backoffs map[int]shardBackoff
	moves    *rate.Limiter
	// finished receives a shard whose body has returned. It has a slot for each shard, so a send
	// never blocks.
	finished chan *heldShard

	switchedOn []string // what Config.OnSwitch was told last
	toldSwitch bool     // whether it was told

	retryAt   time.Time // no claim or release before
	refusedBy anchorKey // the member whose absence refused a claim, until the view shows it
	blocked   string    // the last logged reason for claiming nothing
	problems  problems
	deadline  time.Time // of the stop; zero while the replica runs
}

// problems are the present problems by operation; nil means that the last attempt succeeded.
type problems struct{ join, follow, write error }

func (p problems) String() string {
	if err := errors.Join(p.join, p.follow, p.write); err != nil {
		return err.Error()
	}
	return ""
}

func newReplica(s shared, body Body) *replica {
	member := s.cfg.Member
	keys := keysOf(member.Cluster, member.Service)
	logger := s.cfg.Logger.With("replica", member.ID, "service", member.Service)
	return &replica{
		shared: s, body: body, keys: keys, logger: logger,
		eligibility: newEligibility(s.readiness, s.cfg.TTL, logger),
		view:        newView(keys, logger), held: map[int]*heldShard{}, backoffs: map[int]shardBackoff{},
		moves:    rate.NewLimiter(rate.Limit(s.cfg.MovesPerSecond), max(1, s.cfg.MovesPerSecond/4)),
		finished: make(chan *heldShard, s.cfg.Shards),
	}
}

// run runs one session after another until ctx ends.
func (r *replica) run(ctx context.Context) error {
	rejoin, failures := backoff.Exponential{Min: minRejoin, Max: max(min(maxRejoin, r.cfg.TTL/4), minRejoin)}, 0
	for ctx.Err() == nil {
		began := time.Now()
		err := r.runSession(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > r.cfg.TTL {
			failures = 0
		}
		r.problems = problems{join: err}
		r.publish()
		failures++
		r.waitToRejoin(ctx, jittered(rejoin.After(failures)))
	}
	return r.stop(context.WithoutCancel(ctx))
}

// runSession opens a session and serves under it until it or ctx ends.
func (r *replica) runSession(ctx context.Context) error {
	r.revokeStale(ctx)
	s, err := openSession(ctx, r.client, r.cfg.TTL)
	if err != nil {
		r.logger.Warn("cannot open a session with etcd", "error", err)
		return err
	}
	r.stale = append(r.stale, s)
	if err := etcdconn.Explain(r.join(ctx, s)); err != nil {
		s.lease.End(err)
		r.logger.Warn("cannot join", "error", err)
		return err
	}
	var tasks sync.WaitGroup
	changes := r.begin(s, &tasks)
	err = r.serve(ctx, changes)
	if err == nil {
		r.drain(context.WithoutCancel(ctx))
	}
	r.endSession(err)
	tasks.Wait()
	return err
}

// join makes this replica a member under s. It renews the lease first: a replica whose renewals
// fail would take shards from working replicas again and again.
func (r *replica) join(ctx context.Context, s *session) error {
	if err := s.renewOnce(ctx); err != nil {
		return err
	}
	r.eligibility.observe(time.Now())
	r.announced = announcement{} // the terms of the last session are gone
	announced := r.announcement()
	value, err := announced.encode()
	if err != nil {
		return err
	}
	r.announced = announced
	return s.join(ctx, r.keys.member(r.cfg.Member.ID), value)
}

// begin makes s the present session. It renews the lease and follows etcd until the lease ends.
func (r *replica) begin(s *session, tasks *sync.WaitGroup) <-chan change {
	r.logger.Info("joined", "lease", fmt.Sprintf("%x", s.id), "ttl", s.ttl, "revision", s.joined)
	if s.ttl > r.cfg.TTL {
		r.logger.Warn("etcd grants longer sessions than asked for; a takeover after a failure takes as much longer",
			"granted", s.ttl, "asked", r.cfg.TTL, "cause", "etcd's least TTL is 1.5 times its --election-timeout")
	}
	r.session, r.view = s, newView(r.keys, r.logger)
	r.retryAt, r.refusedBy, r.blocked, r.problems = time.Time{}, anchorKey{}, "", problems{}
	changes := make(chan change)
	ended := s.lease.Context()
	// Other replicas hand shards over as soon as this one has joined. The follower starts at that
	// revision to see it: a shard that is only found vacant starts after a pause.
	f := &follower{client: r.client, keys: r.keys.watched(r.cfg.Shards), since: s.joined, logger: r.logger}
	tasks.Go(s.renew)
	tasks.Go(func() {
		f.run(ended, func(c change) {
			select {
			case changes <- c:
			case <-ended.Done():
			}
		})
	})
	return changes
}

// serve reconciles after each change. It returns nil when ctx ends, else why the session ended.
func (r *replica) serve(ctx context.Context, changes <-chan change) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(r.reconcile(ctx))
		r.publish()
		select {
		case <-ctx.Done():
			return nil
		case <-r.session.lease.Context().Done():
			return r.session.failure()
		case c := <-changes:
			if err := r.applyChange(c); err != nil {
				return err
			}
		case h := <-r.finished:
			r.collectReturned(h)
		case <-r.readiness.changed:
		case <-timer.C:
		}
	}
}

// applyChange updates the view and ends terms whose keys are gone. Its error ends the session.
func (r *replica) applyChange(c change) error {
	r.problems.follow = c.err
	if c.err != nil {
		return nil
	}
	if c.whole && c.revision < r.view.revision {
		return fmt.Errorf("%w: from %d to %d", errRewound, r.view.revision, c.revision)
	}
	now := time.Now()
	r.view.apply(now, c)
	r.followSwitch()
	if r.refusedBy != (anchorKey{}) && r.refusedBy != r.anchor() {
		r.refusedBy, r.retryAt = anchorKey{}, time.Time{} // the cause of the refusal is known now
	}
	if m, ok := r.view.members[r.cfg.Member.ID]; !ok || m.lease != r.session.id {
		return errMemberGone
	}
	var lost shardLog
	for _, h := range r.held {
		// This replica never modifies a key after its creation, so a later revision is foreign.
		if h.session == r.session && r.view.shard(h.shard).revision > h.term.Epoch() && h.end(now, errKeyGone) {
			r.recordLoss(h, lossKey, errKeyGone, &lost)
		}
	}
	lost.warn(r.logger, "shards lost")
	return nil
}

// reconcile plans and applies the next steps. It returns the time until the next plan.
func (r *replica) reconcile(ctx context.Context) time.Duration {
	now := time.Now()
	r.logStuck(now)
	r.eligibility.observe(now)
	if r.cfg.Shards == 0 || r.view.listed.IsZero() {
		return reconcilePeriod
	}
	if wait := r.retryAt.Sub(now); wait > 0 {
		return min(wait, reconcilePeriod)
	}
	decision := sharding.Plan(r.planInput(now))
	r.logBlocked(decision.Blocked)
	r.recordPostponed(now, decision.Postponed)
	r.problems.write = errors.Join(
		r.announce(ctx), r.claimShards(ctx, decision.Steps), r.releaseShards(ctx, now, decision.Steps), r.dropSwitches(ctx))
	wait := reconcilePeriod
	for _, sooner := range []time.Duration{decision.Wait, r.eligibility.tracker.Wait(now), time.Until(r.retryAt)} {
		if sooner > 0 {
			wait = min(wait, sooner)
		}
	}
	if len(decision.Postponed) > 0 {
		wait = min(wait, time.Second/time.Duration(r.cfg.MovesPerSecond))
	}
	return wait
}

func (r *replica) planInput(now time.Time) sharding.Input {
	in := sharding.Input{
		Self: r.cfg.Member.ID, Members: r.view.shardingMembers(now), Leaders: r.view.leaders(),
		Shards: make([]sharding.Shard, r.cfg.Shards), Moves: int(r.moves.TokensAt(now)),
		Failing: r.eligibility.failing(), Yielding: r.eligibility.yieldReason() != nil,
		ReleasedRecently: r.eligibility.tracker.ReleasedRecently(now), ClaimDelay: r.session.ttl, MinHold: 6 * r.session.ttl,
	}
	for number := range in.Shards {
		known := r.view.shard(number)
		shard := sharding.Shard{
			Vacant: !known.held, VacantFor: now.Sub(known.since), Ours: known.held && known.lease == r.session.id,
		}
		if h, ok := r.held[number]; ok {
			shard.Work, shard.Borrowed, shard.HeldFor = sharding.Ending, h.borrowed, now.Sub(h.started)
			if h.phase == running {
				shard.Work = sharding.Running
			}
		} else if now.Before(r.backoffs[number].until) {
			shard.Work = sharding.BackingOff
		}
		in.Shards[number] = shard
	}
	return in
}

// logBlocked logs why no shard may be claimed, when that changes.
func (r *replica) logBlocked(blocked string) {
	if blocked != r.blocked && blocked != "" {
		r.logger.Warn("claims are blocked", "reason", blocked)
	}
	r.blocked = blocked
}

// publish stores a snapshot of the present state for readers.
func (r *replica) publish() {
	next := &snapshot{
		at: time.Now(), ending: r.endingBodies(), session: r.session, shards: make([]shardState, r.cfg.Shards),
		unready: r.view.unready(), problem: r.problems.String(), stuck: r.stuckBodies(time.Now()),
	}
	next.problem = cmp.Or(next.problem, r.blocked)
	if r.cfg.Shards > 0 {
		next.problem = cmp.Or(next.problem, r.eligibility.notReadyReason())
	}
	for number := range next.shards {
		known := r.view.shard(number)
		if !known.held {
			next.shards[number].vacated = known.since
			continue
		}
		state := shardState{
			leader: known.leader, epoch: known.epoch, since: known.since,
			address: r.view.members[known.leader].GRPCAddress,
		}
		if h, ok := r.held[number]; ok && h.session == r.session && h.term.Epoch() == known.epoch {
			state.term, state.move = h.term, h.move()
		}
		next.shards[number] = state
	}
	r.published.Store(next)
}
