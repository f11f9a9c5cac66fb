package loop

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	// deadAfter is how many panics in a row make a loop dead. Errors never do:
	// a missing dependency is no reason to restart the process.
	deadAfter = 3
	// unreadyAfter is how many failed passes in a row make a loop unready.
	unreadyAfter = 3
	// errorLimit bounds the text kept of an error, in bytes.
	errorLimit = 1 << 10
)

// record is what a runner knows about one loop. It is safe for concurrent
// use; the passage of time is always a parameter.
type record struct {
	loop    Loop
	enabled bool

	mu          sync.Mutex // guards what follows; never held while a loop's code runs
	runs        int64
	failures    int64
	lastRun     time.Time
	lastSuccess time.Time
	lastError   string
	stints      map[*stint]struct{}
}

// stint is the life of a loop within one call of Run or RunTerm. Its fields
// are guarded by the record's mutex.
type stint struct {
	active    bool      // false before the first start and between an end and the next start
	since     time.Time // when the last pass finished or, if later, when the loop was started
	lastRun   time.Time
	lastError string
	failures  int // in a row
	ends      int // early returns and panics since the last success
	panics    int // in a row
}

func newRecord(l Loop, enabled bool) *record {
	return &record{loop: l, enabled: enabled, stints: map[*stint]struct{}{}}
}

// enter adds a stint that waits for its start.
func (r *record) enter() *stint {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &stint{}
	r.stints[s] = struct{}{}
	return s
}

// leave takes a stint out of the picture; its passes stay counted.
func (r *record) leave(s *stint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.stints, s)
}

// start notes that the loop's code runs from now on.
func (r *record) start(s *stint, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.active, s.since = true, now
}

// end notes that the loop's code returned early, and how often in a row it
// did so.
func (r *record) end(s *stint) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.active = false
	s.ends++
	return s.ends
}

// finish notes a finished pass. It returns how many passes in a row had
// failed, the one that finishes included when it failed.
func (r *record) finish(s *stint, now time.Time, err error) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs++
	r.lastRun, s.lastRun, s.since = now, now, now
	r.lastError, s.lastError = brief(err), brief(err)
	if err == nil {
		before := s.failures
		r.lastSuccess = now
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

// status sums up all stints as of now.
func (r *record) status(now time.Time) Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := Status{
		Name: r.loop.Name, State: Disabled,
		LastRun: r.lastRun, LastSuccess: r.lastSuccess, LastError: r.lastError,
		Runs: r.runs, Failures: r.failures,
	}
	if !r.enabled {
		return status
	}
	status.State = Standby
	var failed time.Time
	for s := range r.stints {
		if status.State == Standby {
			status.LastError = ""
		}
		status.State = max(status.State, s.state(now, r.loop.Stall))
		if s.lastError != "" && !s.lastRun.Before(failed) {
			failed, status.LastError = s.lastRun, s.lastError
		}
	}
	return status
}

// dead says why the loop needs a new process; nil when it does not.
func (r *record) dead(now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.stints {
		if s.state(now, r.loop.Stall) == Stalled {
			return fmt.Errorf("loop %s stalled: no pass finished for %s, it promises one every %s",
				r.loop.Name, now.Sub(s.since).Round(time.Second), r.loop.Stall)
		}
		if s.panics >= deadAfter {
			return fmt.Errorf("loop %s dead: panicked %d times in a row: %s", r.loop.Name, s.panics, s.lastError)
		}
	}
	return nil
}

// unready says why the loop does not serve its purpose; nil when it does, or
// when it is not supposed to run here.
func (r *record) unready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.enabled || (r.loop.Scope == Leader && len(r.stints) == 0) {
		return nil
	}
	for s := range r.stints {
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

// state is what the stint is doing as of now.
func (s *stint) state(now time.Time, stall time.Duration) State {
	switch {
	case s.active && stall > 0 && now.Sub(s.since) > stall:
		return Stalled
	case s.failures > 0:
		return Failing
	default:
		return Running
	}
}

// brief is err's text, short enough to keep and valid in every encoding.
func brief(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if len(text) > errorLimit {
		text = text[:errorLimit] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// panicError is what became of a loop that panicked.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func isPanic(err error) bool {
	var p *panicError
	return errors.As(err, &p)
}
