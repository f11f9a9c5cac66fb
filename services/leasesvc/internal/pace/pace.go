package pace

import (
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// Window is how long is observed before the number is changed.
const Window = 250 * time.Millisecond

const (
	// slack is how many times the quickest latency lately is still no sign of too much, if it is above swift.
	slack = 4
	swift = 100 * time.Millisecond
	// tolerated is of how many answered writes one may fail: some objects fail by themselves.
	tolerated = 8
	// relief is by which part of it the latency must fall after a cut if it is to be for the number of writes.
	relief = 8
	// forgetting is by which part per Window the quickest latency is taken for longer, so that a kube-apiserver which got
	// slower for good becomes the measure in minutes.
	forgetting = 256
	// minPause doubles to maxPause while nothing gets through.
	minPause = 200 * time.Millisecond
	maxPause = 5 * time.Second
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
type Pace struct {
	ceiling int
	limit   float64
	// steep is below what the limit doubles.
	steep    float64
	quickest time.Duration
	// strain is the latency for which the limit was last cut; 0 when all has been quick since. It says nothing new until settled,
	// when the writes that were under way at the cut have ended.
	strain  time.Duration
	settled monotonic.Instant
	// silence is the last pause in a row of Windows in which nothing got through.
	silence time.Duration
	until   monotonic.Instant
}

// begin is how many writes may be under way at first.
const begin = 4

// New returns a Pace of at most ceiling, which is 1 at least.
func New(ceiling int) Pace {
	return Pace{ceiling: ceiling, limit: float64(min(begin, ceiling)), steep: float64(ceiling)}
}

// Limit is how many writes may be under way now, of those that may be at all; 0 during a pause.
func (p Pace) Limit(now monotonic.Instant) int {
	if now < p.until {
		return 0
	}
	return int(p.limit)
}

// After returns the Pace that follows an observation.
func (p Pace) After(now monotonic.Instant, o Observation) Pace {
	switch {
	case o.Answered+o.Throttled+o.Failed == 0:
		return p
	case o.Answered == 0 && o.Throttled == 0:
		return p.silent(now)
	case o.Throttled > 0:
		p = p.halved()
		p.until = max(p.until, now.Add(min(o.Pause, maxPause)))
	case p.slow(o.Latency):
		p = p.strained(now, o.Latency)
	case o.Full && o.Failed <= o.Answered/tolerated:
		p = p.grown()
	}
	p.silence = 0
	return p.measured(o)
}

func (p Pace) halved() Pace {
	p.limit = max(p.limit/2, 1)
	p.steep = p.limit
	return p
}

// strained cuts the limit for a latency, once for as long as that lasts. Where a cut made it no quicker, it is not for our
// writes that the kube-apiserver takes longer: that becomes the measure, or Leases would lapse for want of writes that it bears.
func (p Pace) strained(now monotonic.Instant, latency time.Duration) Pace {
	switch {
	case now < p.settled:
	case p.strain > 0 && latency > p.strain-p.strain/relief:
		p.quickest, p.strain = max(p.quickest, latency/2), 0
	default:
		p = p.halved()
		p.strain, p.settled = latency, now.Add(2*latency)
	}
	return p
}

func (p Pace) grown() Pace {
	if p.limit < p.steep {
		p.limit = min(2*p.limit, p.steep)
	} else {
		p.limit++
	}
	p.limit = min(p.limit, float64(p.ceiling))
	return p
}

// silent goes down to one try at a time, and remembers half of what went well before the silence.
func (p Pace) silent(now monotonic.Instant) Pace {
	if p.silence == 0 {
		p.steep = max(p.limit/2, 1)
	}
	p.limit = 1
	p.silence = min(max(2*p.silence, minPause), maxPause)
	p.until = max(p.until, now.Add(p.silence))
	return p
}

func (p Pace) slow(latency time.Duration) bool {
	return p.quickest > 0 && latency > max(slack*p.quickest, swift)
}

func (p Pace) measured(o Observation) Pace {
	if o.Answered == 0 {
		return p
	}
	if !p.slow(o.Latency) {
		p.strain = 0
	}
	if p.quickest == 0 || o.Latency < p.quickest {
		p.quickest = o.Latency
	} else {
		p.quickest += min(p.quickest/forgetting+1, o.Latency-p.quickest)
	}
	return p
}
