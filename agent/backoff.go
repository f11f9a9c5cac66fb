package agent

import (
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/backoff"
)

// maxServerPause is the longest pause that a server can ask for. Holders that pause longer would
// expire anyway.
const maxServerPause = time.Minute

// backoffs are the pauses before reconnections, for each address. It is safe for concurrent use.
type backoffs struct {
	min, max time.Duration

	mu sync.Mutex // guards the fields below
	// reconnect bounds the first pause after a connection that worked, if it is longer than min.
	// survived bounds all pauses; 0 before the first grant.
	reconnect, survived time.Duration
	failed              map[string]failure // by address
}

// failure is the state of an address that failed recently.
type failure struct {
	times int
	until time.Time // no connection before
}

func newBackoffs(minPause, maxPause time.Duration) *backoffs {
	return &backoffs{min: minPause, max: maxPause, failed: map[string]failure{}}
}

// remaining returns the time until the next connection to an address.
func (b *backoffs) remaining(address string, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed[address].until.Sub(now)
}

// fail returns the pause after a failed connection. It has full jitter and doubles with each
// failure of the address in a row. The sessions of a connection that worked survive several
// intervals, so the first pause is up to a quarter of one. It is never shorter than the pause that
// the server asked for.
func (b *backoffs) fail(address string, answered bool, asked time.Duration, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.failed[address]
	longest := b.after(f.times + 1)
	if answered {
		longest = min(max(longest, b.reconnect), b.longest())
	}
	wait := max(b.min/2+rand.N(longest-b.min/2+1), asked)
	maps.DeleteFunc(b.failed, func(_ string, f failure) bool { return now.Sub(f.until) > 2*b.max })
	b.failed[address] = failure{times: f.times + 1, until: now.Add(wait)}
	return wait
}

// after returns the longest pause after a number of failures in a row.
func (b *backoffs) after(failures int) time.Duration {
	return backoff.Exponential{Min: b.min, Max: b.longest()}.After(failures)
}

// longest returns the longest pause: a session whose TTL is short does not survive max.
func (b *backoffs) longest() time.Duration {
	if b.survived == 0 {
		return b.max
	}
	return min(b.max, max(b.min, b.survived))
}

// succeed resets the backoff of an address. ttl is that of the last grant; 0 before the first.
func (b *backoffs) succeed(address string, interval, ttl time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reconnect, b.survived = interval/4, ttl/4
	delete(b.failed, address)
}

// unknownOwner returns the pause before a holder whose owner is unknown registers again. It doubles
// with each attempt. jitter is between 0 and 1; holders with the same jitter register in one
// message.
func (b *backoffs) unknownOwner(attempt int, jitter float64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	longest := b.after(attempt + 1)
	return b.min/2 + time.Duration(jitter*float64(longest-b.min/2))
}

// withJitter adds up to a half to the pause that a server asks for, because it asks other clients
// at the same time.
func withJitter(pause time.Duration) time.Duration {
	pause = min(pause, maxServerPause)
	return pause + rand.N(pause/2+1)
}
