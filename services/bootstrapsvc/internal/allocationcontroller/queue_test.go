package allocationcontroller

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// popAll pops until nothing is ready.
func popAll(q *workQueue, now time.Time) []string {
	var popped []string
	for {
		finding, ok := q.pop(now)
		if !ok {
			return popped
		}
		popped = append(popped, finding)
	}
}

func TestWorkQueue_OrderIsPriorityThenAge(t *testing.T) {
	t.Parallel()
	q, now := newWorkQueue(), time.Unix(7, 0)
	q.add("free", 3, now, false)
	q.add("first", 0, now, false)
	q.add("second", 0, now, false)
	q.add("half replaced", firstPriority, now, true)
	q.add("later", firstPriority, now.Add(time.Second), false)
	if got, want := popAll(q, now), []string{"half replaced", "first", "second", "free"}; !slices.Equal(got, want) {
		t.Errorf("popped %q, want %q", got, want)
	}
	if next := q.next(now); !next.Equal(now.Add(time.Second)) {
		t.Errorf("next is %s, want the time of the waiting finding", next)
	}
	q.hurry("later", now)
	if got := popAll(q, now); !slices.Equal(got, []string{"later"}) {
		t.Errorf("popped %q after it was hurried", got)
	}
}

func TestWorkQueue_AFindingIsNeverInTwoWorkers(t *testing.T) {
	t.Parallel()
	q, now := newWorkQueue(), time.Unix(7, 0)
	q.add("a", 0, now, false)
	q.add("a", 0, now, false)
	if got := popAll(q, now); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("popped %q", got)
	}
	q.add("a", 0, now, false)
	if got := popAll(q, now); len(got) != 0 {
		t.Errorf("popped %q while a worker has it", got)
	}
	q.done("a")
	q.add("a", 0, now, false)
	if got := popAll(q, now); !slices.Equal(got, []string{"a"}) {
		t.Errorf("popped %q after the worker was done", got)
	}
}

// Findings whose requests hang take half of the workers at most, and an outage is tried at a rate.
func TestWorkQueue_RetriesLeaveWorkersForOthers(t *testing.T) {
	t.Parallel()
	q, now := newWorkQueue(), time.Unix(7, 0)
	for i := range 3 * maxWorkers {
		q.add(fmt.Sprint("hanging ", i), 0, now, true)
	}
	if got := popAll(q, now); len(got) != 1 {
		t.Errorf("popped %d retries at once, want one", len(got))
	}
	for range 3 * maxWorkers {
		now = now.Add(retryInterval)
		popAll(q, now)
	}
	if len(q.running) != maxRetrying {
		t.Errorf("%d retries run, want %d", len(q.running), maxRetrying)
	}
	for i := range maxWorkers {
		q.add(fmt.Sprint("fresh ", i), 3, now, false)
	}
	if got := popAll(q, now); len(got) != maxWorkers-maxRetrying || q.running["fresh 0"].finding == "" {
		t.Errorf("popped %q, want %d fresh ones", got, maxWorkers-maxRetrying)
	}
	if !q.next(now).IsZero() {
		t.Error("something is next although no worker is free")
	}
	q.done("fresh 0")
	if !q.take("fresh 15", now) || q.take("fresh 15", now) {
		t.Error("a ready finding is not taken once")
	}
	if got := popAll(q, now); len(got) != 1 {
		t.Errorf("popped %q, want one for the worker that is free", got)
	}
}
