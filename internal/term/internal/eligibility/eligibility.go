// Package eligibility decides whether a replica counts as able to do the work of its shards.
//
// Checks flicker, and each move of a shard interrupts its work for a moment. The package therefore
// turns the results of checks into a [Verdict] slowly:
//
//   - A replica that starts is [Unproven] until its checks pass for the first time. Then it is
//     [Ready] at once.
//   - A replica whose checks fail for one TTL of a session is no longer ready. It gets no further
//     shards and keeps those that it has.
//   - After two TTLs it is [Failing], and its shards move to ready replicas, or to replicas whose
//     checks pass now ([Tracker.Passing]) if none is ready. The second TTL lets the other replicas
//     report their own failures. When all replicas depend on the same dead server, all have
//     reported it before the first one would release a shard, and no shard moves.
//   - A replica is ready again once its checks have passed for two TTLs without a break.
//   - A replica that released shards because it failed backs off for 12 TTLs. Each further time
//     doubles the backoff, up to 120 TTLs. A failure may show only while the replica holds a shard,
//     so passing checks without a shard prove nothing, and the shards would move back and forth.
//     The count restarts after the replica has been ready for 120 TTLs.
//   - A backoff puts a replica behind ready ones and never bars it. A failing replica releases its
//     shards also to a replica that backs off, but only if it has released none itself for 12 TTLs
//     ([Tracker.ReleasedRecently]). So each shard reaches a replica whose checks pass within 14
//     TTLs of a failure, and a cause that makes every leader fail moves shards rarely.
//
// The package is pure: time is a parameter, and a [Tracker] is a value. With the default TTL of 5 s
// these times are 5 s, 10 s, 10 s, and 1 to 10 minutes.
package eligibility

import (
	"time"

	"github.com/trivet-dev/trivet/internal/backoff"
)

// Verdict says whether a replica should hold shards.
type Verdict int

const (
	// Unproven replicas may be able to do the work. They get no shard while other replicas are
	// ready, and release none.
	Unproven Verdict = iota
	// Ready replicas can do the work.
	Ready
	// Failing replicas cannot do the work. Their shards move to replicas that can.
	Failing
)

// String returns the verdict's name in logs.
func (v Verdict) String() string {
	switch v {
	case Ready:
		return "ready"
	case Failing:
		return "failing"
	default:
		return "unproven"
	}
}

// Times in TTLs of a session.
const (
	unprovenAfterTTLs = 1
	failingAfterTTLs  = 2
	readyAfterTTLs    = 2
	minBackoffTTLs    = 12
	maxBackoffTTLs    = 120
)

// Tracker has the history that a verdict depends on. It is a value; its methods return a changed
// copy.
type Tracker struct {
	ttl     time.Duration
	verdict Verdict
	// passing is the last result of the checks, and since is the start of its unbroken period.
	passing bool
	since   time.Time
	// mustProve says that the replica was ready before or backed off, so that one passing check is
	// not enough.
	mustProve  bool
	readySince time.Time
	// backoffs counts the backoffs that still double the next one. backoffUntil is the end of the
	// current one. backedOff says that the present failure is counted.
	backoffs     int
	backoffUntil time.Time
	backedOff    bool
	releasedAt   time.Time // when shards were last released because of a failure
}

// New returns the tracker of a replica that starts now.
func New(now time.Time, ttl time.Duration, passing bool) Tracker {
	return Tracker{ttl: ttl, passing: passing, since: now}.Observe(now, passing)
}

// Verdict returns the verdict of the last observation.
func (t Tracker) Verdict() Verdict { return t.verdict }

// Passing returns whether the checks passed at the last observation.
func (t Tracker) Passing() bool { return t.passing }

// ReleasedRecently returns whether the replica released shards within 12 TTLs because it failed.
func (t Tracker) ReleasedRecently(now time.Time) bool {
	return !t.releasedAt.IsZero() && now.Sub(t.releasedAt) < minBackoffTTLs*t.ttl
}

// BackoffUntil returns the end of the backoff, or zero if there is none.
func (t Tracker) BackoffUntil() time.Time { return t.backoffUntil }

// Observe adds a result of the checks. Call it when the result changes, and after each
// [Tracker.Wait].
func (t Tracker) Observe(now time.Time, passing bool) Tracker {
	if passing != t.passing {
		t.passing, t.since = passing, now
	}
	if passing {
		return t.pass(now)
	}
	return t.fail(now)
}

func (t Tracker) pass(now time.Time) Tracker {
	switch {
	case t.verdict == Ready:
		if now.Sub(t.readySince) >= maxBackoffTTLs*t.ttl {
			t.backoffs = 0
		}
	case now.Before(t.backoffUntil), t.mustProve && now.Sub(t.since) < readyAfterTTLs*t.ttl:
		t.verdict, t.backedOff = Unproven, false
	default:
		t.verdict, t.backedOff = Ready, false
		t.readySince, t.mustProve, t.backoffUntil = now, true, time.Time{}
	}
	return t
}

func (t Tracker) fail(now time.Time) Tracker {
	switch lasted := now.Sub(t.since); {
	case lasted >= failingAfterTTLs*t.ttl:
		t.verdict = Failing
	case lasted >= unprovenAfterTTLs*t.ttl:
		t.verdict = Unproven
	}
	return t
}

// Wait returns the time after which the verdict may change although the checks keep their result.
// It returns 0 if the verdict cannot change.
func (t Tracker) Wait(now time.Time) time.Duration {
	var due []time.Time
	switch {
	case !t.passing:
		due = []time.Time{t.since.Add(unprovenAfterTTLs * t.ttl), t.since.Add(failingAfterTTLs * t.ttl)}
	case t.verdict != Ready:
		due = []time.Time{t.since.Add(readyAfterTTLs * t.ttl), t.backoffUntil}
	}
	var wait time.Duration
	for _, at := range due {
		if left := at.Sub(now); left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}

// BackOff records that the replica releases shards because it fails. Further calls for the same
// failure change nothing.
func (t Tracker) BackOff(now time.Time) Tracker {
	if t.backedOff {
		return t
	}
	t.backoffs++
	t.backoffUntil = now.Add(backoff.Exponential{Min: minBackoffTTLs * t.ttl, Max: maxBackoffTTLs * t.ttl}.After(t.backoffs))
	t.mustProve, t.backedOff, t.releasedAt = true, true, now
	return t
}
