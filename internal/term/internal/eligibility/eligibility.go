package eligibility

import "time"

// Verdict is how a replica stands with the others.
type Verdict int

const (
	// Unproven: it may be able to do the work. It is given no shard while others are ready, and gives none away.
	Unproven Verdict = iota
	// Ready: it is able to do the work.
	Ready
	// Failing: it is not, and what it holds goes to those who are.
	Failing
)

// String is how logs say it.
func (v Verdict) String() string {
	switch v {
	case Ready:
		return "ready"
	case Failing:
		return "failing"
	default:
		return "unproven"
	}
}

// In sessions' TTLs: how long checks fail before a replica is no longer ready and before it fails, how long they pass before
// it is ready again, and how long one that gave shards away stays behind at least and at most.
const (
	doubtTTLs   = 1
	failTTLs    = 2
	returnTTLs  = 2
	awayMinTTLs = 12
	awayMaxTTLs = 120
)

// Standing is what has to be remembered to reach a verdict. It is a value; its methods change nothing.
type Standing struct {
	ttl     time.Duration
	verdict Verdict
	// able is what the checks say, and since when they have said so without a break.
	able  bool
	since time.Time
	// seasoned says that the replica was ready before or gave shards away, so that it has to prove itself.
	seasoned bool
	ready    time.Time // when it last became ready
	// retreats are the times it gave shards away and has not lived down, and away is when it may be ready again. retreated
	// says that the present failure is among them.
	retreats  int
	away      time.Time
	retreated bool
}

// New is how a replica stands at its start.
func New(now time.Time, ttl time.Duration, able bool) Standing {
	return Standing{ttl: ttl, able: able, since: now}.Observe(now, able)
}

// Verdict is the one reached by the last observation.
func (s Standing) Verdict() Verdict { return s.verdict }

// AwayUntil is until when the replica stays behind the others however able it is; zero when nothing holds it back.
func (s Standing) AwayUntil() time.Time { return s.away }

// Observe takes in what the checks say as of now. It is to be called when that changes, and now and then while it does not.
func (s Standing) Observe(now time.Time, able bool) Standing {
	if able != s.able {
		s.able, s.since = able, now
	}
	if able {
		return s.pass(now)
	}
	return s.fail(now)
}

func (s Standing) pass(now time.Time) Standing {
	switch {
	case s.verdict == Ready:
		if now.Sub(s.ready) >= awayMaxTTLs*s.ttl {
			s.retreats = 0
		}
	case now.Before(s.away), s.seasoned && now.Sub(s.since) < returnTTLs*s.ttl:
		s.verdict, s.retreated = Unproven, false
	default:
		s.verdict, s.retreated = Ready, false
		s.ready, s.seasoned, s.away = now, true, time.Time{}
	}
	return s
}

func (s Standing) fail(now time.Time) Standing {
	switch lasted := now.Sub(s.since); {
	case lasted >= failTTLs*s.ttl:
		s.verdict = Failing
	case lasted >= doubtTTLs*s.ttl:
		s.verdict = Unproven
	}
	return s
}

// Wait is how long until time alone changes the verdict, if the checks go on saying the same; 0 when it cannot.
func (s Standing) Wait(now time.Time) time.Duration {
	var due []time.Time
	switch {
	case !s.able:
		due = []time.Time{s.since.Add(doubtTTLs * s.ttl), s.since.Add(failTTLs * s.ttl)}
	case s.verdict != Ready:
		due = []time.Time{s.since.Add(returnTTLs * s.ttl), s.away}
	}
	var wait time.Duration
	for _, at := range due {
		if left := at.Sub(now); left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}

// Retreat takes in that the replica gives shards away because it fails, in however many steps: one failure counts once.
func (s Standing) Retreat(now time.Time) Standing {
	if s.retreated {
		return s
	}
	s.away = now.Add(min(awayMinTTLs*s.ttl<<min(s.retreats, 10), awayMaxTTLs*s.ttl))
	s.retreats++
	s.seasoned, s.retreated = true, true
	return s
}
