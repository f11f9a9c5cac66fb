package agent

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// maxPause is the longest pause that a server can ask for: beyond it holders would be given up by whoever waits for them.
const maxPause = time.Minute

// route knows where to connect next, and how long to wait before. The goroutines of an Agent share it.
type route struct {
	targets  []string
	min, max time.Duration // of pauses

	mu   sync.Mutex // guards what follows
	next int
	// spread is how long the first pause after a good connection may be, if that is more than min.
	spread time.Duration
	// failed are the addresses that may not be dialled, or might not a moment ago.
	failed map[string]failure
}

// failure is how an address fares that does not answer.
type failure struct {
	times int
	until time.Time // it is left alone
}

func newRoute(cfg Config) *route {
	return &route{targets: cfg.Targets, min: cfg.MinBackoff, max: cfg.MaxBackoff, failed: map[string]failure{}}
}

// target is the next of the targets, in turn.
func (r *route) target() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	target := r.targets[r.next%len(r.targets)]
	r.next++
	return target
}

// wait is how long the address is to be left alone.
func (r *route) wait(address string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed[address].until.Sub(now)
}

// after takes the end of a connection. It returns how long its holders pause and where they go then; nowhere in particular
// when the hint is empty. A connection that was good is the first to be tried again.
func (r *route) after(address string, answered bool, err error) (hint string, wait time.Duration) {
	moved, told := asMoved(err)
	switch {
	case told:
		hint = moved.to
	case rpcerror.ReasonOf(err) == rpcerror.NotLeaderReason:
		hint = rpcerror.MetadataOf(err, rpcerror.GRPCAddressKey)
	case rpcerror.ReasonOf(err) == reasonPaced:
		hint = address
	case errors.Is(err, errNoAnswer):
		// A host that has gone silent would cost another timeout, and a session does not live for many.
	case answered:
		hint = address
	}
	return hint, r.fail(address, answered, spread(rpcerror.RetryAfterOf(err)), time.Now())
}

// spread is at least the pause that a server asks for, and up to half as much again: it asked others at the same moment.
func spread(pause time.Duration) time.Duration {
	pause = min(pause, maxPause)
	return pause + rand.N(pause/2+1)
}

// fail returns a pause that doubles with every failure of the address in a row. It is a random share, so that those who lost
// the same server come back one after another. The sessions of a connection that was good live for several intervals, so there
// is time to come back at a random moment of a quarter of one. It is never less than the server asked for.
func (r *route) fail(address string, answered bool, asked time.Duration, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.failed[address]
	whole := r.min << min(f.times, 16)
	if answered {
		whole = max(whole, r.spread)
	}
	whole = min(whole, r.max)
	wait := max(r.min/2+rand.N(whole-r.min/2+1), asked)
	maps.DeleteFunc(r.failed, func(_ string, f failure) bool { return now.Sub(f.until) > 2*r.max })
	r.failed[address] = failure{times: f.times + 1, until: now.Add(wait)}
	return wait
}

// worked notes that a connection is good.
func (r *route) worked(address string, interval time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spread = interval / 4
	delete(r.failed, address)
}

// detour is the nth pause in a row of a holder that nobody takes, at a place between its bounds that luck, of 0 to 1, says:
// those with the same luck come back together, in one message.
func (r *route) detour(nth int, luck float64) time.Duration {
	whole := min(r.min<<min(nth, 16), r.max)
	return r.min/2 + time.Duration(luck*float64(whole-r.min/2))
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
