package slicecontroller

import (
	"time"

	"github.com/trivet-dev/trivet/internal/kubeconn"
)

const (
	// A failed sync is repeated after minRetryDelay, then after twice as long each time up to
	// maxRetryDelay, without end.
	minRetryDelay = 100 * time.Millisecond
	maxRetryDelay = time.Minute
	// maxEventRetryDelay bounds the delay of a failing Service whose Pods change.
	maxEventRetryDelay = time.Second
	// maxConflictDelay bounds the delay after conflicts: a writer that often changes a slice, for
	// example its annotations, must not delay what the Service needs.
	maxConflictDelay = time.Second
)

// nextSync is the sync that follows without another cause.
type nextSync struct {
	needed   bool
	priority priority
	delay    time.Duration
}

// failure is how a Service fails since its last success.
type failure struct {
	count int
	err   error
	// since and at are the times of the first and of the last failure.
	since, at time.Time
	// throttled is how long kube-apiserver asked to pause.
	throttled time.Duration
	// isolated says that only single slices are refused, which does not delay the others.
	isolated bool
}

// next returns the failure after another failed sync.
func (f failure) next(result syncResult, now time.Time) failure {
	if f.count == 0 {
		f.since = now
	}
	return failure{count: f.count + 1, err: result.err, since: f.since, at: now, throttled: result.throttled}
}

// delay returns the delay of the next retry, which is short after an outage of kube-apiserver.
// replan says that only conflicts caused the failure.
func (f failure) delay(replan bool) time.Duration {
	switch {
	case replan && f.count == 1:
		return 0
	case replan:
		return min(retryDelay(f.count-1), maxConflictDelay)
	case kubeconn.Unavailable(f.err):
		return max(min(retryDelay(f.count), kubeconn.MaxOutagePause), f.throttled)
	default:
		return max(retryDelay(f.count), f.throttled)
	}
}

// delayAfterEvent returns the delay of the next sync after a change of the Service.
func (f failure) delayAfterEvent(now time.Time) time.Duration {
	if f.isolated {
		return 0
	}
	return max(min(retryDelay(f.count), maxEventRetryDelay), f.throttled-now.Sub(f.at))
}

// retryDelay returns the delay after that many failures in a row.
func retryDelay(failures int) time.Duration {
	doublings := min(max(failures-1, 0), 20) // far beyond maxRetryDelay, far below an overflow
	return min(minRetryDelay<<doublings, maxRetryDelay)
}
