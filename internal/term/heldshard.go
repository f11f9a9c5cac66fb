package term

import (
	"context"
	"errors"
	"time"

	"github.com/trivet-dev/trivet/internal/term/internal/localterm"
)

var (
	errKeyGone  = errors.New("the term's key was deleted or changed by somebody else")
	errReturned = errors.New("the body returned")
)

const (
	// takeoverPause is how long a shard that was not handed over lies after its key has vanished before its next body
	// starts. A holder whose lease ran out has stopped long before; one whose lease was revoked learns of it meanwhile.
	takeoverPause = 250 * time.Millisecond
	// restMin and restMax bound the backoff after a body that returned by itself; one that had run for restForget or longer
	// starts again at the minimum.
	restMin    = time.Second
	restMax    = 30 * time.Second
	restForget = time.Minute
	// stuckAfter is when a body that ignores the end of its term is complained about, and stuckAgain how often.
	stuckAfter = 5 * time.Second
	stuckAgain = 30 * time.Second
)

// holding is a shard whose key this replica created, until its body has returned and the key is deleted. Only the goroutine
// of the replica touches it, but for err, which the body's goroutine writes before it reports the end.
type holding struct {
	shard    int
	session  *session
	term     *Term
	giveUp   context.CancelCauseFunc
	begun    time.Time
	borrowed bool // claimed because its owner let it lie

	next   string    // the replica that is to hold the shard, once it is to move
	queued time.Time // when that became known while the body was to run on for a while

	phase    phase
	over     time.Time // when the term ended or was given up
	reported time.Time // when it was last complained that the body ignores that
	err      error     // what the body returned
}

type phase int

const (
	running  phase = iota // the body runs
	ending                // the term is over, the body has been told
	returned              // the body has returned, the key is to be deleted
)

func newHolding(s *session, claim localterm.Claim, now time.Time) *holding {
	h := &holding{shard: claim.Shard, session: s, begun: now}
	h.term, h.giveUp = localterm.Begin(s.lease, claim)
	return h
}

// work runs the body after a pause, unless the term ends before.
func (h *holding) work(body Body, wait time.Duration) {
	ctx := h.term.Context()
	if wait > 0 {
		pause(ctx, wait)
	}
	if ctx.Err() == nil {
		h.err = body(ctx, h.term)
	}
}

// end gives the term up for a cause; the body has yet to return. It reports whether the body still ran.
func (h *holding) end(now time.Time, cause error) bool {
	if h.phase != running {
		return false
	}
	h.phase, h.over = ending, now
	h.giveUp(cause)
	return true
}

// move says how far the shard is on its way to another replica.
func (h *holding) move() Move {
	switch {
	case h.phase != running:
		return Move{State: Draining, To: h.next, Since: h.over}
	case h.next != "":
		return Move{State: Waiting, To: h.next, Since: h.queued}
	default:
		return Move{}
	}
}

// rest is how long a shard is left alone after its body has returned by itself.
type rest struct {
	failures int
	until    time.Time
}

// after is the rest that follows a body which ran for the given time.
func (r rest) after(now time.Time, ran time.Duration) rest {
	if ran >= restForget {
		r.failures = 0
	}
	wait := min(restMin<<min(r.failures, 10), restMax)
	return rest{failures: r.failures + 1, until: now.Add(wait)}
}
