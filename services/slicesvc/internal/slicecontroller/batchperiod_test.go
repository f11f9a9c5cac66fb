package slicecontroller

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

func urgencies() []index.Urgency { return []index.Urgency{index.Lazy, index.Normal, index.Urgent} }

func longestDelays() map[index.Urgency]time.Duration {
	return map[index.Urgency]time.Duration{
		index.Lazy:   5 * time.Second,
		index.Normal: 2 * time.Second,
		index.Urgent: time.Second,
	}
}

// drawBatchPeriod returns a batchPeriod with a random past, and the current time.
func drawBatchPeriod(t *rapid.T, fixed time.Duration) (*batchPeriod, time.Time) {
	period, now := newBatchPeriod(fixed, rapid.IntRange(1, 50).Draw(t, "workers")), testEpoch()
	for range rapid.IntRange(0, 300).Draw(t, "steps") {
		now = now.Add(time.Duration(rapid.Int64Range(-int64(time.Second/100), int64(time.Second)).Draw(t, "step")))
		if rapid.Bool().Draw(t, "write") {
			period.recordWrite(now, time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "took")), rapid.Bool().Draw(t, "refused"))
			continue
		}
		period.delay(now, BatchedChange{
			Since:       now,
			Urgency:     rapid.SampledFrom(urgencies()).Draw(t, "urgency"),
			QueueLength: rapid.IntRange(0, 100_000).Draw(t, "queue"),
		})
	}
	return period, now
}

func TestBatchPeriod_IsBoundedByUrgency(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		period, now := drawBatchPeriod(t, 0)
		age := time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "age"))
		queue := rapid.IntRange(0, 1_000_000).Draw(t, "queue")
		for urgency, longest := range longestDelays() {
			delay := period.delay(now, BatchedChange{Since: now.Add(-age), Urgency: urgency, QueueLength: queue})
			if delay < 0 || delay > max(longest-age, 0) {
				t.Fatalf("urgency %d waits %v after %v, want at most %v in all", urgency, delay, age, longest)
			}
		}
	})
}

func TestBatchPeriod_UrgentNeverWaitsLonger(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		period, now := drawBatchPeriod(t, 0)
		change := BatchedChange{Since: now, QueueLength: rapid.IntRange(0, 10_000).Draw(t, "queue")}
		var delays []time.Duration
		for _, urgency := range []index.Urgency{index.Urgent, index.Normal, index.Lazy} {
			copied := *period // each call counts as a change
			change.Urgency = urgency
			delays = append(delays, copied.delay(now, change))
		}
		if delays[0] > delays[1] || delays[1] > delays[2] {
			t.Fatalf("urgent, normal and lazy wait %v, want no less each time", delays)
		}
	})
}

func TestBatchPeriod_WithoutLoadUrgentDoesNotWait(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		period, now := drawBatchPeriod(t, 0)
		now = now.Add(time.Minute)
		for range 20 {
			if delay := period.delay(now, BatchedChange{Since: now, Urgency: index.Urgent}); delay != 0 {
				t.Fatalf("after a minute of quiet a change waits %v", delay)
			}
			period.recordWrite(now, 5*time.Millisecond, false)
			now = now.Add(10 * time.Millisecond)
		}
	})
}

func TestBatchPeriod_GrowsWithEverySignOfLoad(t *testing.T) {
	t.Parallel()
	for name, addLoad := range map[string]func(period *batchPeriod, now time.Time, i int) BatchedChange{
		"changes": func(period *batchPeriod, now time.Time, _ int) BatchedChange {
			for range 9 {
				period.delay(now, BatchedChange{Since: now, Urgency: index.Urgent})
			}
			return BatchedChange{}
		},
		"queue length": func(period *batchPeriod, now time.Time, i int) BatchedChange {
			period.recordWrite(now, 5*time.Millisecond, false)
			return BatchedChange{QueueLength: 10 * i}
		},
		"refused writes": func(period *batchPeriod, now time.Time, _ int) BatchedChange {
			period.recordWrite(now, 5*time.Millisecond, true)
			return BatchedChange{}
		},
		"latency": func(period *batchPeriod, now time.Time, _ int) BatchedChange {
			period.recordWrite(now, 800*time.Millisecond, false)
			return BatchedChange{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			period, now := newBatchPeriod(0, 5), testEpoch()
			var first, last time.Duration
			for i := range 100 {
				now = now.Add(10 * time.Millisecond)
				change := addLoad(period, now, i)
				change.Since, change.Urgency = now, index.Urgent
				last = period.delay(now, change)
				if i == 0 {
					first = last
				}
			}
			if last < first || last < 400*time.Millisecond {
				t.Errorf("delays went from %v to %v, want near a second", first, last)
			}
			now = now.Add(10 * time.Second)
			if delay := period.delay(now, BatchedChange{Since: now, Urgency: index.Urgent}); delay != 0 {
				t.Errorf("ten seconds later a change waits %v", delay)
			}
		})
	}
}

