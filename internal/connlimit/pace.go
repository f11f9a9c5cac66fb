package connlimit

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// The connections of one identity may begin callRate calls per second, and those of a node, or
	// of an address without certificates, nodeCallRate. Further calls wait, except the calls of a
	// quarter of a second at once. A gateway is one identity. An agent begins a few calls each time
	// that it connects.
	callRate     = 2000
	nodeCallRate = 200
	callBurst    = time.Second / 4
	// pacedRead bounds what is read at once of an identity above its rate: a few headers.
	pacedRead = 256
	// longestRest bounds the rest after the computation of a handshake.
	longestRest = time.Millisecond
)

// callPace paces the calls of one identity. A nil one has no limit. It is safe for concurrent use.
type callPace struct {
	perSecond int

	mu   sync.Mutex // guards the field below
	paid time.Time
}

// callRateOf returns the calls per second of an identity.
func callRateOf(named identity) int {
	if named.user == "" || strings.HasPrefix(named.user, nodePrefix) {
		return nodeCallRate
	}
	return callRate
}

// nodePrefix begins the user names of nodes.
const nodePrefix = "system:node:"

// begin counts calls, and returns how long they must wait.
func (c *callPace) begin(calls int, now time.Time) time.Duration {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paid = paidAfter(c.paid, now, calls, c.perSecond)
	return c.paid.Sub(now) - callBurst
}

// ahead returns whether further calls would wait.
func (c *callPace) ahead(now time.Time) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paid.Sub(now) >= callBurst
}

// rest keeps the processor free after the computation of a handshake for as long as it took.
// Without it, handshakes that wait for a place would compute one after the other, before anything
// else.
type rest struct{ until atomic.Int64 }

// over waits for the end of the rest, and returns the time.
func (r *rest) over() time.Time {
	for {
		now := time.Now()
		pause := time.Duration(r.until.Load() - now.UnixNano())
		if pause <= 0 || pause > longestRest { // the clock was set back
			return now
		}
		time.Sleep(pause)
	}
}

// after begins a rest after a computation.
func (r *rest) after(begun time.Time) {
	now := time.Now()
	r.until.Store(now.Add(min(now.Sub(begun), longestRest)).UnixNano())
}
