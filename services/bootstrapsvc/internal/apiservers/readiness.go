package apiservers

import "time"

// Outcome is what one probe found.
type Outcome struct {
	// Time is when the probe ended.
	Time time.Time
	// OK is whether the server said that it is ready.
	OK bool
	// Silent is whether there was no answer in time, where one that refuses connections or says that it is not ready gives
	// one.
	Silent bool
	// Unverified is whether somebody answered whose certificate could not be verified.
	Unverified bool
	// Detail says it for people.
	Detail string
}

// Patience is how much a ready server is forgiven.
type Patience struct {
	// Failures is how many probes in a row have to fail.
	Failures int
	// Silence is for how long, in addition, a server that does not answer must have been silent: since its last success.
	Silence time.Duration
}

// Verdict is what is believed of a server. The zero Verdict is that of a server never probed: not ready.
type Verdict struct {
	Ready bool
	// Failures counts those since the last success.
	Failures int
	// Succeeded is when the last successful probe ended; zero if there was none.
	Succeeded time.Time
	// Last is the latest outcome.
	Last Outcome
}

// After returns the verdict after one more outcome. A ready server stays ready until patience has run out; one that is not
// ready becomes so by a success alone.
func (v Verdict) After(outcome Outcome, patience Patience) Verdict {
	if outcome.OK {
		return Verdict{Ready: true, Succeeded: outcome.Time, Last: outcome}
	}
	next := Verdict{Failures: v.Failures + 1, Succeeded: v.Succeeded, Last: outcome}
	isForgiven := next.Failures < patience.Failures ||
		outcome.Silent && outcome.Time.Sub(v.Succeeded) < patience.Silence
	next.Ready = v.Ready && isForgiven
	return next
}
