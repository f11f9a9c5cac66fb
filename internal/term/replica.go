package term

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/trivet-dev/trivet/internal/term/internal/eligibility"
	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

const (
	// rejoinMin and rejoinMax bound the backoff between sessions, before jitter. It is a quarter of the TTL at most, so that
	// replicas are back soon after an etcd that was away for long.
	rejoinMin = 100 * time.Millisecond
	rejoinMax = 3 * time.Second
	// writeRetry is the pause after a claim or release that got no answer or a refusal.
	writeRetry = 200 * time.Millisecond
	// lookAgain is how often the situation is looked at when nothing happens; that costs no request.
	lookAgain = time.Second
)

// replica is one Run of a candidate. Everything in it belongs to the goroutine of Run; others send it changes and ended
// bodies, and read the snapshots that it publishes.
type replica struct {
	*Candidate
	body   Body
	keys   keys
	logger *slog.Logger

	eligibility eligibility.Tracker
	leaving     bool
	announced   announcement // what the member key says

	session *session // nil between sessions
	view    *view    // of the present or the last session
	stale   []*session
	work    map[int]*holding
	rests   map[int]rest
	moves   *rate.Limiter
	// finished takes a holding whose body has returned. A shard has at most one holding, so it never blocks.
	finished chan *holding

	retryAt   time.Time // no claim or release before
	refusedBy anchorKey // the member that was gone when a claim named it, until that is known; zero when there is none
	blocked   string    // why nothing may be claimed, as last logged
	troubles  troubles
	stopBy    time.Time // zero until Run is to end
}

// troubles are what goes wrong at present, each until it goes right.
type troubles struct{ join, follow, write error }

func (t troubles) String() string {
	if err := errors.Join(t.join, t.follow, t.write); err != nil {
		return err.Error()
	}
	return ""
}

func newReplica(c *Candidate, body Body) *replica {
	member := c.cfg.Member
	keys := keysOf(member.Cluster, member.Service)
	logger := c.cfg.Logger.With("replica", member.ID, "service", member.Service)
	return &replica{
		Candidate: c, body: body, keys: keys, logger: logger,
		eligibility: eligibility.New(time.Now(), c.cfg.TTL, *c.unready.Load() == nil),
		view:        newView(keys, logger), work: map[int]*holding{}, rests: map[int]rest{},
		moves:    rate.NewLimiter(rate.Limit(c.cfg.MovesPerSecond), max(1, c.cfg.MovesPerSecond/4)),
		finished: make(chan *holding, c.cfg.Shards),
	}
}

// run lives through one session after the other until ctx ends.
func (r *replica) run(ctx context.Context) error {
	wait := rejoinMin
	for ctx.Err() == nil {
		began := time.Now()
		err := r.live(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > r.cfg.TTL {
			wait = rejoinMin
		}
		r.troubles = troubles{join: err}
		r.publish()
		r.idle(ctx, jittered(wait))
		wait = min(2*wait, rejoinMax, r.cfg.TTL/4)
	}
	return r.stop(context.WithoutCancel(ctx))
}

// live opens a session, serves under it until it or ctx ends, and retires it.
func (r *replica) live(ctx context.Context) error {
	r.sweep(ctx)
	s, err := openSession(ctx, r.client, r.cfg.TTL)
	if err != nil {
		r.logger.Warn("no session with etcd; trying again", "error", err)
		return err
	}
	r.stale = append(r.stale, s)
	if err := r.join(ctx, s); err != nil {
		s.lease.End(err)
		r.logger.Warn("not joined; trying again", "error", err)
		return err
	}
	var tasks sync.WaitGroup
	changes := r.begin(s, &tasks)
	err = r.serve(ctx, changes)
	if err == nil {
		r.drain(context.WithoutCancel(ctx))
	}
	r.retire(err)
	tasks.Wait()
	return err
}

// join makes this replica a member under s. It renews first: a replica whose renewals do not get through would only pull
// shards away from those who can keep them, again and again.
func (r *replica) join(ctx context.Context, s *session) error {
	if err := s.renewOnce(ctx); err != nil {
		return err
	}
	r.assess(time.Now())
	introduction := r.introduction()
	value, err := introduction.encode()
	if err != nil {
		return err
	}
	r.announced = introduction
	return s.join(ctx, r.keys.member(r.cfg.Member.ID), value)
}

// begin makes s the present session, renewed and followed until its lease ends.
func (r *replica) begin(s *session, tasks *sync.WaitGroup) <-chan change {
	r.logger.Info("joined", "lease", fmt.Sprintf("%x", s.id), "ttl", s.ttl, "revision", s.joined)
	r.session, r.view = s, newView(r.keys, r.logger)
	r.retryAt, r.refusedBy, r.blocked, r.troubles = time.Time{}, anchorKey{}, "", troubles{}
	changes := make(chan change)
	ended := s.lease.Context()
	// From the moment of joining on, others hand shards over to this replica. It has to see them do so, because a shard that
	// is found vacant might have vanished under its holder and is started only after a pause.
	f := &follower{client: r.client, span: r.keys.span(), since: s.joined, logger: r.logger}
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

// serve acts on what changes. It returns nil when ctx ends and otherwise why the session did.
func (r *replica) serve(ctx context.Context, changes <-chan change) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(r.act(ctx))
		r.publish()
		select {
		case <-ctx.Done():
			return nil
		case <-r.session.lease.Context().Done():
			return r.session.failure()
		case c := <-changes:
			if err := r.learn(c); err != nil {
				return err
			}
		case h := <-r.finished:
			r.settle(h)
		case <-r.nudged:
		case <-timer.C:
		}
	}
}

