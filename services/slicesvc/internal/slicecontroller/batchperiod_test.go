package slicecontroller

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

func epoch() time.Time { return time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC) }

func urgencies() []index.Urgency { return []index.Urgency{index.Lazy, index.Normal, index.Urgent} }

func caps() map[index.Urgency]time.Duration {
	return map[index.Urgency]time.Duration{
		index.Lazy:   5 * time.Second,
		index.Normal: 2 * time.Second,
		index.Urgent: time.Second,
	}
}

// worn returns a Pace with a random past, and the time it has come to.
func worn(t *rapid.T, period time.Duration) (*batchPeriod, time.Time) {
	pace, now := newBatchPeriod(period, rapid.IntRange(1, 50).Draw(t, "workers")), epoch()
	for range rapid.IntRange(0, 300).Draw(t, "steps") {
		now = now.Add(time.Duration(rapid.Int64Range(-int64(time.Second/100), int64(time.Second)).Draw(t, "step")))
		if rapid.Bool().Draw(t, "write") {
			pace.Wrote(now, time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "took")), rapid.Bool().Draw(t, "refused"))
			continue
		}
		pace.Wait(now, batchChange{
			Since:   now,
			Urgency: rapid.SampledFrom(urgencies()).Draw(t, "urgency"),
			Depth:   rapid.IntRange(0, 100_000).Draw(t, "depth"),
		})
	}
	return pace, now
}

func TestWait_NeverBeyondItsCap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pace, now := worn(t, 0)
		age := time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "age"))
		depth := rapid.IntRange(0, 1_000_000).Draw(t, "depth")
		for urgency, limit := range caps() {
			wait := pace.Wait(now, batchChange{Since: now.Add(-age), Urgency: urgency, Depth: depth})
			if wait < 0 || wait > max(limit-age, 0) {
				t.Fatalf("urgency %d waits %v after %v, want at most %v in all", urgency, wait, age, limit)
			}
		}
	})
}

func TestWait_UrgentIsNeverBehindLazy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pace, now := worn(t, 0)
		change := batchChange{Since: now, Depth: rapid.IntRange(0, 10_000).Draw(t, "depth")}
		// Each question counts as a change, so the most urgent is asked last, when
		// the load is highest.
		var waits []time.Duration
		for _, urgency := range []index.Urgency{index.Urgent, index.Normal, index.Lazy} {
			copied := *pace
			change.Urgency = urgency
			waits = append(waits, copied.Wait(now, change))
		}
		if waits[0] > waits[1] || waits[1] > waits[2] {
			t.Fatalf("urgent, normal and lazy wait %v, want no less each time", waits)
		}
	})
}

func TestWait_IdleMeansAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pace, now := worn(t, 0)
		now = now.Add(time.Minute)
		for range 20 {
			if wait := pace.Wait(now, batchChange{Since: now, Urgency: index.Urgent}); wait != 0 {
				t.Fatalf("after a minute of quiet a change waits %v", wait)
			}
			pace.Wrote(now, 5*time.Millisecond, false)
			now = now.Add(10 * time.Millisecond)
		}
	})
}

func TestWait_GrowsWithEverySignOfLoad(t *testing.T) {
	for name, burden := range map[string]func(pace *batchPeriod, now time.Time, i int) batchChange{
		"changes": func(pace *batchPeriod, now time.Time, _ int) batchChange {
			for range 9 {
				pace.Wait(now, batchChange{Since: now, Urgency: index.Urgent})
			}
			return batchChange{}
		},
		"depth": func(pace *batchPeriod, now time.Time, i int) batchChange {
			pace.Wrote(now, 5*time.Millisecond, false)
			return batchChange{Depth: 10 * i}
		},
		"refusals": func(pace *batchPeriod, now time.Time, _ int) batchChange {
			pace.Wrote(now, 5*time.Millisecond, true)
			return batchChange{}
		},
		"latency": func(pace *batchPeriod, now time.Time, _ int) batchChange {
			pace.Wrote(now, 800*time.Millisecond, false)
			return batchChange{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			pace, now := newBatchPeriod(0, 5), epoch()
			var first, last time.Duration
			for i := range 100 {
				now = now.Add(10 * time.Millisecond)
				change := burden(pace, now, i)
				change.Since, change.Urgency = now, index.Urgent
				last = pace.Wait(now, change)
				if i == 0 {
					first = last
				}
			}
			if last < first || last < 400*time.Millisecond {
				t.Errorf("waits went from %v to %v, want near a second", first, last)
			}
			now = now.Add(10 * time.Second)
			if wait := pace.Wait(now, batchChange{Since: now, Urgency: index.Urgent}); wait != 0 {
				t.Errorf("ten seconds later a change waits %v", wait)
			}
		})
	}
}

func TestWait_FixedPeriodIsCountedFromTheFirstChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const period = 500 * time.Millisecond
		pace, now := worn(t, period)
		age := time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "age"))
		for _, urgency := range urgencies() {
			want := max(period-age, 0)
			if got := pace.Wait(now, batchChange{Since: now.Add(-age), Urgency: urgency, Depth: 1000}); got != want {
				t.Fatalf("%v after the first change urgency %d waits %v, want %v", age, urgency, got, want)
			}
		}
	})
}
