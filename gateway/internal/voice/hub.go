package voice

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// Linger is how long the stream is kept after the last reader has left: a page that is loaded again finds it.
	Linger = 30 * time.Second
	// quiet is how often a reader gets a bookmark at least, so that silence can be told from a broken wire.
	quiet = 5 * time.Second
	// steady is how long a stream must have lasted for another one to be opened without a pause.
	steady = time.Second
)

// Pauses before a stream is opened again.
const (
	shortestPause = 250 * time.Millisecond
	longestPause  = 2 * time.Second
)

var (
	// ErrStopped is why reading ends when the hub stops.
	ErrStopped = errors.New("the hub has stopped")
	// ErrSilent is how a stream ends that falls silent before it has told everything.
	ErrSilent = errors.New("it fell silent before it had told everything")
)

// Config is what a Hub needs. All of it is required.
type Config[T any] struct {
	// Open finds out who speaks and opens a stream to it that ends with ctx.
	Open func(ctx context.Context) (Stream[T], error)
	// Name names an item among all.
	Name func(T) string
	// Departed is what to tell of an item that went while nobody listened, from what was told of it last, which it does not change.
	Departed func(T) T
	// Changed returns a channel that is closed when another replica may speak than before.
	Changed func() <-chan struct{}
	// Patience is how long a stream that is telling everything may say nothing.
	Patience time.Duration
}

// Stream returns what the voice says next, or why there is no more.
type Stream[T any] func() (Message[T], error)

// Message is one thing that is said: of an item, or that everything has been told, or both.
type Message[T any] struct {
	// Put and Remove say whether Item exists or is gone; neither says nothing of it.
	Put, Remove bool
	Item        T
	// Bookmark says that with this all is told that existed when the stream began.
	Bookmark bool
}

// Hub shares the stream. Make it with New; it is safe for concurrent use.
type Hub[T any] struct {
	cfg     Config[T]
	joined  chan struct{} // holds one when there may be readers
	stopped chan struct{} // closed when Run ends

	mu      sync.Mutex // guards the rest
	state   *state[T]
	readers map[*Reader[T]]struct{}
	// left is when the last reader left, while there is none.
	left time.Time
}

// New returns a hub. It starts nothing.
func New[T any](cfg Config[T]) *Hub[T] {
	return &Hub[T]{
		cfg: cfg, joined: make(chan struct{}, 1), stopped: make(chan struct{}),
		state: newState[T](), readers: map[*Reader[T]]struct{}{},
	}
}

// Run keeps the stream while somebody reads until ctx ends, and returns after it has ended; then every reader learns ErrStopped. It
// is called once.
func (h *Hub[T]) Run(ctx context.Context) error {
	defer close(h.stopped)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.joined:
		}
		if h.isRead() { // or a word of a reader who has left since would open a stream for nobody
			h.serve(ctx)
		}
	}
}

func (h *Hub[T]) isRead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.readers) > 0
}

// serve listens until nobody has read for a while.
func (h *Hub[T]) serve(ctx context.Context) {
	var listening sync.WaitGroup
	defer listening.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	listening.Go(func() { h.listen(ctx) })
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if h.abandon(stop) {
				return
			}
		}
	}
}

// abandon ends the listening and forgets what was told when nobody has read for long enough, and says whether it did. A reader
// that joins after it finds nothing, and has everything told anew.
func (h *Hub[T]) abandon(stop context.CancelFunc) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.readers) > 0 || time.Since(h.left) < Linger {
		return false
	}
	stop() // what is told from now on is not taken
	h.state = newState[T]()
	return true
}

// listen reads one stream after the other until ctx ends.
func (h *Hub[T]) listen(ctx context.Context) {
	pause := shortestPause
	for ctx.Err() == nil {
		changed := h.cfg.Changed() // before it is asked who speaks, or a change between the two would be missed
		started := time.Now()
		heard, err := h.follow(ctx)
		switch {
		case heard && time.Since(started) >= steady:
			pause = shortestPause
			continue
		case heard:
			pause = shortestPause
		default:
			h.tell(ctx, func(s *state[T]) { s.fail(err) })
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, longestPause)
	}
}

// follow reads one stream to its end, and says whether that has told everything, and how it ended.
func (h *Hub[T]) follow(ctx context.Context) (heard bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next, err := h.cfg.Open(ctx)
	if err != nil {
		return false, err
	}
	patience := time.AfterFunc(h.cfg.Patience, func() { cancel(ErrSilent) })
	defer patience.Stop()
	h.tell(ctx, func(s *state[T]) { s.begin() })
	for {
		message, err := next()
		if err != nil {
			if why := context.Cause(ctx); errors.Is(why, ErrSilent) {
				err = why // gRPC only says that the context ended
			}
			return heard, err
		}
		if !heard && patience.Stop() {
			patience.Reset(h.cfg.Patience)
		}
		if h.take(ctx, message); message.Bookmark {
			heard = true
			patience.Stop()
		}
	}
}

func (h *Hub[T]) take(ctx context.Context, message Message[T]) {
	h.tell(ctx, func(s *state[T]) {
		switch name := h.cfg.Name(message.Item); {
		case message.Put:
			s.put(name, message.Item)
		case message.Remove:
			s.remove(name, message.Item)
		}
		if message.Bookmark {
			s.bookmark(h.cfg.Departed)
		}
	})
}

// tell changes the state and wakes the readers. Of a stream that is not listened to any more it takes nothing.
func (h *Hub[T]) tell(ctx context.Context, change func(*state[T])) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	change(h.state)
	for reader := range h.readers {
		reader.wake()
	}
}
