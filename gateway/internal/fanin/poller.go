package fanin

import (
	"context"
	"sync"
	"time"
)

// MinInterval is the shortest time between two questions of a Poller.
const MinInterval = 250 * time.Millisecond

// idle is the longest wait of Run. A reader that joins ends it.
const idle = time.Hour

// Poller asks one question for all its readers. It is safe for concurrent use.
//
// Readers get an answer at whole multiples of their interval since the Poller was made, so that
// readers with the same interval share each question.
type Poller[T any] struct {
	ask     func(context.Context) T
	origin  time.Time
	joined  signal
	stopped chan struct{} // closed when Run ends

	mu      sync.Mutex // guards the fields below
	readers map[*PollReader[T]]struct{}
	last    T         // the answer to the last question
	asked   time.Time // start of the last question that was answered; zero before the first
}

// NewPoller returns a Poller. ask must return soon after its context ends; calls do not overlap.
func NewPoller[T any](ask func(context.Context) T) *Poller[T] {
	return &Poller[T]{
		ask: ask, origin: time.Now(), joined: newSignal(), stopped: make(chan struct{}), readers: map[*PollReader[T]]struct{}{},
	}
}

// Run asks while there are readers, until ctx ends, and returns nil after the last question has. It
// is called once.
func (p *Poller[T]) Run(ctx context.Context) error {
	defer close(p.stopped)
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for ctx.Err() == nil {
		wait := p.untilDue()
		if wait <= 0 {
			p.poll(ctx)
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-p.joined:
		case <-timer.C:
		}
	}
	return nil
}

// untilDue returns how long it is until the next question: until the first reader is due, but not
// sooner than MinInterval after the last question.
func (p *Poller[T]) untilDue() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait := idle
	for reader := range p.readers {
		wait = min(wait, time.Until(reader.due))
	}
	if len(p.readers) > 0 && !p.asked.IsZero() {
		wait = max(wait, time.Until(p.asked.Add(MinInterval)))
	}
	return wait
}

// poll asks once and gives the answer to all readers that are due by then.
func (p *Poller[T]) poll(ctx context.Context) {
	asked := time.Now()
	answer := p.ask(ctx)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.last, p.asked = answer, asked
	for reader := range p.readers {
		if !reader.due.After(now) {
			p.deliver(reader, now)
		}
	}
}

// deliver hands the last answer to a reader and sets when the next one is due. The caller holds the
// lock.
func (p *Poller[T]) deliver(reader *PollReader[T], now time.Time) {
	reader.answer = p.last
	reader.news.raise()
	elapsed := now.Sub(p.origin)
	reader.due = p.origin.Add(elapsed - elapsed%reader.interval + reader.interval)
}

// PollReader is one client's subscription to a Poller. It is for one goroutine.
type PollReader[T any] struct {
	poller   *Poller[T]
	interval time.Duration
	news     signal // raised when there is an answer that Next has not returned
	// answer and due are guarded by the poller's lock.
	answer T
	due    time.Time
}

// Join adds a reader that gets an answer at once and then one in each interval; the shortest
// interval is MinInterval. The caller must close it.
func (p *Poller[T]) Join(interval time.Duration) *PollReader[T] {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	r := &PollReader[T]{poller: p, interval: max(interval, MinInterval), news: newSignal(), due: now}
	if !p.asked.IsZero() && now.Sub(p.asked) < r.interval {
		p.deliver(r, now)
	}
	p.readers[r] = struct{}{}
	p.joined.raise()
	return r
}

// Close ends the subscription.
func (r *PollReader[T]) Close() {
	r.poller.mu.Lock()
	defer r.poller.mu.Unlock()
	delete(r.poller.readers, r)
}

// Next waits for an answer that it has not returned yet; of several it returns the newest. It fails
// with ErrStopped, or with the cause of ctx.
func (r *PollReader[T]) Next(ctx context.Context) (T, error) {
	if err := r.news.wait(ctx, r.poller.stopped); err != nil {
		var none T
		return none, err
	}
	r.poller.mu.Lock()
	defer r.poller.mu.Unlock()
	return r.answer, nil
}
