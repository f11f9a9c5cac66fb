package eligibility_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/internal/term/internal/eligibility"
)

const (
	ttl  = 5 * time.Second
	step = 250 * time.Millisecond
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// period is a time in which the checks keep one result.
type period struct {
	passing bool
	length  time.Duration
}

func passes(d time.Duration) period { return period{passing: true, length: d} }
func fails(d time.Duration) period  { return period{passing: false, length: d} }

// fixture is a replica that observes its checks every step. It releases its shards when it fails,
// if it holds any.
type fixture struct {
	eligibility.Tracker
	now      time.Time
	holds    bool
	backoffs []time.Duration // since noon
}

func newFixture(passing bool) *fixture {
	return &fixture{Tracker: eligibility.New(noon, ttl, passing), now: noon}
}

func (r *fixture) observe(periods ...period) *fixture {
	for _, s := range periods {
		for end := r.now.Add(s.length); r.now.Before(end); {
			r.now = r.now.Add(step)
			r.Tracker = r.Observe(r.now, s.passing)
			if r.Verdict() == eligibility.Failing && r.holds {
				r.Tracker = r.BackOff(r.now)
				r.holds = false
				r.backoffs = append(r.backoffs, r.now.Sub(noon))
			}
		}
	}
	return r
}

func TestTracker_Verdicts(t *testing.T) {
	for name, test := range map[string]struct {
		starts  bool
		periods []period
		want    eligibility.Verdict
	}{
		"passing from the start":                        {starts: true, want: eligibility.Ready},
		"failing since the start":                       {periods: []period{fails(9 * time.Second)}, want: eligibility.Unproven},
		"passing after a start":                         {periods: []period{fails(9 * time.Second), passes(step)}, want: eligibility.Ready},
		"never passing":                                 {periods: []period{fails(11 * time.Second)}, want: eligibility.Failing},
		"passing after a long start":                    {periods: []period{fails(time.Minute), passes(step)}, want: eligibility.Ready},
		"short failure":                                 {starts: true, periods: []period{fails(4 * time.Second)}, want: eligibility.Ready},
		"short failures do not add up":                  {starts: true, periods: []period{fails(4 * time.Second), passes(step), fails(4 * time.Second)}, want: eligibility.Ready},
		"failing for one TTL":                           {starts: true, periods: []period{fails(6 * time.Second)}, want: eligibility.Unproven},
		"failing for two TTLs":                          {starts: true, periods: []period{fails(11 * time.Second)}, want: eligibility.Failing},
		"unproven, passing for less than two TTLs":      {starts: true, periods: []period{fails(6 * time.Second), passes(9 * time.Second)}, want: eligibility.Unproven},
		"unproven, passing for two TTLs":                {starts: true, periods: []period{fails(6 * time.Second), passes(11 * time.Second)}, want: eligibility.Ready},
		"failed, then passing":                          {starts: true, periods: []period{fails(time.Minute), passes(step)}, want: eligibility.Unproven},
		"failed, then passing for two TTLs":             {starts: true, periods: []period{fails(time.Minute), passes(11 * time.Second)}, want: eligibility.Ready},
		"interrupted while proving restarts the period": {starts: true, periods: []period{fails(6 * time.Second), passes(9 * time.Second), fails(step), passes(9 * time.Second)}, want: eligibility.Unproven},
		"interrupted while proving is no failure":       {starts: true, periods: []period{fails(11 * time.Second), passes(9 * time.Second), fails(9 * time.Second)}, want: eligibility.Unproven},
	} {
		t.Run(name, func(t *testing.T) {
			if got := newFixture(test.starts).observe(test.periods...).Verdict(); got != test.want {
				t.Errorf("verdict = %v, want %v", got, test.want)
			}
		})
	}
}

// A replica whose checks fail only while it holds a shard would flap for ever.
func TestTracker_BackoffDoublesEachTime(t *testing.T) {
	r := newFixture(true)
	var waits []time.Duration
	for range 6 {
		r.holds = true
		r.observe(fails(11 * time.Second)) // it holds shards and fails; without shards its checks pass
		released := r.now
		r.observe(passes(step))
		for r.Verdict() != eligibility.Ready {
			r.observe(passes(step))
		}
		waits = append(waits, r.now.Sub(released).Round(10*time.Second))
	}
	want := []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute}
	if diff := cmp.Diff(want, waits); diff != "" {
		t.Errorf("backoffs (-want +got):\n%s", diff)
	}
	if !r.BackoffUntil().IsZero() {
		t.Errorf("a ready replica backs off until %v", r.BackoffUntil())
	}
}