func TestBatchPeriod_FixedPeriodCountsFromTheFirstChange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const fixed = 500 * time.Millisecond
		period, now := drawBatchPeriod(t, fixed)
		age := time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "age"))
		for _, urgency := range urgencies() {
			want := max(fixed-age, 0)
			if got := period.delay(now, BatchedChange{Since: now.Add(-age), Urgency: urgency, QueueLength: 1000}); got != want {
				t.Fatalf("%v after the first change urgency %d waits %v, want %v", age, urgency, got, want)
			}
		}
	})
}

// rolloutStep is one change of a Service's Pods.
type rolloutStep struct {
	at      time.Duration
	service int
	urgency index.Urgency
}

// rollout replaces every Pod of some Services concurrently: a new Pod is created, becomes ready,
// and then an old one terminates and is deleted.
func rollout(services, pods, perSecond int) []rolloutStep {
	var steps []rolloutStep
	for i := range services * pods {
		at := time.Duration(i) * time.Second / time.Duration(perSecond)
		for _, change := range []rolloutStep{
			{at: at, urgency: index.Normal},
			{at: at + 800*time.Millisecond, urgency: index.Urgent},
			{at: at + 900*time.Millisecond, urgency: index.Urgent},
			{at: at + 1900*time.Millisecond, urgency: index.Normal},
		} {
			change.service = i % services
			steps = append(steps, change)
		}
	}
	slices.SortStableFunc(steps, func(a, b rolloutStep) int { return cmp.Compare(a.at, b.at) })
	return steps
}

// simulateSyncs counts the syncs that answer the steps, and returns the longest delay of an urgent
// change.
func simulateSyncs(period *batchPeriod, steps []rolloutStep) (count int, longest time.Duration) {
	type waiting struct {
		since, until, urgent time.Time
	}
	due := map[int]waiting{}
	syncDue := func(now time.Time) {
		for service, w := range due {
			if w.until.After(now) {
				continue
			}
			count++
			if !w.urgent.IsZero() {
				longest = max(longest, w.until.Sub(w.urgent))
			}
			period.recordWrite(w.until, 5*time.Millisecond, false)
			delete(due, service)
		}
	}
	for _, step := range steps {
		now := testEpoch().Add(step.at)
		syncDue(now)
		w, ok := due[step.service]
		if !ok {
			w = waiting{since: now, until: now.Add(time.Hour)}
		}
		if step.urgency == index.Urgent && w.urgent.IsZero() {
			w.urgent = now
		}
		until := now.Add(period.delay(now, BatchedChange{Since: w.since, Urgency: step.urgency, QueueLength: len(due)}))
		if until.Before(w.until) {
			w.until = until
		}
		due[step.service] = w
	}
	syncDue(testEpoch().Add(24 * time.Hour))
	return count, longest
}

// A rollout of many Services needs a fraction of a write for each change; a rollout of one Service
// has almost no delay.
func TestBatchPeriod_RolloutsNeedFewWrites(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		steps   []rolloutStep
		writes  int           // at most
		longest time.Duration // at most
	}{
		"one pod after the other":       {steps: rollout(1, 100, 1), writes: 400, longest: 0},
		"20 pods a second":              {steps: rollout(5, 100, 20), writes: 2000, longest: 0},
		"everything, 240 pods a second": {steps: rollout(50, 100, 240), writes: 1250, longest: time.Second},
		"everything at once":            {steps: rollout(50, 100, 2000), writes: 400, longest: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			count, longest := simulateSyncs(newBatchPeriod(0, 5), c.steps)
			fixed, _ := simulateSyncs(newBatchPeriod(500*time.Millisecond, 5), c.steps)
			t.Logf("%d changes, %d syncs, urgent ones within %v; with 500 ms fixed %d", len(c.steps), count, longest, fixed)
			if count > c.writes || longest > c.longest {
				t.Errorf("%d syncs and delays of %v, want at most %d and %v", count, longest, c.writes, c.longest)
			}
		})
	}
}
