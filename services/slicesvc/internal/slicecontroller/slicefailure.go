package slicecontroller

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// SliceFailure is a change of one slice that is not stored as planned, for example because a quota
// or a webhook refuses it. It is tried again with a growing pause. It delays no other slice, except
// for changes that remove an address which this one adds.
type SliceFailure struct {
	// Err is the newest cause.
	Err error
	// Count is the number of failures in a row, the first one at Since, the last one at At.
	Count     int
	Since, At time.Time
	// changeTime is the time of the first change that the slice lacks; zero if unknown.
	changeTime time.Time
	// tried is the change that failed last, wanted the one that is planned since.
	tried, wanted pack.Change
}

// wait returns how long a change of the slice must wait. Another change than the failed one may
// succeed, so it does not wait for long. It does not wait at all if kube-apiserver stores what is
// written but for some endpoints or ports.
func (f *SliceFailure) wait(change *pack.Change, now time.Time) time.Duration {
	wait := retryPause(f.Err, f.Count)
	if change.Verb != f.tried.Verb || !sameContent(change, &f.tried) {
		if errors.Is(f.Err, kube.ErrStoredOtherwise) && !errors.Is(f.Err, errLost) {
			return 0
		}
		wait = min(wait, maxEventRetryDelay)
	}
	return f.At.Add(wait).Sub(now)
}

// failureOf returns the failure that a change continues: that of its slice or, for a new slice,
// that of a lost one with the same ports, whose name may still be taken.
func (i *syncInput) failureOf(change *pack.Change) (failed SliceFailure, ok bool) {
	if failed, ok = i.failed[change.Slice.Name]; ok || change.Verb != planned.Create {
		return failed, ok
	}
	for name := range i.failed {
		other := i.failed[name]
		if errors.Is(other.Err, errLost) && other.At.After(failed.At) && other.tried.Slice.AddressType == change.Slice.AddressType &&
			desired.KeyOf(other.tried.Slice.Ports) == desired.KeyOf(change.Slice.Ports) {
			failed, ok = other, true
		}
	}
	return failed, ok
}

func sameContent(a, b *pack.Change) bool {
	return equality.Semantic.DeepEqual(a.Slice.Endpoints, b.Slice.Endpoints) &&
		equality.Semantic.DeepEqual(a.Slice.Ports, b.Slice.Ports) &&
		equality.Semantic.DeepEqual(a.Slice.Labels, b.Slice.Labels) &&
		equality.Semantic.DeepEqual(a.Slice.Annotations, b.Slice.Annotations)
}

// postponeFailed moves from the plan to postponed the changes that failed a short time ago.
func (i *syncInput) postponeFailed(result *syncResult, now time.Time) {
	if len(i.failed) == 0 {
		return
	}
	var due []pack.Change
	for _, change := range result.plan.Changes {
		failed, ok := i.failureOf(&change)
		if ok && !failed.changeTime.IsZero() {
			change.SetChangeTime(failed.changeTime)
		}
		if ok && failed.wait(&change, now) > 0 {
			result.postponed = append(result.postponed, change)
			continue
		}
		due = append(due, change)
	}
	result.plan.Changes = due
}

// nextFailed returns the failed slices after a sync, and whether a write of the sync is among them.
// A slice that needs no change has not failed. If the sync did not come to its writes, or was
// throttled, it says nothing about single slices.
func nextFailed(input *syncInput, result *syncResult, now time.Time) (after map[string]SliceFailure, failedNow bool) {
	if result.outcomes == nil || result.throttled > 0 {
		return input.failed, false
	}
	after = map[string]SliceFailure{}
	for i := range result.postponed {
		failed, _ := input.failureOf(&result.postponed[i])
		failed.wanted = result.postponed[i]
		after[failed.wanted.Slice.Name] = failed
	}
	for i := range result.outcomes {
		err := result.outcomes[i].Err
		if err == nil || errors.Is(err, kube.ErrNamespaceTerminating) {
			continue
		}
		failedNow = true
		change := result.plan.Changes[i]
		failed, _ := input.failureOf(&change)
		if failed.Count == 0 {
			failed.Since, failed.changeTime = now, input.changeTime
		}
		failed.Err, failed.At, failed.tried, failed.wanted = err, now, change, change
		failed.Count++
		after[change.Slice.Name] = failed
	}
	return after, failedNow
}

// untilRetry returns how long until the next failed change is due.
func untilRetry(failed map[string]SliceFailure, now time.Time) time.Duration {
	wait := maxRetryDelay
	for name := range failed {
		failure := failed[name]
		wait = min(wait, failure.wait(&failure.wanted, now))
	}
	return max(wait, 0)
}

// recycledFails returns whether a slice that was to be rewritten for another set of ports is not
// stored so.
func recycledFails(failed map[string]SliceFailure) bool {
	for name := range failed {
		if failed[name].tried.Reason == pack.Recycled && !errors.Is(failed[name].Err, kube.ErrConflict) {
			return true
		}
	}
	return false
}
