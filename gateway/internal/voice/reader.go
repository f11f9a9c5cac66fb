package voice

import (
	"context"
	"time"
)

// Reader is one client's share. Close it when done. It is for one goroutine.
type Reader[T any] struct {
	hub   *Hub[T]
	news  chan struct{} // holds one when there may be something to take
	told  *share[T]     // guarded by the hub's lock
	begun bool          // whether it has been told anything
}

// Batch is what a reader takes at once.
type Batch[T any] struct {
	Events []Event[T]
	// Bookmark says that with these events all is told that there is, or that a while has passed without any.
	Bookmark bool
	// Failure is, on a bookmark, why nobody speaks now; nil while somebody does.
	Failure error
}

// Join adds a reader.
func (h *Hub[T]) Join() *Reader[T] {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &Reader[T]{hub: h, news: make(chan struct{}, 1), told: h.state.join()}
	r.wake()
	h.readers[r] = struct{}{}
	select {
	case h.joined <- struct{}{}:
	default:
	}
	return r
}

// Close ends the reading. It must be called once.
func (r *Reader[T]) Close() {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	r.hub.state.leave(r.told)
	delete(r.hub.readers, r)
	r.hub.left = time.Now()
}

// Next waits for something to tell, and for no longer than a few seconds once anything was. Where nothing ever was, and nobody
// speaks, it fails with why; with ErrStopped when the hub stops, and with ctx.
func (r *Reader[T]) Next(ctx context.Context) (Batch[T], error) {
	silence := time.NewTimer(quiet)
	defer silence.Stop()
	for {
		lull := false
		select {
		case <-ctx.Done():
			return Batch[T]{}, context.Cause(ctx)
		case <-r.hub.stopped:
			return Batch[T]{}, ErrStopped
		case <-silence.C:
			lull = true
		case <-r.news:
		}
		taken, err := r.take(lull)
		if err != nil || taken.Bookmark || len(taken.Events) > 0 {
			return taken, err
		}
	}
}

func (r *Reader[T]) take(lull bool) (Batch[T], error) {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	s := r.hub.state
	if !r.begun && !s.heard && s.failure != nil {
		return Batch[T]{}, s.failure
	}
	events, bookmark := s.take(r.told)
	taken := Batch[T]{Events: events, Bookmark: bookmark || lull && (s.heard || s.failure != nil)}
	if taken.Bookmark && !s.heard {
		taken.Failure = s.failure
	}
	r.begun = r.begun || taken.Bookmark || len(events) > 0
	return taken, nil
}

// wake lets Next look. The caller holds the hub's lock.
func (r *Reader[T]) wake() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}
