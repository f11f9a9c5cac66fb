package fanin

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

const (
	// Linger is how long the streams are kept after the last reader has left: a page that is loaded again finds them.
	Linger = 30 * time.Second
	// quiet is how often every reader gets a bookmark at least, so that silence can be told from a broken wire.
	quiet = 5 * time.Second
	// batch is how many events a reader takes at a time.
	batch = 256
)

// ErrStopped is why reading ends when the hub stops.
var ErrStopped = errors.New("the feed has stopped")

// Config is what a Hub needs. All of it but Shared is required.
type Config[T merge.Item] struct {
	// Members returns the replicas that there are, and a channel that is closed at the next change of them.
	Members func() ([]term.Member, <-chan struct{})
	// Open opens a stream to a replica that ends with ctx. It begins behind version, or with everything where that is empty.
	Open func(ctx context.Context, member term.Member, version string) (Stream[T], error)
	// Outdated says whether an error means that the version cannot be resumed from.
	Outdated func(error) bool
	// Same says whether two states of an item look the same to readers.
	Same func(a, b T) bool
	// Shared says that every replica tells of every item.
	Shared bool
	// Patience is how long a replica that is telling everything may say nothing.
	Patience time.Duration
}

// state is one that knows of nothing.
func (c *Config[T]) state() *merge.State[T] {
	if c.Shared {
		return merge.NewShared(c.Same)
	}
	return merge.New(c.Same)
}

// Stream returns what a replica says next, or why there is no more.
type Stream[T merge.Item] func() (Message[T], error)

// Message is one thing that a replica says.
type Message[T merge.Item] struct {
	Kind Kind
	// Item is absent from a bookmark.
	Item T
	// Version is where to resume behind this message; empty where that is not possible.
	Version string
}

// Kind says what a message tells.
type Kind int

const (
	// Unknown is of a later version and passed over.
	Unknown Kind = iota
	// Put tells of an item as it is.
	Put
	// Remove tells that an item is gone.
	Remove
	// Bookmark tells that all that existed at the start has been told, or nothing new.
	Bookmark
)

// Hub shares the streams. Make it with New; it is safe for concurrent use.
type Hub[T merge.Item] struct {
	cfg Config[T]
	// changed wakes Run after readers came, or something became due.
	changed chan struct{}
	stopped chan struct{} // closed when Run ends

	mu      sync.Mutex // guards the rest
	state   *merge.State[T]
	readers map[*Reader[T]]struct{}
	// left is when the last reader left, while there is none.
	left time.Time
	// failures is, for each replica that is expected, how it failed last, or that nothing is known yet; by id.
	failures map[string]Failure
}

// Failure is how a replica failed.
type Failure struct {
	Err    error
	Status *gatewayv1.SourceStatus
}

// New returns a hub. It starts nothing.
func New[T merge.Item](cfg Config[T]) *Hub[T] {
	return &Hub[T]{
		cfg: cfg, changed: make(chan struct{}, 1), stopped: make(chan struct{}),
		state: cfg.state(), readers: map[*Reader[T]]struct{}{}, failures: map[string]Failure{},
	}
}

// Run keeps the streams until ctx ends, and returns after all have ended; then every reader learns ErrStopped. It is called once.
func (h *Hub[T]) Run(ctx context.Context) error {
	defer close(h.stopped)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.changed:
		}
		if h.isRead() {
			h.serve(ctx)
		}
	}
}

func (h *Hub[T]) isRead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.readers) > 0
}

// forget forgets everything, and says so, when nobody has read for long enough. What streams that are yet to end still tell is
// ignored then: no replica is expected.
func (h *Hub[T]) forget() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.readers) > 0 || time.Since(h.left) < Linger {
		return false
	}
	h.state, h.failures = h.cfg.state(), map[string]Failure{}
	return true
}

// serve keeps the streams from the first reader until nobody has read for a while.
func (h *Hub[T]) serve(ctx context.Context) {
	streams := newStreams(ctx, h)
	defer streams.end()
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	timer := time.NewTimer(0) // for what is due in the state
	defer timer.Stop()
	members, changed := h.cfg.Members()
	h.expect(streams, members)
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.changed:
		case <-changed:
			members, changed = h.cfg.Members()
			h.expect(streams, members)
		case <-timer.C:
		case <-tick.C:
			if h.forget() {
				return
			}
			h.tell(func() { h.state.Nudge() })
		}
		timer.Reset(h.advance())
	}
}

// expect ends the streams to who left and opens those to who is new. In between the state learns who there is: it would hear
// who left, and not hear who is new.
func (h *Hub[T]) expect(streams *streams[T], members []term.Member) {
	streams.drop(members)
	defer streams.add(members)
	h.tell(func() {
		ids, failures := make([]string, len(members)), make(map[string]Failure, len(members))
		for i, member := range members {
			ids[i] = member.ID
			failures[member.ID] = Failure{Err: errNotYet, Status: fanout.Failure(member, errNotYet, 0)}
			if last, known := h.failures[member.ID]; known {
				failures[member.ID] = last
			}
		}
		h.failures = failures
		h.state.Expect(time.Now(), ids)
	})
}

var errNotYet = status.Error(codes.Unavailable, "it has not told everything yet")

// advance removes what is due and returns when to do so again.
func (h *Hub[T]) advance() (wait time.Duration) {
	wait = quiet // who doubts something earlier wakes Run
	h.tell(func() {
		if next := h.state.Advance(time.Now()); !next.IsZero() {
			wait = min(wait, max(0, time.Until(next)))
		}
	})
	return wait
}

// tell changes the state and wakes whom it concerns.
func (h *Hub[T]) tell(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	for reader := range h.readers {
		reader.wake()
	}
}

// poke wakes Run.
func (h *Hub[T]) poke() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}
