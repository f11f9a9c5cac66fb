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
)

const (
	// Linger is how long streams are kept after the last reader has left, for a page that is
	// reloaded.
	Linger = 30 * time.Second
	// bookmarkInterval is the longest time between two bookmarks, so that a reader can detect a
	// broken connection.
	bookmarkInterval = 5 * time.Second
	// batchSize is the largest number of events that a reader takes at a time.
	batchSize = 256
)

// ErrStopped is what Next returns after Run has returned.
var ErrStopped = errors.New("the gateway has stopped watching")

var errNotSynced = status.Error(codes.Unavailable, "it has not reported everything yet")

// Config describes the sources of a Hub.
type Config[T any] struct {
	// Sources returns the replicas to watch, and a channel that is closed when they change. An
	// exclusive View has one source; there the channel is closed when another replica may hold the
	// term.
	Sources func() ([]term.Member, <-chan struct{})
	// Open opens a stream that ends with ctx. The stream starts after version, or reports
	// everything if version is empty. With an exclusive View, Open has to bound the time that it
	// takes.
	Open func(ctx context.Context, source term.Member, version string) (Stream[T], error)
	// VersionTooOld reports whether an error means that the source cannot resume at the version.
	// Nil is never.
	VersionTooOld func(error) bool
	// SilenceTimeout is how long a source may pause before its first bookmark.
	SilenceTimeout time.Duration
	// View describes the items.
	View merge.ViewConfig[T]
}

// Stream returns the next message, or why there are no more.
type Stream[T any] func() (Message[T], error)

// Message is one report of a source.
type Message[T any] struct {
	Kind Kind
	Item T
	// Version is where to resume after this message; empty if the source cannot resume.
	Version string
}

// Kind is the kind of a Message.
type Kind int

const (
	// Unknown is a message of a later version. It is ignored.
	Unknown Kind = iota
	// Put reports the state of an item.
	Put
	// Remove reports that an item is gone.
	Remove
	// Bookmark ends the initial report of a stream. Later ones have no effect.
	Bookmark
	// PutAll is a Put of the only item, and a Bookmark.
	PutAll
)

// Hub shares the streams. Make it with NewHub; it is safe for concurrent use.
type Hub[T any] struct {
	cfg     Config[T]
	changed signal        // wakes Run
	stopped chan struct{} // closed when Run ends

	mu      sync.Mutex // guards the fields below
	view    *merge.View[T]
	readers map[*Reader[T]]struct{}
	left    time.Time // when the last reader left, while there is none
	// failures has the last failure of each source, or errNotSynced, by id.
	failures map[string]fanout.Failure
}

// NewHub returns a Hub. It starts nothing.
func NewHub[T any](cfg Config[T]) *Hub[T] {
	return &Hub[T]{
		cfg: cfg, changed: newSignal(), stopped: make(chan struct{}),
		view: merge.NewView(cfg.View), readers: map[*Reader[T]]struct{}{}, failures: map[string]fanout.Failure{},
	}
}

// Run keeps the streams until ctx ends, and returns nil after all have ended. It is called once.
func (h *Hub[T]) Run(ctx context.Context) error {
	defer close(h.stopped)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.changed:
		}
		if h.hasReaders() { // the reader that raised the signal may have left
			h.serve(ctx)
		}
	}
}

// serve keeps the streams until Linger has passed without a reader.
func (h *Hub[T]) serve(ctx context.Context) {
	sources := newSources(ctx, h)
	defer sources.end()
	tick := time.NewTicker(bookmarkInterval)
	defer tick.Stop()
	removal := time.NewTimer(0)
	defer removal.Stop()
	members, changed := h.cfg.Sources()
	h.setSources(sources, members)
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.changed:
		case <-changed:
			members, changed = h.cfg.Sources()
			h.setSources(sources, members)
		case <-removal.C:
		case <-tick.C:
			if h.reset() {
				return
			}
			h.update(func() { h.view.RequestBookmarks() })
		}
		removal.Reset(h.advance())
	}
}

func (h *Hub[T]) hasReaders() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.readers) > 0
}

