package slicecontroller

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// step is one change of a Service's pods at a time.
type step struct {
	at      time.Duration
	service int
	urgency index.Urgency
}

// rollout replaces every pod of some Services, side by side: each new pod comes,
// is ready a while later, and then an old one ends and goes.
func rollout(services, pods, perSecond int) []step {
	var steps []step
	for i := range services * pods {
		at := time.Duration(i) * time.Second / time.Duration(perSecond)
		for _, change := range []step{
			{at: at, urgency: index.Normal},
			{at: at + 800*time.Millisecond, urgency: index.Urgent},
			{at: at + 900*time.Millisecond, urgency: index.Urgent},
			{at: at + 1900*time.Millisecond, urgency: index.Normal},
		} {
			change.service = i % services
			steps = append(steps, change)
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return steps
}

// flushes plays steps and counts how often a Service is written, and how long its
// urgent changes waited at most.
func flushes(pace *batchPeriod, steps []step) (count int, longest time.Duration) {
	type waiting struct {
		since, until, urgent time.Time
	}
	due := map[int]waiting{}
	flush := func(now time.Time) {
		for service, w := range due {
			if w.until.After(now) {
				continue
			}
			count++
			if !w.urgent.IsZero() {
				longest = max(longest, w.until.Sub(w.urgent))
			}
			pace.Wrote(w.until, 5*time.Millisecond, false)
			delete(due, service)
		}
	}
	for _, s := range steps {
		now := epoch().Add(s.at)
		flush(now)
		w, ok := due[s.service]
		if !ok {
			w = waiting{since: now, until: now.Add(time.Hour)}
		}
		if s.urgency == index.Urgent && w.urgent.IsZero() {
			w.urgent = now
		}
		until := now.Add(pace.Wait(now, batchChange{Since: w.since, Urgency: s.urgency, Depth: len(due)}))
		if until.Before(w.until) {
			w.until = until
		}
		due[s.service] = w
	}
	flush(epoch().Add(24 * time.Hour))
	return count, longest
}

// A rollout of everything is written in a fraction of its changes, one of a
// single Service nearly without delay.
func TestRollout_WritesAndWaits(t *testing.T) {
	for name, c := range map[string]struct {
		steps []step
		// most is how many writes there may be, slowest how long a wait.
		most    int
		slowest time.Duration
	}{
		"one pod after the other":          {steps: rollout(1, 100, 1), most: 400, slowest: 0},
		"20 pods a second":                 {steps: rollout(5, 100, 20), most: 2000, slowest: 0},
		"everything, 240 pods a second":    {steps: rollout(50, 100, 240), most: 1250, slowest: time.Second},
		"everything, as fast as it can go": {steps: rollout(50, 100, 2000), most: 400, slowest: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			count, longest := flushes(newBatchPeriod(0, 5), c.steps)
			fixed, _ := flushes(newBatchPeriod(500*time.Millisecond, 5), c.steps)
			t.Logf("%d changes, %d flushes, urgent ones within %v; with 500 ms fixed %d", len(c.steps), count, longest, fixed)
			if count > c.most || longest > c.slowest {
				t.Errorf("%d flushes and waits of %v, want at most %d and %v", count, longest, c.most, c.slowest)
			}
		})
	}
}
