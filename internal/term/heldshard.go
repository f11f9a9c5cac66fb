package term

import (
	"context"
	"errors"
	"time"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
)

var (
	errKeyGone  = errors.New("another writer deleted or changed the term's key")
	errReturned = errors.New("the body returned")
)

const (
	// takeoverPause is the time between the loss of a key that was not released and the start of
	// the next body. A leader whose lease expired stopped long before. A leader whose lease was
	// revoked learns of it during the pause.
	takeoverPause = 250 * time.Millisecond
	// minBackoff and maxBackoff bound the backoff of a shard whose body returned during its term.
	// After a body that ran for backoffReset the backoff restarts at the minimum.
	minBackoff   = time.Second
	maxBackoff   = 30 * time.Second
	backoffReset = time.Minute
	// stuckAfter is the time after which a body that ignores the end of its term is reported, and
	// stuckLogPeriod the time between two log messages about it.
	stuckAfter     = 5 * time.Second
	stuckLogPeriod = 30 * time.Second
)

// heldShard is a shard whose key this replica created, until its body has returned and its key is
// deleted. It belongs to the replica's goroutine. The body's goroutine writes err before it reports
// its end.
type heldShard struct {
	shard    int
	session  *session
	term     *Term
	cancel   context.CancelCauseFunc
	started  time.Time
	borrowed bool // its owner did not claim it

	next   string    // the replica to which the shard should move
	queued time.Time // when next became known

	phase    phase
	ended    time.Time // when the term ended or was given up
	reported time.Time // when the body was last reported as stuck
	err      error     // the body's result
}

type phase int

const (
	running  phase = iota // the body runs
	ending                // the term has ended; the body has not returned
	returned              // the body has returned; the key is not deleted
)

func newHeldShard(s *session, claim localterm.Claim, now time.Time) *heldShard {
	h := &heldShard{shard: claim.Shard, session: s, started: now}
	h.term, h.cancel = localterm.Begin(s.lease, claim)
	return h
}

// run runs the body after a pause, unless the term ends before.
func (h *heldShard) run(body Body, wait time.Duration) {
	ctx := h.term.Context()
	if wait > 0 {
		backoff.Sleep(ctx, wait)
	}
	if ctx.Err() == nil {
		h.err = body(ctx, h.term)
	}
}

// end ends the term with a cause and reports whether the body was running.
func (h *heldShard) end(now time.Time, cause error) bool {
	if h.phase != running {
		return false
	}
	h.phase, h.ended = ending, now
	h.cancel(cause)
	return true
}

// stuck says whether the body ignores the end of its term.
func (h *heldShard) stuck(now time.Time) bool {
	return h.phase == ending && now.Sub(h.ended) >= stuckAfter
}

// move returns the state of the shard's move to another replica.
func (h *heldShard) move() Move {
	switch {
	case h.phase != running:
		return Move{State: Draining, To: h.next, Since: h.ended}
	case h.next != "":
		return Move{State: Waiting, To: h.next, Since: h.queued}
	default:
		return Move{}
	}
}

// shardBackoff delays the next claim of a shard whose body returned during its term.
type shardBackoff struct {
	failures int
	until    time.Time
}

// after returns the backoff that follows a body that ran for the given time.
func (b shardBackoff) after(now time.Time, ran time.Duration) shardBackoff {
	if ran >= backoffReset {
		b.failures = 0
	}
	b.failures++
	return shardBackoff{failures: b.failures, until: now.Add(backoff.Exponential{Min: minBackoff, Max: maxBackoff}.After(b.failures))}
}
