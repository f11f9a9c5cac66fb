package voice

import (
	"context"
	"testing"
)

// A stream that is given up may have a message on its way: were it taken, the next reader would be told the end of something that
// the next stream has not begun.
func TestTell_NothingOfAStreamThatWasGivenUp(t *testing.T) {
	h := New(Config[named]{Name: func(n named) string { return n.name }, Departed: func(n named) named { return n }})
	ctx, stop := context.WithCancel(t.Context())
	h.take(ctx, Message[named]{Put: true, Item: named{name: "a"}})
	h.abandon(stop) // nobody has read since the beginning of time
	h.take(ctx, Message[named]{Put: true, Item: named{name: "b"}, Bookmark: true})
	if taken, err := h.Join().take(true); err != nil || taken.Bookmark || len(taken.Events) > 0 {
		t.Errorf("the next reader is told %+v, %v; want nothing yet", taken, err)
	}
}
