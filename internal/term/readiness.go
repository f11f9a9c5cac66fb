package term

import (
	"context"
	"fmt"
	"time"

	"github.com/trivet-dev/trivet/internal/term/internal/eligibility"
)

// assess judges what SetUnready was told last, and logs when the verdict changes.
func (r *replica) assess(now time.Time) {
	reason := *r.unready.Load()
	before := r.eligibility.Verdict()
	r.eligibility = r.eligibility.Observe(now, reason == nil)
	verdict := r.eligibility.Verdict()
	if verdict == before {
		return
	}
	if reason == nil {
		r.logger.Info("readiness for shards changed", "from", before, "to", verdict)
	} else {
		r.logger.Warn("readiness for shards changed", "from", before, "to", verdict, "reason", reason)
	}
}

// retreat notes that shards are given away because this replica fails.
func (r *replica) retreat(now time.Time) {
	if r.concession() != nil {
		return // the reason is known and not this replica's own
	}
	before := r.eligibility.BackoffUntil()
	r.eligibility = r.eligibility.BackOff(now)
	if away := r.eligibility.BackoffUntil(); !away.Equal(before) {
		r.logger.Warn("giving shards to replicas that can do their work; staying behind them for a while",
			"until", away, "reason", *r.unready.Load())
	}
}

// heldBack says why others are given shards rather than this replica, "" when they are not.
func (r *replica) heldBack() string {
	if r.isReady() || r.cfg.Shards == 0 {
		return ""
	}
	if reason := r.concession(); reason != nil {
		return fmt.Sprintf("conceded to replicas that are ready: %v", reason)
	}
	if reason := *r.unready.Load(); reason != nil {
		return fmt.Sprintf("replicas that are ready come first: %v", reason)
	}
	if away := r.eligibility.BackoffUntil(); time.Now().Before(away) {
		return fmt.Sprintf("replicas that are ready come first until %s: this one gave shards away because it could not do their work",
			away.UTC().Format(time.RFC3339))
	}
	return "replicas that are ready come first: this one was not, and has to stay so for a while"
}

// concession is what Concede was told last.
func (r *replica) concession() error { return *r.conceded.Load() }

// isReady tells whether this replica ranks with those that can do the work.
func (r *replica) isReady() bool {
	return r.concession() == nil && r.eligibility.Verdict() == eligibility.Ready
}

// isFailing tells whether what this replica holds should go to those that can do the work.
func (r *replica) isFailing() bool {
	return r.concession() != nil || r.eligibility.Verdict() == eligibility.Failing
}

// introduction is what the member key should say of this replica now.
func (r *replica) introduction() announcement {
	return announcement{
		Member: r.cfg.Member, Shards: r.cfg.Shards, Leaving: r.leaving,
		Unready: r.cfg.Shards > 0 && !r.isReady(),
	}
}

// announce tells the others what has changed about this replica since it told them last. Without knowing that it leaves or
// cannot do the work, they would wait for it to claim the shards that it gives up.
func (r *replica) announce(ctx context.Context) error {
	next := r.introduction()
	if next == r.announced {
		return nil
	}
	value, err := next.encode()
	if err != nil {
		return err
	}
	if err := r.session.announce(ctx, r.keys.member(r.cfg.Member.ID), value); err != nil {
		return r.unanswered(err)
	}
	r.announced = next
	return nil
}
