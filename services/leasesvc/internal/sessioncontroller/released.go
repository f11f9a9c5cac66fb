package sessioncontroller

import (
	"maps"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// forwardedWithin is longer than a beat can need from the replica that received it to this one: it
// waits for a minute at most, and the call takes a few seconds.
const forwardedWithin = 75 * time.Second

// released are the holders that were released recently, with the times until which they are
// remembered. A beat that was forwarded before the release does not open their sessions again.
type released struct {
	until map[session.Holder]monotonic.Instant
	prune monotonic.Instant // when holders are forgotten next
	limit int
}

func newReleased(limit int) released {
	return released{until: map[session.Holder]monotonic.Instant{}, limit: limit}
}

func (r *released) add(now monotonic.Instant, h session.Holder) {
	if len(r.until) < r.limit {
		r.until[h] = now.Add(forwardedWithin)
	}
}

func (r *released) has(now monotonic.Instant, h session.Holder) bool { return now < r.until[h] }

// forget forgets holders from time to time.
func (r *released) forget(now monotonic.Instant) {
	if now < r.prune || len(r.until) == 0 {
		return
	}
	r.prune = now.Add(forwardedWithin)
	maps.DeleteFunc(r.until, func(_ session.Holder, until monotonic.Instant) bool { return now >= until })
}
