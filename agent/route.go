package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// route knows where to connect next, and how long to wait before. It belongs to Run.
type route struct {
	targets []string
	next    int
	// hint is where the leader is said to be; it is followed once.
	hint    string
	backoff backoff
}

func (r *route) target() string {
	if hint := r.hint; hint != "" {
		r.hint = ""
		return hint
	}
	target := r.targets[r.next%len(r.targets)]
	r.next++
	return target
}

// after takes the end of a connection and returns the pause before the next.
func (r *route) after(err error) time.Duration {
	moved, told := asMoved(err)
	switch {
	case told:
		r.hint = moved.to
	case rpcerror.ReasonOf(err) == rpcerror.NotLeaderReason:
		r.hint = rpcerror.MetadataOf(err, rpcerror.GRPCAddressKey)
	case errors.Is(err, errNoAnswer):
		r.hint = "" // a host that has gone silent would cost another timeout, and a session does not live for many
	}
	return r.backoff.pause()
}

// worked notes that a connection is good: it is the first to try when it breaks, though not when it goes silent. Its sessions
// live for several intervals, so there is time then to come back at a random moment of a quarter of one.
func (r *route) worked(target string, interval time.Duration) {
	r.hint = target
	r.backoff.failures, r.backoff.spread = 0, interval/4
}

// backoff doubles with every connection in a row that came to nothing.
type backoff struct {
	min, max time.Duration
	// spread is how long the first pause may be if that is more than min.
	spread   time.Duration
	failures int
}

// pause is the next pause, a random share of the backoff, so that those who lost the same server come back one after another.
func (b *backoff) pause() time.Duration {
	whole := b.min << min(b.failures, 16)
	if b.failures == 0 {
		whole = max(whole, b.spread)
	}
	b.failures++
	whole = min(whole, b.max)
	return b.min/2 + rand.N(whole-b.min/2+1)
}

// pause waits for d and tells whether ctx is still alive then.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
