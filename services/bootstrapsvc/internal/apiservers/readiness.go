package apiservers

import "time"

// ProbeResult is the result of one probe.
type ProbeResult struct {
	// Time is when the probe ended.
	Time time.Time
	// OK says that the server called itself ready.
	OK bool
	// Silent says that the server accepted the connection and did not answer in time.
	Silent bool
	// Unverified says that the certificate of the answer could not be verified.
	Unverified bool
	// Detail describes the result for operators.
	Detail string
}

// ReadinessThresholds say when a ready server becomes not ready.
type ReadinessThresholds struct {
	// Failures is how many probes in a row have to fail.
	Failures int
	// Silence is how long a silent server stays ready in addition, counted from its last success.
	Silence time.Duration
}

// Readiness is what the probes of one server show so far. The zero value is a server that was never
// probed, which is not ready.
type Readiness struct {
	Ready bool
	// Failures counts the failed probes since the last success.
	Failures int
	// LastSuccess is when the last successful probe ended; zero if there was none.
	LastSuccess time.Time
	Last        ProbeResult
}

// After returns the readiness after one more probe. One success makes a server ready. Only several
// failures in a row make it not ready, so that one slow answer does not cut pods off.
//
// A silent server stays ready for longer than one that refuses connections or calls itself not
// ready. It may be busy and still serve the pods that are connected.
func (r Readiness) After(result ProbeResult, thresholds ReadinessThresholds) Readiness {
	if result.OK {
		return Readiness{Ready: true, LastSuccess: result.Time, Last: result}
	}
	next := Readiness{Failures: r.Failures + 1, LastSuccess: r.LastSuccess, Last: result}
	isTolerated := next.Failures < thresholds.Failures ||
		result.Silent && result.Time.Sub(r.LastSuccess) < thresholds.Silence
	next.Ready = r.Ready && isTolerated
	return next
}
