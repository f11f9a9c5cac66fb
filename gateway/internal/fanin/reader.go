package fanin

import (
	"context"
	"time"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
)

// Reader is one client's share. Close it when done. It is for one goroutine.
type Reader[T merge.Item] struct {
	hub   *Hub[T]
	news  chan struct{}    // holds one when there may be something to take
	items *merge.Reader[T] // guarded by the hub's lock
	begun bool             // whether it has been told anything
}

// Batch is what a reader takes at once.
type Batch[T merge.Item] struct {
	Events []merge.Event[T]
	// Bookmark says that with these events all is told that there was when the reader began, or since the last bookmark.
	Bookmark bool
	// Missing is, on a bookmark, who does not tell, and why; ordered by replica.
	Missing []*gatewayv1.SourceStatus
}

// NoSourceError says that not one replica tells. Failures are those of all of them, ordered by replica.
type NoSourceError struct{ Failures []Failure }

func (e NoSourceError) Error() string { return "no replica answered" }

// Join adds a reader of the items that are wanted.
func (h *Hub[T]) Join(wants func(T) bool) *Reader[T] {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &Reader[T]{hub: h, news: make(chan struct{}, 1), items: h.state.Join(wants)}
	r.news <- struct{}{}
	h.readers[r] = struct{}{}
	h.poke()
	return r
}

// Close ends the reading. It must be called once.
func (r *Reader[T]) Close() {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	r.hub.state.Leave(r.items)
	delete(r.hub.readers, r)
	r.hub.left = time.Now()
}

// Next waits for something to tell. It fails with NoSourceError when nothing was ever told and nobody tells, with ErrStopped
// when the hub stops, and with ctx.
func (r *Reader[T]) Next(ctx context.Context) (Batch[T], error) {
	for {
		select {
		case <-ctx.Done():
			return Batch[T]{}, context.Cause(ctx)
		case <-r.hub.stopped:
			return Batch[T]{}, ErrStopped
		case <-r.news:
		}
		taken, err := r.take()
		if err != nil || taken.Bookmark || len(taken.Events) > 0 {
			return taken, err
		}
	}
}

func (r *Reader[T]) take() (Batch[T], error) {
	h := r.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if !r.begun && h.state.Settled() && !h.state.Heard() {
		return Batch[T]{}, NoSourceError{Failures: h.missing()}
	}
	var taken Batch[T]
	taken.Events, taken.Bookmark = r.items.Take(batch)
	if taken.Bookmark {
		for _, failure := range h.missing() {
			taken.Missing = append(taken.Missing, failure.Status)
		}
	}
	r.begun = r.begun || taken.Bookmark || len(taken.Events) > 0
	if r.items.Pending() {
		r.wake()
	}
	return taken, nil
}

// missing tells of all who do not tell, or not everything anew since they failed.
func (h *Hub[T]) missing() []Failure {
	var failures []Failure
	for _, id := range h.state.Missing() {
		failures = append(failures, h.failures[id])
	}
	return failures
}

// wake lets Next look. The caller holds the hub's lock or is the reader.
func (r *Reader[T]) wake() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}
