package loop

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/internal/wording"
)

const (
	// deadAfter is how many panics in a row make a loop dead. Errors do not: a restart does not
	// help against a missing dependency.
	deadAfter = 3
	// unreadyAfter is how many failed passes in a row make a loop unready.
	unreadyAfter = 3
	// errorLimit bounds the stored text of an error, in bytes.
	errorLimit = 1 << 10
)

// record is the recorded state of one loop. It is safe for concurrent use; time is a parameter.
type record struct {
	loop    Loop
	enabled bool
	shadow  bool // in dry run unless switched on

	mu          sync.Mutex    // guards the fields below; not held while a loop runs
	switched    time.Time     // since when it writes although it is in shadow; zero if it does not
	changed     chan struct{} // closed when switched changes
	runs        int64
	failures    int64
	lastRun     time.Time
	lastSuccess time.Time
	lastError   string
	current     map[*loopRun]struct{}
}

// loopRun is the state of a loop within one call of Run or RunTerm. The record's mutex guards its
// fields.
type loopRun struct {
	dryRun    bool      // it runs Shadow
	active    bool      // false before the first start and between an end and the next start
	since     time.Time // when the last pass finished or, if later, when the loop was started
	lastRun   time.Time
	lastError string
	failures  int // in a row
	ends      int // early returns and panics since the last success
	panics    int // in a row
}

func newRecord(l Loop, enabled bool) *record {
	return &record{loop: l, enabled: enabled, current: map[*loopRun]struct{}{}, changed: make(chan struct{})}
}

// setSwitched switches a loop in shadow on or off.
func (r *record) setSwitched(now time.Time, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if on == r.plansOnly() && r.shadow {
		r.switched = time.Time{}
		if on {
			r.switched = now
		}
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// dryRun returns whether the loop only plans.
func (r *record) dryRun() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.plansOnly()
}

// plansOnly needs r.mu.
func (r *record) plansOnly() bool { return r.shadow && r.switched.IsZero() }

// enter adds a run that has not started, and returns what is closed when the mode changes. The run
// is nil while the mode belongs to the other scope.
func (r *record) enter(scope Scope) (s *loopRun, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loop.scope(r.plansOnly()) != scope {
		return nil, r.changed
	}
	s = &loopRun{dryRun: r.plansOnly()}
	r.current[s] = struct{}{}
	return s, r.changed
}

// leave removes a run; its passes stay counted.
func (r *record) leave(s *loopRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.current, s)
}

// start records that the loop's Run is called.
func (r *record) start(s *loopRun, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.active, s.since = true, now
}

// end records an early return and returns how many occurred in a row.
func (r *record) end(s *loopRun) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.active = false
	s.ends++
	return s.ends
}

// finish records a finished pass. It returns the number of failed passes in a row: before this pass
// if it succeeded, else including it.
func (r *record) finish(s *loopRun, now time.Time, err error) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs++
	r.lastRun, s.lastRun, s.since = now, now, now
	r.lastError, s.lastError = brief(err), brief(err)
	if err == nil {
		before := s.failures
		if s.dryRun == r.plansOnly() { // what a run of the other mode did proves nothing now
			r.lastSuccess = now
		}
		s.failures, s.ends, s.panics = 0, 0, 0
		return before
	}
	r.failures++
	s.failures++
	if isPanic(err) {
		s.panics++
	} else {
		s.panics = 0
	}
	return s.failures
}

// status returns the sum of all runs.
func (r *record) status(now time.Time) Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := Status{
		Name: r.loop.Name, State: Disabled, DryRun: r.plansOnly(), Switched: r.switched,
		LastRun: r.lastRun, LastSuccess: r.lastSuccess, LastError: r.lastError,
		Runs: r.runs, Failures: r.failures,
	}
	if !r.enabled {
		return status
	}
	status.State = Standby
	var failed time.Time
	for s := range r.current {
		if status.State == Standby {
			status.LastError = ""
		}
		status.State = max(status.State, s.state(now, r.loop.Stall))
		status.DryRun = status.DryRun && s.dryRun
		if s.lastError != "" && !s.lastRun.Before(failed) {
			failed, status.LastError = s.lastRun, s.lastError
		}
	}
	return status
}

// dead returns why only a restart of the process can help, or nil.
func (r *record) dead(now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.current {
		if s.dryRun {
			continue // a restart would interrupt the loops that do work
		}
		if s.state(now, r.loop.Stall) == Stalled {
			return fmt.Errorf("loop %s stalled: no pass finished for %s, expected one every %s",
				r.loop.Name, now.Sub(s.since).Round(time.Second), r.loop.Stall)
		}
		if s.panics >= deadAfter {
			return fmt.Errorf("loop %s dead: panicked %d times in a row: %s", r.loop.Name, s.panics, s.lastError)
		}
	}
	return nil
}

// unready returns why the loop is not ready, or nil. A loop that should not run here, or that only
// compares, is ready.
func (r *record) unready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.enabled || r.plansOnly() || (r.loop.Scope == Leader && len(r.current) == 0) {
		return nil
	}
	for s := range r.current {
		if s.failures >= unreadyAfter {
			return fmt.Errorf("loop %s failed %d times in a row: %s", r.loop.Name, s.failures, s.lastError)
		}
	}
	switch {
	case !r.lastSuccess.IsZero():
		return nil
	case r.lastError != "":
		return fmt.Errorf("loop %s has not succeeded yet: %s", r.loop.Name, r.lastError)
	default:
		return fmt.Errorf("loop %s has not finished its first pass", r.loop.Name)
	}
}

// state returns the state of the run.
func (s *loopRun) state(now time.Time, stall time.Duration) State {
	switch {
	case s.active && stall > 0 && now.Sub(s.since) > stall:
		return Stalled
	case s.failures > 0:
		return Failing
	default:
		return Running
	}
}

// brief returns err's text, limited in length and valid UTF-8.
func brief(err error) string {
	if err == nil {
		return ""
	}
	return wording.Clip(err.Error(), errorLimit)
}

// panicError is a recovered panic of a loop.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func isPanic(err error) bool {
	var p *panicError
	return errors.As(err, &p)
}
