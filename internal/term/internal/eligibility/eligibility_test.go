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

// stretch is a time in which the checks say the same.
type stretch struct {
	able bool
	long time.Duration
}

func passes(d time.Duration) stretch { return stretch{able: true, long: d} }
func fails(d time.Duration) stretch  { return stretch{able: false, long: d} }

// replica observes its checks every step, and gives its shards away when it fails unless it holds none.
type replica struct {
	eligibility.Standing
	now      time.Time
	holds    bool
	retreats []time.Duration // since noon
}

func started(able bool) *replica {
	return &replica{Standing: eligibility.New(noon, ttl, able), now: noon}
}

func (r *replica) live(stretches ...stretch) *replica {
	for _, s := range stretches {
		for end := r.now.Add(s.long); r.now.Before(end); {
			r.now = r.now.Add(step)
			r.Standing = r.Observe(r.now, s.able)
			if r.Verdict() == eligibility.Failing && r.holds {
				r.Standing = r.Retreat(r.now)
				r.holds = false
				r.retreats = append(r.retreats, r.now.Sub(noon))
			}
		}
	}
	return r
}

func TestStanding_Verdicts(t *testing.T) {
	for name, test := range map[string]struct {
		starts  bool
		lives   []stretch
		expects eligibility.Verdict
	}{
		"able from the start":                       {starts: true, expects: eligibility.Ready},
		"starting":                                  {lives: []stretch{fails(9 * time.Second)}, expects: eligibility.Unproven},
		"able once started":                         {lives: []stretch{fails(9 * time.Second), passes(step)}, expects: eligibility.Ready},
		"never able":                                {lives: []stretch{fails(11 * time.Second)}, expects: eligibility.Failing},
		"able after a long start":                   {lives: []stretch{fails(time.Minute), passes(step)}, expects: eligibility.Ready},
		"a short failure is none":                   {starts: true, lives: []stretch{fails(4 * time.Second)}, expects: eligibility.Ready},
		"short failures do not add up":              {starts: true, lives: []stretch{fails(4 * time.Second), passes(step), fails(4 * time.Second)}, expects: eligibility.Ready},
		"doubted after one TTL":                     {starts: true, lives: []stretch{fails(6 * time.Second)}, expects: eligibility.Unproven},
		"failing after two":                         {starts: true, lives: []stretch{fails(11 * time.Second)}, expects: eligibility.Failing},
		"doubted and able has to prove it":          {starts: true, lives: []stretch{fails(6 * time.Second), passes(9 * time.Second)}, expects: eligibility.Unproven},
		"doubted and able for two TTLs":             {starts: true, lives: []stretch{fails(6 * time.Second), passes(11 * time.Second)}, expects: eligibility.Ready},
		"failed and able gives nothing more away":   {starts: true, lives: []stretch{fails(time.Minute), passes(step)}, expects: eligibility.Unproven},
		"failed and able for two TTLs":              {starts: true, lives: []stretch{fails(time.Minute), passes(11 * time.Second)}, expects: eligibility.Ready},
		"a break while proving it begins anew":      {starts: true, lives: []stretch{fails(6 * time.Second), passes(9 * time.Second), fails(step), passes(9 * time.Second)}, expects: eligibility.Unproven},
		"a break while proving it is not a failure": {starts: true, lives: []stretch{fails(11 * time.Second), passes(9 * time.Second), fails(9 * time.Second)}, expects: eligibility.Unproven},
	} {
		t.Run(name, func(t *testing.T) {
			if got := started(test.starts).live(test.lives...).Verdict(); got != test.expects {
				t.Errorf("verdict = %v, want %v", got, test.expects)
			}
		})
	}
}

