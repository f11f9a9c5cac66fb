package connlimit

import (
	"strings"
	"sync"
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
	// restFactor is how long the handshakes of an address rest after a computation, as a multiple
	// of its time; longestRest bounds it for slow machines.
	restFactor  = 3
	longestRest = 2 * time.Millisecond
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

// turn lets one handshake of an address compute at a time, and keeps it from computing for a few
// times as long afterwards. Without it, the handshakes of one address would compute one after the
// other, before anything else, and other addresses would wait for all of them.
type turn struct {
	taken chan struct{}
	until time.Time // the end of the rest; the owner of the turn uses it
}

func newTurn() turn { return turn{taken: make(chan struct{}, 1)} }

// take waits for the turn and for the end of the rest.
func (t *turn) take() {
	t.taken <- struct{}{}
	time.Sleep(time.Until(t.until))
}

// leave ends the turn after a computation.
func (t *turn) leave(begun time.Time) {
	now := time.Now()
	t.until = now.Add(min(restFactor*now.Sub(begun), longestRest))
	<-t.taken
}
