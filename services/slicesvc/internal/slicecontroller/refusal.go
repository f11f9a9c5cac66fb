package slicecontroller

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// SliceRefusal is a change of one slice that kube-apiserver does not accept, for example because of
// a webhook. It is tried again with a growing pause, and delays no other slice.
type SliceRefusal struct {
	// Err is the newest cause.
	Err error
	// Count is the number of refusals in a row, the first one at Since, the last one at At.
	Count     int
	Since, At time.Time
	// refused is the change that was refused last, wanted the one that is planned since.
	refused, wanted pack.Change
}

// wait returns how long a change of the slice must wait. Another change than the refused one may be
// accepted, so it does not wait for long.
func (r *SliceRefusal) wait(change *pack.Change, now time.Time) time.Duration {
	wait := retryDelay(r.Count)
	if change.Verb != r.refused.Verb || !sameContent(change, &r.refused) {
		wait = min(wait, maxEventRetryDelay)
	}
	return r.At.Add(wait).Sub(now)
}

func sameContent(a, b *pack.Change) bool {
	return equality.Semantic.DeepEqual(a.Slice.Endpoints, b.Slice.Endpoints) &&
		equality.Semantic.DeepEqual(a.Slice.Ports, b.Slice.Ports) &&
		equality.Semantic.DeepEqual(a.Slice.Labels, b.Slice.Labels) &&
		equality.Semantic.DeepEqual(a.Slice.Annotations, b.Slice.Annotations)
}

// postponeRefused moves from the plan to postponed the changes that were refused a short time ago.
func (i *syncInput) postponeRefused(result *syncResult, now time.Time) {
	if len(i.refusals) == 0 {
		return
	}
	var due []pack.Change
	for _, change := range result.plan.Changes {
		refusal, refused := i.refusals[change.Slice.Name]
		if refused && refusal.wait(&change, now) > 0 {
			result.postponed = append(result.postponed, change)
			continue
		}
		due = append(due, change)
	}
	result.plan.Changes = due
}

// nextRefusals returns the refusals after a sync. A slice that needs no change is not refused.
func nextRefusals(before map[string]SliceRefusal, result syncResult, now time.Time) map[string]SliceRefusal {
	var after map[string]SliceRefusal
	record := func(name string, refusal SliceRefusal) {
		if after == nil {
			after = map[string]SliceRefusal{}
		}
		after[name] = refusal
	}
	for i := range result.postponed {
		name := result.postponed[i].Slice.Name
		refusal := before[name]
		refusal.wanted = result.postponed[i]
		record(name, refusal)
	}
	for i := range result.outcomes {
		err := result.outcomes[i].Err
		if result.outcomes[i].State != Failed || !isolatedError(err) {
			continue
		}
		change := result.plan.Changes[i]
		refusal := before[change.Slice.Name]
		if refusal.Count == 0 {
			refusal.Since = now
		}
		refusal.Err, refusal.At, refusal.refused, refusal.wanted = err, now, change, change
		refusal.Count++
		record(change.Slice.Name, refusal)
	}
	return after
}

// isolatedError returns whether the cause of an error is the slice, and not its namespace.
func isolatedError(err error) bool {
	return kube.Denied(err) && !errors.Is(err, kube.ErrNamespaceTerminating)
}

// deniedOnly returns whether nothing else than refusals of slices failed.
func deniedOnly(result syncResult) bool {
	for i := range result.outcomes {
		if result.outcomes[i].State == Failed && !kube.Denied(result.outcomes[i].Err) {
			return false
		}
	}
	return result.err == nil || len(result.outcomes) > 0
}

// untilRetry returns how long until the next refused change is due.
func untilRetry(refusals map[string]SliceRefusal, now time.Time) time.Duration {
	wait := maxRetryDelay
	for name := range refusals {
		refusal := refusals[name]
		wait = min(wait, refusal.wait(&refusal.wanted, now))
	}
	return max(wait, minRetryDelay)
}
