package watch

import (
	"context"
	"errors"
	"sync"
	"time"
)

// MinInterval is the shortest time between two questions.
const MinInterval = 250 * time.Millisecond

// ErrStopped is what Subscribe returns once the hub has stopped, and why a subscription's channel is closed.
var ErrStopped = errors.New("the watch has stopped")

// Hub distributes the answers to one question. It is safe for concurrent use.
type Hub[Answer any] struct {
	ask   func(context.Context) Answer
	join  chan *Subscription[Answer]
	leave chan *Subscription[Answer]
	// stopping is closed by Stop or by the end of Run, whichever comes first.
	stopping chan struct{}
	stopOnce sync.Once
}

// Subscription is one reader's share. Close it when done.
type Subscription[Answer any] struct {
	hub      *Hub[Answer]
	interval time.Duration
	// newest holds at most one answer; only the hub sends, replaces and closes.
	newest chan Answer
	// due is when the next answer is wanted; owned by Run.
	due time.Time
}

// New returns a hub for a question. Ask must return soon after its context ends; it is never called by two at a time.
func New[Answer any](ask func(context.Context) Answer) *Hub[Answer] {
	return &Hub[Answer]{
		ask:      ask,
		join:     make(chan *Subscription[Answer]),
		leave:    make(chan *Subscription[Answer]),
		stopping: make(chan struct{}),
	}
}

// Subscribe adds a reader, who gets an answer at once and then one per interval; intervals below MinInterval count as
// MinInterval. It blocks until Run is there to take it, ctx ends (the context's error) or the hub has stopped (ErrStopped).
func (h *Hub[Answer]) Subscribe(ctx context.Context, interval time.Duration) (*Subscription[Answer], error) {
	subscription := &Subscription[Answer]{hub: h, interval: max(interval, MinInterval), newest: make(chan Answer, 1)}
	select {
	case <-h.stopping: // select alone would choose at random
		return nil, ErrStopped
	default:
	}
	select {
	case h.join <- subscription:
		return subscription, nil
	case <-h.stopping:
		return nil, ErrStopped
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Newest gives the answers; it is closed when the hub stops.
func (s *Subscription[Answer]) Newest() <-chan Answer { return s.newest }

// Close ends the subscription. It must be called once.
func (s *Subscription[Answer]) Close() {
	select {
	case s.hub.leave <- s:
	case <-s.hub.stopping:
	}
}

// Stop ends all subscriptions and refuses new ones; Run then returns. It may be called again.
func (h *Hub[Answer]) Stop() {
	h.stopOnce.Do(func() { close(h.stopping) })
}

// Run asks and distributes until ctx ends or Stop is called. It returns after a question under way has. It may be called once.
func (h *Hub[Answer]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer h.Stop()
	r := newRound(h.ask)
	defer r.end(cancel)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		r.askIfDue(ctx)
		timer.Reset(r.wait())
		select {
		case <-ctx.Done():
			return nil
		case <-h.stopping:
			return nil
		case subscription := <-h.join:
			r.add(subscription)
		case subscription := <-h.leave:
			delete(r.readers, subscription)
		case answer := <-r.answers:
			r.distribute(answer)
		case <-timer.C:
		}
	}
}
