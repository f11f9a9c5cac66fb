package readiness

import "time"

// Outcome is what one probe found.
type Outcome struct {
	// Time is when the probe ended.
	Time time.Time
	// OK is whether the server said that it is ready.
	OK bool
	// Detail says it for people.
	Detail string
}

// Verdict is what is believed of a server. The zero Verdict is that of a server never probed: not ready.
type Verdict struct {
	Ready bool
	// Failures counts those since the last success.
	Failures int
	// Last is the latest outcome.
	Last Outcome
}

// After returns the verdict after one more outcome. A ready server stays ready until its failures in a row reach
// threshold.
func (v Verdict) After(outcome Outcome, threshold int) Verdict {
	next := Verdict{Ready: true, Last: outcome}
	if !outcome.OK {
		next.Failures = v.Failures + 1
		next.Ready = v.Ready && next.Failures < threshold
	}
	return next
}
