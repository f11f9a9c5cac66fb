package writeback

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Window is how long is observed before the number is changed.
const ObservationWindow = 250 * time.Millisecond

const (
	// slack is how many times the quickest latency lately is still no sign of too much, if it is above swift.
	latencyFactor  = 4
	minSlowLatency = 100 * time.Millisecond
	// tolerated is of how many answered writes one may fail: some objects fail by themselves.
	toleratedFailures = 8
	// relief is by which part of it the latency must fall after a cut if it is to be for the number of writes.
	cutEffect = 8
	// forgetting is by which part per Window the quickest latency is taken for longer, so that a kube-apiserver which got
	// slower for good becomes the measure in minutes.
	latencyDecay = 256
	// minPause doubles to maxPause while nothing gets through.
	minProbePause = 200 * time.Millisecond
	maxProbePause = 5 * time.Second
)

// Observation is how the writes went that ended in one Window.
type Observation struct {
	// Answered writes are those that the kube-apiserver took or refused for their content.
	Answered int
	// Throttled writes are those that it asked to make later.
	Throttled int
	// Failed writes got no answer, or that of a kube-apiserver that is out of order.
	Failed int
	// Latency is the mean of the answered ones.
	Latency time.Duration
	// Pause is how long the kube-apiserver asked to be left alone, at most.
	Pause time.Duration
	// Full tells that as many were under way as might be.
	Full bool
}

// Pace is how many writes may be under way. The zero Pace allows none; it is a value, and its methods leave it as it is.
type ConcurrencyLimit struct {
	max   int
	limit float64
	// steep is below what the limit doubles.
	slowStart   float64
	baseLatency time.Duration
	// strain is the latency for which the limit was last cut; 0 when all has been quick since. It says nothing new until settled,
	// when the writes that were under way at the cut have ended.
	cutLatency time.Duration
	cutUntil   monotonic.Instant
	// silence is the last pause in a row of Windows in which nothing got through.
	pause       time.Duration
	pausedUntil monotonic.Instant
}

// begin is how many writes may be under way at first.
const initialConcurrency = 4

// New returns a Pace of at most ceiling, which is 1 at least.
func NewConcurrencyLimit(ceiling int) ConcurrencyLimit {
	return ConcurrencyLimit{max: ceiling, limit: float64(min(initialConcurrency, ceiling)), slowStart: float64(ceiling)}
}

// Limit is how many writes may be under way now, of those that may be at all; 0 during a pause.
func (p ConcurrencyLimit) At(now monotonic.Instant) int {
	if now < p.pausedUntil {
		return 0
	}
	return int(p.limit)
}

// After returns the Pace that follows an observation.
func (p ConcurrencyLimit) Next(now monotonic.Instant, o Observation) ConcurrencyLimit {
	switch {
	case o.Answered+o.Throttled+o.Failed == 0:
		return p
	case o.Answered == 0 && o.Throttled == 0:
		return p.withoutAnswer(now)
	case o.Throttled > 0:
		p = p.decreased()
		p.pausedUntil = max(p.pausedUntil, now.Add(min(o.Pause, maxProbePause)))
	case p.slow(o.Latency):
		p = p.afterSlow(now, o.Latency)
	case o.Full && o.Failed <= o.Answered/toleratedFailures:
		p = p.increased()
	}
	p.pause = 0
	return p.measuredLatency(o)
}

func (p ConcurrencyLimit) decreased() ConcurrencyLimit {
	p.limit = max(p.limit/2, 1)
	p.slowStart = p.limit
	return p
}

// strained cuts the limit for a latency, once for as long as that lasts. Where a cut made it no quicker, it is not for our
// writes that the kube-apiserver takes longer: that becomes the measure, or Leases would lapse for want of writes that it bears.
func (p ConcurrencyLimit) afterSlow(now monotonic.Instant, latency time.Duration) ConcurrencyLimit {
	switch {
	case now < p.cutUntil:
	case p.cutLatency > 0 && latency > p.cutLatency-p.cutLatency/cutEffect:
		p.baseLatency, p.cutLatency = max(p.baseLatency, latency/2), 0
	default:
		p = p.decreased()
		p.cutLatency, p.cutUntil = latency, now.Add(2*latency)
	}
	return p
}

func (p ConcurrencyLimit) increased() ConcurrencyLimit {
	if p.limit < p.slowStart {
		p.limit = min(2*p.limit, p.slowStart)
	} else {
		p.limit++
	}
	p.limit = min(p.limit, float64(p.max))
	return p
}

// silent goes down to one try at a time, and remembers half of what went well before the silence.
func (p ConcurrencyLimit) withoutAnswer(now monotonic.Instant) ConcurrencyLimit {
	if p.pause == 0 {
		p.slowStart = max(p.limit/2, 1)
	}
	p.limit = 1
	p.pause = min(max(2*p.pause, minProbePause), maxProbePause)
	p.pausedUntil = max(p.pausedUntil, now.Add(p.pause))
	return p
}

func (p ConcurrencyLimit) slow(latency time.Duration) bool {
	return p.baseLatency > 0 && latency > max(latencyFactor*p.baseLatency, minSlowLatency)
}

func (p ConcurrencyLimit) measuredLatency(o Observation) ConcurrencyLimit {
	if o.Answered == 0 {
		return p
	}
	if !p.slow(o.Latency) {
		p.cutLatency = 0
	}
	if p.baseLatency == 0 || o.Latency < p.baseLatency {
		p.baseLatency = o.Latency
	} else {
		p.baseLatency += min(p.baseLatency/latencyDecay+1, o.Latency-p.baseLatency)
	}
	return p
}
