package allocationcontroller

import (
	"time"

	"k8s.io/client-go/util/workqueue"
)

const (
	// startBackoffMin and startBackoffMax bound the pause between two automatic repairs of one
	// finding. A repaired finding stays current until the watch has seen the repair, and a finding
	// that cannot be repaired must not be tried in a loop.
	startBackoffMin, startBackoffMax = time.Second, time.Minute
	// retryBackoffMin and retryBackoffMax bound the pause after a step that could not be written.
	retryBackoffMin, retryBackoffMax = time.Second, 20 * time.Second
)

// repairQueue says when the controller may try to repair a finding. Each finding is an item with
// its own exponential backoff, so that one whose repair fails does not delay another. The order of
// ready items is that of allocation.CompareSteps: what is in use comes first.
type repairQueue struct {
	starts, retries workqueue.TypedRateLimiter[string]
	// notBefore has the findings that must wait.
	notBefore map[string]time.Time
}

func newRepairQueue() *repairQueue {
	return &repairQueue{
		starts:    workqueue.NewTypedItemExponentialFailureRateLimiter[string](startBackoffMin, startBackoffMax),
		retries:   workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryBackoffMin, retryBackoffMax),
		notBefore: map[string]time.Time{},
	}
}

func (q *repairQueue) ready(finding string, now time.Time) bool {
	return !now.Before(q.notBefore[finding])
}

// started delays the next automatic repair of a finding.
func (q *repairQueue) started(finding string, now time.Time) {
	q.notBefore[finding] = now.Add(q.starts.When(finding))
}

// failed delays the next attempt to write the steps of a finding.
func (q *repairQueue) failed(finding string, now time.Time) {
	q.notBefore[finding] = now.Add(q.retries.When(finding))
}

// succeeded resets the backoff of retries.
func (q *repairQueue) succeeded(finding string) { q.retries.Forget(finding) }

// prune forgets the findings that need no repair any more.
func (q *repairQueue) prune(needed func(finding string) bool) {
	for finding := range q.notBefore {
		if !needed(finding) {
			delete(q.notBefore, finding)
			q.starts.Forget(finding)
			q.retries.Forget(finding)
		}
	}
}