func TestTracker_BackoffCountResetsAfterLongReadiness(t *testing.T) {
	for name, test := range map[string]struct {
		ready time.Duration
		want  time.Duration
	}{
		"fails again soon": {ready: 9 * time.Minute, want: 2 * time.Minute},
		"fails much later": {ready: 11 * time.Minute, want: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(true)
			r.holds = true
			r.observe(fails(11*time.Second), passes(61*time.Second), passes(test.ready))
			r.holds = true
			r.observe(fails(10*time.Second + step))
			if got := r.BackoffUntil().Sub(r.now); got != test.want {
				t.Errorf("backoff of %v, want %v", got, test.want)
			}
		})
	}
}

func TestTracker_OneFailureIsOneBackoff(t *testing.T) {
	s := newFixture(true).observe(fails(11 * time.Second))
	once := s.BackOff(s.now)
	again := once.BackOff(s.now.Add(time.Second))
	if want := s.now.Add(time.Minute); !once.BackoffUntil().Equal(want) || !again.BackoffUntil().Equal(want) {
		t.Errorf("backoff until %v and then %v, want %v both times", once.BackoffUntil(), again.BackoffUntil(), want)
	}
}

// An observer that looks again after each Wait reaches the same verdicts as one that looks at every
// step.
func TestTracker_WaitSkipsNoChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		continuous := newFixture(rapid.Bool().Draw(t, "passing at the start"))
		waiting, due := continuous.Tracker, noon
		for range rapid.IntRange(1, 30).Draw(t, "periods") {
			s := period{passing: rapid.Bool().Draw(t, "passing"), length: step}
			for i := range rapid.IntRange(1, 80).Draw(t, "steps") {
				continuous.observe(s)
				if now := continuous.now; i == 0 || !due.IsZero() && !now.Before(due) {
					waiting, due = waiting.Observe(now, s.passing), time.Time{}
					if wait := waiting.Wait(now); wait > 0 {
						due = now.Add(wait)
					}
				}
				if waiting.Verdict() != continuous.Verdict() {
					t.Fatalf("%v by waiting, %v by observing every step", waiting.Verdict(), continuous.Verdict())
				}
			}
		}
	})
}

// A new replica that released shards because it failed backs off like a replica that was ready
// before.
func TestTracker_NewReplicaThatFailedBacksOff(t *testing.T) {
	r := newFixture(false)
	r.holds = true
	if got := r.observe(fails(11*time.Second), passes(50*time.Second)).Verdict(); got != eligibility.Unproven {
		t.Errorf("verdict = %v within the minute, want unproven", got)
	}
}

// However the checks flicker, a replica releases shards at most once in a backoff. It is failing
// only while its checks fail, and ready only if they have failed for at most one TTL.
func TestTracker_MovesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newFixture(rapid.Bool().Draw(t, "passing at the start"))
		failing := time.Duration(0)
		for range rapid.IntRange(1, 100).Draw(t, "periods") {
			s := period{passing: rapid.Bool().Draw(t, "passing"), length: step}
			for range rapid.IntRange(1, 80).Draw(t, "steps") {
				r.holds = r.holds || r.Verdict() == eligibility.Ready
				r.observe(s)
				if failing += step; s.passing {
					failing = 0
				}
				if r.Verdict() == eligibility.Failing && failing < 2*ttl {
					t.Fatalf("failing after checks failed for %v", failing)
				}
				if r.Verdict() == eligibility.Ready && failing > ttl+step {
					t.Fatalf("ready although checks have failed for %v", failing)
				}
			}
		}
		for i := 1; i < len(r.backoffs); i++ {
			if apart := r.backoffs[i] - r.backoffs[i-1]; apart < 12*ttl {
				t.Fatalf("shards were released twice within %v", apart)
			}
		}
	})
}
