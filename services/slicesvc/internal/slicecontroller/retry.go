package slicecontroller

import (
	"errors"
	"time"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

const (
	// A failed sync or write is repeated after minRetryDelay, then after twice as long each time up
	// to maxRetryDelay, without end.
	minRetryDelay = 100 * time.Millisecond
	maxRetryDelay = time.Minute
	// maxEventRetryDelay bounds the delay of a failing Service whose Pods change, and of a slice
	// whose change failed and is planned otherwise now.
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

// orAt returns the earlier one of two syncs.
func (n nextSync) orAt(priority priority, delay time.Duration) nextSync {
	if n.needed && n.delay <= delay {
		return n
	}
	return nextSync{needed: true, priority: priority, delay: delay}
}

// failure is how a Service fails since its last success.
type failure struct {
	// count is the number of failed syncs. whole counts those at the end of which the whole Service
	// waits; it is 0 if only single slices have failed, which delays no other slice.
	count, whole int
	err          error
	// since and at are the times of the first and of the last failure.
	since, at time.Time
	// throttled is how long kube-apiserver asked to pause.
	throttled time.Duration
}

// next returns the failure after another failed sync. whole says that the whole Service waits.
func (f failure) next(result *syncResult, whole bool, now time.Time) failure {
	next := failure{count: f.count + 1, err: result.err, since: f.since, at: now}
	if f.count == 0 {
		next.since = now
	}
	if whole {
		next.whole, next.throttled = f.whole+1, result.throttled
	}
	return next
}

// delay returns the delay of the next sync without a change of the Service.
func (f failure) delay() time.Duration { return max(retryPause(f.err, f.whole), f.throttled) }

// delayAfterEvent returns the delay of the next sync after a change of the Service.
func (f failure) delayAfterEvent(now time.Time) time.Duration {
	if f.whole == 0 {
		return 0
	}
	return max(min(retryDelay(f.whole), maxEventRetryDelay), f.throttled-now.Sub(f.at))
}

// retryPause returns the pause after that many failures in a row, the last one with err. It is
// short after an outage of kube-apiserver, and after a conflict when the current state is cached.
func retryPause(err error, failures int) time.Duration {
	switch {
	case errors.Is(err, kube.ErrConflict) && !errors.Is(err, ErrSlicesUnread):
		if failures == 1 {
			return 0
		}
		return min(retryDelay(failures-1), maxConflictDelay)
	case kubeconn.Unavailable(err):
		return min(retryDelay(failures), kubeconn.MaxOutagePause)
	default:
		return retryDelay(failures)
	}
}

// retryDelay returns the delay after that many failures in a row.
func retryDelay(failures int) time.Duration {
	doublings := min(max(failures-1, 0), 20) // far beyond maxRetryDelay, far below an overflow
	return min(minRetryDelay<<doublings, maxRetryDelay)
}
