package watch

import (
	"context"
	"time"
)

// idle is how long to sleep when nobody waits for anything: any event wakes the owner earlier.
const idle = time.Hour

// round is the state of a running hub, owned by the goroutine of Run.
type round[Answer any] struct {
	ask     func(context.Context) Answer
	readers map[*Subscription[Answer]]struct{}
	// origin is where the grid of turns begins.
	origin time.Time
	// asked is when the last question was put; zero before the first.
	asked time.Time
	// asking is whether a question is under way; its answer comes on answers.
	asking  bool
	answers chan Answer
	// last is the newest answer, put at lastAsked; known is false before the first.
	last      Answer
	lastAsked time.Time
	known     bool
}

func newRound[Answer any](ask func(context.Context) Answer) *round[Answer] {
	return &round[Answer]{
		ask:     ask,
		readers: map[*Subscription[Answer]]struct{}{},
		origin:  time.Now(),
		answers: make(chan Answer, 1),
	}
}

// add lets a reader in: with the last answer where that is not older than its interval, else with the next one.
func (r *round[Answer]) add(reader *Subscription[Answer]) {
	now := time.Now()
	r.readers[reader] = struct{}{}
	reader.due = now
	if r.known && now.Sub(r.lastAsked) < reader.interval {
		r.give(reader, r.last, now)
	}
}

// askIfDue puts the question if a reader's turn has come and none is under way.
func (r *round[Answer]) askIfDue(ctx context.Context) {
	if r.asking || len(r.readers) == 0 || time.Now().Before(r.next()) {
		return
	}
	r.asking, r.asked = true, time.Now()
	go func() { r.answers <- r.ask(ctx) }()
}

// next is when to ask: at the earliest turn, but not too soon after the last question.
func (r *round[Answer]) next() time.Time {
	var earliest time.Time
	for reader := range r.readers {
		if earliest.IsZero() || reader.due.Before(earliest) {
			earliest = reader.due
		}
	}
	if pause := r.asked.Add(MinInterval); !r.asked.IsZero() && pause.After(earliest) {
		return pause
	}
	return earliest
}

func (r *round[Answer]) wait() time.Duration {
	if r.asking || len(r.readers) == 0 {
		return idle
	}
	return time.Until(r.next())
}

// distribute gives an answer to all whose turn had come when it was asked for or has come meanwhile.
func (r *round[Answer]) distribute(answer Answer) {
	now := time.Now()
	r.asking, r.known = false, true
	r.last, r.lastAsked = answer, r.asked
	for reader := range r.readers {
		if !reader.due.After(now) {
			r.give(reader, answer, now)
		}
	}
}

// give puts an answer in place of one that was not read, and sets the reader's next turn on the grid.
func (r *round[Answer]) give(reader *Subscription[Answer], answer Answer, now time.Time) {
	select {
	case <-reader.newest:
	default:
	}
	reader.newest <- answer // never blocks: the only sender has just made room
	elapsed := now.Sub(r.origin)
	reader.due = r.origin.Add(elapsed - elapsed%reader.interval + reader.interval)
}

// end waits for a question under way and closes every subscription.
func (r *round[Answer]) end(cancel context.CancelFunc) {
	cancel()
	if r.asking {
		<-r.answers
	}
	for reader := range r.readers {
		close(reader.newest)
	}
}
