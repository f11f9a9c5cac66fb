package writeback

import (
	"time"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

// ObservationWindow is how long writes are observed before the limit changes.
const ObservationWindow = 250 * time.Millisecond

const (
	// initialConcurrency is the limit at the start.
	initialConcurrency = 4
	// A latency is too high if it exceeds slowFactor times the base latency and minSlowLatency.
	slowFactor     = 4
	minSlowLatency = 100 * time.Millisecond
	// The limit still grows if one of failureTolerance answered writes failed: single Leases may
	// fail by themselves.
	failureTolerance = 8
	// A cut was effective if the latency fell by more than this part.
	cutEffectPart = 8
	// baseDecayPart is the part by which the base latency grows per window, so that a permanently
	// slower kube-apiserver becomes the base within minutes.
	baseDecayPart = 256
	// The pause between probes doubles between these bounds while no write is answered.
	minProbePause = 200 * time.Millisecond
	maxProbePause = 5 * time.Second
)

// Observation summarizes the writes that ended in one window.
type Observation struct {
	// Answered counts writes that the kube-apiserver accepted or refused for their content.
	Answered int
	// Throttled counts writes that it asked to repeat later (429).
	Throttled int
	// Failed counts writes without an answer or with a server error.
	Failed int
	// Latency is the mean latency of the answered writes.
	Latency time.Duration
	// Pause is the longest pause that the kube-apiserver asked for.
	Pause time.Duration
	// Saturated reports whether the limit was used up.
	Saturated bool
}

// ConcurrencyLimit is the number of writes that may be in flight. It adapts by additive increase
// and multiplicative decrease (AIMD) with a slow start:
//   - Throttling or a high latency halves the limit. A high latency that a cut did not lower has
//     another cause. It becomes the base latency, because Leases would lapse if fewer of them were
//     written.
//   - A good, saturated window adds one, or doubles the limit below half of the last limit that was
//     too high.
//   - While no write is answered, the limit is one, with pauses that double to 5 s. The first
//     answer ends this.
//
// It is a value: methods return the changed limit. The zero ConcurrencyLimit allows no write.
type ConcurrencyLimit struct {
	ceiling int
	limit   float64
	// slowStart is the limit below which it doubles.
	slowStart   float64
	baseLatency time.Duration
	// cutLatency is the latency for which the limit was last cut; 0 if the latency has been low
	// since. Until cutUntil the writes that were in flight at the cut still end.
	cutLatency time.Duration
	cutUntil   monotonic.Instant
	// probePause is the last pause while no write is answered.
	probePause  time.Duration
	pausedUntil monotonic.Instant
}

// NewConcurrencyLimit returns a limit between 1 and ceiling.
func NewConcurrencyLimit(ceiling int) ConcurrencyLimit {
	return ConcurrencyLimit{ceiling: ceiling, limit: float64(min(initialConcurrency, ceiling)), slowStart: float64(ceiling)}
}

// At returns how many writes may be in flight now; 0 during a pause.
func (c ConcurrencyLimit) At(now monotonic.Instant) int {
	if now < c.pausedUntil {
		return 0
	}
	return int(c.limit)
}

// Next returns the limit after an observation.
func (c ConcurrencyLimit) Next(now monotonic.Instant, o Observation) ConcurrencyLimit {
	switch {
	case o.Answered+o.Throttled+o.Failed == 0:
		return c
	case o.Answered == 0 && o.Throttled == 0:
		return c.unanswered(now)
	case o.Throttled > 0:
		c = c.halved()
		c.pausedUntil = max(c.pausedUntil, now.Add(min(o.Pause, maxProbePause)))
	case c.isSlow(o.Latency):
		c = c.slowed(now, o.Latency)
	case o.Saturated && o.Failed <= o.Answered/failureTolerance:
		c = c.increased()
	}
	c.probePause = 0
	return c.withLatency(o)
}

func (c ConcurrencyLimit) halved() ConcurrencyLimit {
	c.limit = max(c.limit/2, 1)
	c.slowStart = c.limit
	return c
}

// slowed cuts the limit for a high latency, or accepts the latency if the last cut did not lower
// it.
func (c ConcurrencyLimit) slowed(now monotonic.Instant, latency time.Duration) ConcurrencyLimit {
	switch {
	case now < c.cutUntil:
	case c.cutLatency > 0 && latency > c.cutLatency-c.cutLatency/cutEffectPart:
		c.baseLatency, c.cutLatency = max(c.baseLatency, latency/2), 0
	default:
		c = c.halved()
		c.cutLatency, c.cutUntil = latency, now.Add(2*latency)
	}
	return c
}

func (c ConcurrencyLimit) increased() ConcurrencyLimit {
	if c.limit < c.slowStart {
		c.limit = min(2*c.limit, c.slowStart)
	} else {
		c.limit++
	}
	c.limit = min(c.limit, float64(c.ceiling))
	return c
}

// unanswered allows one probe after a pause. The slow start later leads back to half of the limit.
func (c ConcurrencyLimit) unanswered(now monotonic.Instant) ConcurrencyLimit {
	if c.probePause == 0 {
		c.slowStart = max(c.limit/2, 1)
	}
	c.limit = 1
	c.probePause = backoff.Exponential{Min: minProbePause, Max: maxProbePause}.Next(c.probePause)
	c.pausedUntil = max(c.pausedUntil, now.Add(c.probePause))
	return c
}

func (c ConcurrencyLimit) isSlow(latency time.Duration) bool {
	return c.baseLatency > 0 && latency > max(slowFactor*c.baseLatency, minSlowLatency)
}

func (c ConcurrencyLimit) withLatency(o Observation) ConcurrencyLimit {
	if o.Answered == 0 {
		return c
	}
	if !c.isSlow(o.Latency) {
		c.cutLatency = 0
	}
	if c.baseLatency == 0 || o.Latency < c.baseLatency {
		c.baseLatency = o.Latency
	} else {
		c.baseLatency += min(c.baseLatency/baseDecayPart+1, o.Latency-c.baseLatency)
	}
	return c
}