// learn takes in what changed in etcd. Its error ends the session.
func (r *replica) learn(c change) error {
	r.troubles.follow = c.err
	if c.err != nil {
		return nil
	}
	if c.whole && c.revision < r.view.revision {
		return fmt.Errorf("%w: from %d to %d", errRewound, r.view.revision, c.revision)
	}
	now := time.Now()
	r.view.apply(now, c)
	if r.refusedBy != (anchorKey{}) && r.refusedBy != r.anchor() {
		r.refusedBy, r.retryAt = anchorKey{}, time.Time{} // what the claim ran into is known now, so there is no need to wait
	}
	if m, ok := r.view.members[r.cfg.Member.ID]; !ok || m.lease != r.session.id {
		return errMemberGone
	}
	for _, h := range r.work {
		// A key of ours is never modified after its creation, so any later revision is somebody else's doing.
		if h.session == r.session && r.view.shard(h.shard).revision > h.term.Epoch() && h.end(now, errKeyGone) {
			r.lost(h, lossKey, errKeyGone)
		}
	}
	return nil
}

// act carries out what is to be done now and returns when to look again at the latest.
func (r *replica) act(ctx context.Context) time.Duration {
	now := time.Now()
	r.complain(now)
	r.assess(now)
	if r.cfg.Shards == 0 || r.view.listed.IsZero() {
		return lookAgain
	}
	if wait := r.retryAt.Sub(now); wait > 0 {
		return min(wait, lookAgain)
	}
	decision := sharding.Plan(r.situation(now))
	r.note(decision.Blocked)
	r.queue(now, decision.Postponed)
	r.troubles.write = errors.Join(r.announce(ctx), r.claim(ctx, decision.Steps), r.yield(ctx, now, decision.Steps))
	wait := lookAgain
	for _, sooner := range []time.Duration{decision.Wait, r.eligibility.Wait(now), time.Until(r.retryAt)} {
		if sooner > 0 {
			wait = min(wait, sooner)
		}
	}
	if len(decision.Postponed) > 0 {
		wait = min(wait, time.Second/time.Duration(r.cfg.MovesPerSecond))
	}
	return wait
}

// situation is what the decision is made from.
func (r *replica) situation(now time.Time) sharding.Input {
	s := sharding.Input{
		Self: r.cfg.Member.ID, Members: r.view.shardingMembers(), Holders: r.view.holders(),
		Shards: make([]sharding.Shard, r.cfg.Shards), Moves: int(r.moves.TokensAt(now)),
		Failing:    r.isFailing(),
		ClaimDelay: r.session.ttl, MinHold: 6 * r.session.ttl,
	}
	for number := range s.Shards {
		known := r.view.shard(number)
		shard := sharding.Shard{
			Vacant: !known.held, VacantFor: now.Sub(known.since), Ours: known.held && known.lease == r.session.id,
		}
		if h, ok := r.work[number]; ok {
			shard.Work, shard.Borrowed, shard.HeldFor = sharding.Ending, h.borrowed, now.Sub(h.begun)
			if h.phase == running {
				shard.Work = sharding.Running
			}
		} else if now.Before(r.rests[number].until) {
			shard.Work = sharding.BackingOff
		}
		s.Shards[number] = shard
	}
	return s
}

// note logs why nothing may be claimed, when that changes.
func (r *replica) note(blocked string) {
	if blocked != r.blocked && blocked != "" {
		r.logger.Warn("claiming nothing for now", "reason", blocked)
	}
	r.blocked = blocked
}

// publish makes the present state visible to readers.
func (r *replica) publish() {
	next := &snapshot{
		session: r.session, shards: make([]shardState, r.cfg.Shards),
		unready: r.view.unready(), problem: r.troubles.String(), stuck: r.stuck(time.Now()),
	}
	next.problem = cmp.Or(next.problem, r.blocked, r.heldBack())
	for number := range next.shards {
		known := r.view.shard(number)
		if !known.held {
			next.shards[number].vacated = known.since
			continue
		}
		state := shardState{
			holder: known.holder, epoch: known.epoch, since: known.since,
			address: r.view.members[known.holder].GRPCAddress,
		}
		if h, ok := r.work[number]; ok && h.session == r.session && h.term.Epoch() == known.epoch {
			state.term, state.move = h.term, h.move()
		}
		next.shards[number] = state
	}
	r.state.Store(next)
}