// A replica whose checks fail only while it holds a shard would flap for ever.
func TestStanding_StaysAwayLongerAfterEachRetreat(t *testing.T) {
	r := started(true)
	var away []time.Duration
	for range 6 {
		r.holds = true
		r.live(fails(11 * time.Second)) // it holds shards and fails; having given them away it looks able again
		given := r.now
		r.live(passes(step))
		for r.Verdict() != eligibility.Ready {
			r.live(passes(step))
		}
		away = append(away, r.now.Sub(given).Round(10*time.Second))
	}
	want := []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute}
	if diff := cmp.Diff(want, away); diff != "" {
		t.Errorf("times away (-want +got):\n%s", diff)
	}
	if !r.AwayUntil().IsZero() {
		t.Errorf("a ready replica is away until %v", r.AwayUntil())
	}
}

func TestStanding_LivesARetreatDown(t *testing.T) {
	for name, test := range map[string]struct {
		ready time.Duration
		want  time.Duration
	}{
		"fails again soon": {ready: 9 * time.Minute, want: 2 * time.Minute},
		"fails much later": {ready: 11 * time.Minute, want: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			r := started(true)
			r.holds = true
			r.live(fails(11*time.Second), passes(61*time.Second), passes(test.ready))
			r.holds = true
			r.live(fails(10*time.Second + step))
			if got := r.AwayUntil().Sub(r.now); got != test.want {
				t.Errorf("away for %v, want %v", got, test.want)
			}
		})
	}
}

func TestStanding_OneFailureIsOneRetreat(t *testing.T) {
	s := started(true).live(fails(11 * time.Second))
	once := s.Retreat(s.now)
	again := once.Retreat(s.now.Add(time.Second))
	if want := s.now.Add(time.Minute); !once.AwayUntil().Equal(want) || !again.AwayUntil().Equal(want) {
		t.Errorf("away until %v and then %v, want %v both times", once.AwayUntil(), again.AwayUntil(), want)
	}
}

// Whoever looks again after every wait misses nothing that whoever looks all the time would see.
func TestStanding_WaitSkipsNoChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		watched := started(rapid.Bool().Draw(t, "able at the start"))
		woken, due := watched.Standing, noon
		for range rapid.IntRange(1, 30).Draw(t, "stretches") {
			s := stretch{able: rapid.Bool().Draw(t, "able"), long: step}
			for i := range rapid.IntRange(1, 80).Draw(t, "steps") {
				watched.live(s)
				if now := watched.now; i == 0 || !due.IsZero() && !now.Before(due) {
					woken, due = woken.Observe(now, s.able), time.Time{}
					if wait := woken.Wait(now); wait > 0 {
						due = now.Add(wait)
					}
				}
				if woken.Verdict() != watched.Verdict() {
					t.Fatalf("%v by waiting, %v by watching", woken.Verdict(), watched.Verdict())
				}
			}
		}
	})
}

// A newcomer that gave away what it had claimed in an empty house has to prove itself like everybody else.
func TestStanding_NewcomerThatRetreatedStaysAway(t *testing.T) {
	r := started(false)
	r.holds = true
	if got := r.live(fails(11*time.Second), passes(50*time.Second)).Verdict(); got != eligibility.Unproven {
		t.Errorf("verdict = %v within the minute, want unproven", got)
	}
}

// However the checks flicker, a replica gives shards away no more often than once in the time it stays away, is failing only
// while its checks fail, and is ready only if they failed for no longer than a TTL.
func TestStanding_MovesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := started(rapid.Bool().Draw(t, "able at the start"))
		failing := time.Duration(0)
		for range rapid.IntRange(1, 100).Draw(t, "stretches") {
			s := stretch{able: rapid.Bool().Draw(t, "able"), long: step}
			for range rapid.IntRange(1, 80).Draw(t, "steps") {
				r.holds = r.holds || r.Verdict() == eligibility.Ready
				r.live(s)
				if failing += step; s.able {
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
		for i := 1; i < len(r.retreats); i++ {
			if apart := r.retreats[i] - r.retreats[i-1]; apart < 12*ttl {
				t.Fatalf("shards were given away twice within %v", apart)
			}
		}
	})
}
