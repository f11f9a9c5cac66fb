package term

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/internal/term/internal/eligibility"
	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

// readiness has the reasons that a service reports through its candidate. It is safe for concurrent
// use.
type readiness struct {
	unready   atomic.Pointer[error] // never nil; the last argument of SetUnready
	yielding  atomic.Pointer[error] // never nil; why this replica yields leadership
	preferred atomic.Pointer[error] // never nil; why ready replicas come before this one
	changed   chan struct{}         // holds a value until the replica has seen a change
}

func newReadiness(unready error) *readiness {
	r := &readiness{changed: make(chan struct{}, 1)}
	r.unready.Store(&unready)
	r.yielding.Store(new(error))
	r.preferred.Store(new(error))
	return r
}

// set stores a reason, and wakes the replica if it appears or disappears.
func (r *readiness) set(field *atomic.Pointer[error], reason error) {
	before := field.Swap(&reason)
	if (*before == nil) == (reason == nil) {
		return
	}
	select {
	case r.changed <- struct{}{}:
	default: // the replica has not seen the previous change
	}
}

// eligibilityState turns the reported reasons into the replica's rank among the members. It belongs
// to the replica's goroutine.
type eligibilityState struct {
	*readiness
	tracker eligibility.Tracker
	logger  *slog.Logger
}

func newEligibility(r *readiness, ttl time.Duration, logger *slog.Logger) *eligibilityState {
	return &eligibilityState{
		readiness: r, logger: logger,
		tracker: eligibility.New(time.Now(), ttl, *r.unready.Load() == nil),
	}
}

// observe updates the verdict and logs a change.
func (e *eligibilityState) observe(now time.Time) {
	reason := *e.unready.Load()
	before := e.tracker.Verdict()
	e.tracker = e.tracker.Observe(now, reason == nil)
	verdict := e.tracker.Verdict()
	if verdict == before {
		return
	}
	if reason == nil {
		e.logger.Info("readiness for shards changed", "from", before, "to", verdict)
	} else {
		e.logger.Warn("readiness for shards changed", "from", before, "to", verdict, "reason", reason)
	}
}

// backOff records that the replica releases shards because it fails. A replica that yields, or
// yielded when it planned the release, does not back off: it says itself when that ends.
func (e *eligibilityState) backOff(now time.Time) {
	if e.yieldReason() != nil || !e.failing() {
		return
	}
	before := e.tracker.BackoffUntil()
	e.tracker = e.tracker.BackOff(now)
	if until := e.tracker.BackoffUntil(); !until.Equal(before) {
		e.logger.Warn("releasing shards to other replicas; backing off", "until", until, "reason", *e.unready.Load())
	}
}

func (e *eligibilityState) yieldReason() error { return *e.yielding.Load() }

// rank returns the rank of this replica among the members.
func (e *eligibilityState) rank() sharding.Rank {
	isReady := e.tracker.Verdict() == eligibility.Ready
	switch {
	case e.yieldReason() != nil, !isReady && !e.tracker.Passing():
		return sharding.Unable
	case isReady && *e.preferred.Load() == nil:
		return sharding.Ready
	default:
		return sharding.Able
	}
}

// failing says whether the checks have failed for so long that this replica must release its shards
// to members of an earlier rank.
func (e *eligibilityState) failing() bool { return e.tracker.Verdict() == eligibility.Failing }

// notReadyReason returns why this replica ranks behind ready members, or "" if it does not.
func (e *eligibilityState) notReadyReason() string {
	if e.rank() == sharding.Ready {
		return ""
	}
	if reason := e.yieldReason(); reason != nil {
		return fmt.Sprintf("leadership yielded to replicas that can do the work: %v", reason)
	}
	if reason := *e.unready.Load(); reason != nil {
		return fmt.Sprintf("ready replicas come first: %v", reason)
	}
	if until := e.tracker.BackoffUntil(); time.Now().Before(until) {
		return fmt.Sprintf("ready replicas come first until %s: this one gave shards away because it could not do their work",
			until.UTC().Format(time.RFC3339))
	}
	if reason := *e.preferred.Load(); reason != nil {
		return fmt.Sprintf("ready replicas come first: %v", reason)
	}
	return "ready replicas come first: this one was unready and has not been ready for long enough"
}