// reset empties the view if Linger has passed without a reader, and reports whether it did. The new
// view has no sources, so that it ignores messages of streams that are about to end.
func (h *Hub[T]) reset() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.readers) > 0 || time.Since(h.left) < Linger {
		return false
	}
	h.view, h.failures = merge.NewView(h.cfg.View), map[string]fanout.Failure{}
	return true
}

// setSources ends the streams to sources that left and opens those to new ones. The view changes
// between the two steps: it must not hear a source that left, and must know a source that it hears.
func (h *Hub[T]) setSources(sources *sources[T], members []term.Member) {
	sources.drop(members)
	defer sources.add(members)
	h.update(func() {
		ids, failures := make([]string, len(members)), make(map[string]fanout.Failure, len(members))
		for i, member := range members {
			ids[i] = member.ID
			failures[member.ID] = fanout.Failure{Member: member, Err: errNotSynced}
			if last, known := h.failures[member.ID]; known {
				failures[member.ID] = last
			}
		}
		h.failures = failures
		h.view.SetSources(time.Now(), ids)
	})
}

// advance removes items that are due and returns how long to wait for the next ones.
func (h *Hub[T]) advance() (wait time.Duration) {
	wait = bookmarkInterval
	h.update(func() {
		if next := h.view.Advance(time.Now()); !next.IsZero() {
			wait = min(wait, max(0, time.Until(next)))
		}
	})
	return wait
}

// update changes the view and wakes the readers.
func (h *Hub[T]) update(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	for reader := range h.readers {
		reader.news.raise()
	}
}

// missing returns the failures of all sources that are not synced, by id. The caller holds the
// lock.
func (h *Hub[T]) missing() []fanout.Failure {
	var failures []fanout.Failure
	for _, id := range h.view.Missing() {
		failures = append(failures, h.failures[id])
	}
	return failures
}

// Reader is one client's subscription to a Hub. It is for one goroutine.
type Reader[T any] struct {
	hub     *Hub[T]
	news    signal
	items   *merge.Reader[T] // guarded by the hub's lock
	started bool             // Next has returned something
}

// Batch is what a reader gets at a time.
type Batch[T any] struct {
	Events []merge.Event[T]
	// Bookmark means that the reader has all that existed when it joined, or at the bookmark
	// before.
	Bookmark bool
	// Missing are, on a bookmark, the sources that are not synced, by id.
	Missing []fanout.Failure
}

// NoSourceError means that no source is synced. It has the failure of each.
type NoSourceError struct{ Failures []fanout.Failure }

func (e NoSourceError) Error() string { return "no replica answered" }

// Join adds a reader of the items that wants accepts. The caller must close it.
func (h *Hub[T]) Join(wants func(T) bool) *Reader[T] {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &Reader[T]{hub: h, news: newSignal(), items: h.view.Join(wants)}
	r.news.raise()
	h.readers[r] = struct{}{}
	h.changed.raise()
	return r
}

// Close ends the subscription. It must be called once.
func (r *Reader[T]) Close() {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	h.view.Leave(r.items)
	delete(h.readers, r)
	h.left = time.Now()
}

// Next waits for changes or a bookmark. It fails with NoSourceError if it has never returned
// anything and no source is synced; with ErrStopped; or with the cause of ctx.
func (r *Reader[T]) Next(ctx context.Context) (Batch[T], error) {
	for {
		if err := r.news.wait(ctx, r.hub.stopped); err != nil {
			return Batch[T]{}, err
		}
		batch, err := r.take()
		if err != nil || batch.Bookmark || len(batch.Events) > 0 {
			return batch, err
		}
	}
}

func (r *Reader[T]) take() (Batch[T], error) {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if !r.started && h.view.Settled() && !h.view.Synced() {
		return Batch[T]{}, NoSourceError{Failures: h.missing()}
	}
	var batch Batch[T]
	batch.Events, batch.Bookmark = r.items.Take(batchSize)
	if batch.Bookmark {
		batch.Missing = h.missing()
	}
	r.started = r.started || batch.Bookmark || len(batch.Events) > 0
	if r.items.Pending() {
		r.news.raise()
	}
	return batch, nil
}

// signal wakes one waiter. A signal that is raised again before it is taken counts once.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// wait returns nil for a signal, else the cause of ctx or ErrStopped.
func (s signal) wait(ctx context.Context, stopped <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-stopped:
		return ErrStopped
	case <-s:
		return nil
	}
}
