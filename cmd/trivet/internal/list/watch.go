package list

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
)

const (
	// reconnectDelay is the pause before a broken stream is opened again.
	reconnectDelay = time.Second
	// notesPeriod is how often a watch gets the notes of the source.
	notesPeriod = 5 * time.Second
	// tickPeriod is how often a view may redraw.
	tickPeriod = 200 * time.Millisecond
)

// view shows a watch. Its errors are errors of the output, which end the watch.
type view[T Item] interface {
	// startStream is called before the events of each stream.
	startStream()
	// handle takes an event, in the order of the stream.
	handle(event Event[T]) error
	// setNotes takes the notes of the source.
	setNotes(notes []string) error
	// disconnected takes a notice why the stream ended; another stream follows.
	disconnected(notice string) error
	// tick is called every tickPeriod.
	tick(now time.Time) error
	// synced reports whether all items were shown once.
	synced() bool
}

// errOutput marks errors of writing.
var errOutput = errors.New("standard output is closed")

// watch shows all items and their changes until ctx is done. It reconnects to a lost gateway, but
// fails if the first connection fails.
func (l *lister[T]) watch(ctx context.Context) error {
	view := l.newView()
	for {
		err := l.followStream(ctx, view)
		if ctx.Err() != nil {
			return client.Interrupted()
		}
		if errors.Is(err, errOutput) {
			return client.CannotPrint(l.kind.Noun+"s", err)
		}
		if !view.synced() {
			return l.NoAnswer(ctx, "list of "+l.kind.Noun+"s", err)
		}
		if err := view.disconnected("stream lost: " + streamError(err) + "; reconnecting"); err != nil {
			return client.CannotPrint(l.kind.Noun+"s", err)
		}
		if !client.Sleep(ctx, reconnectDelay) {
			return client.Interrupted()
		}
	}
}

func streamError(err error) string {
	if errors.Is(err, io.EOF) {
		return "the gateway ended the stream"
	}
	return status.Convert(err).Message()
}

func (l *lister[T]) newView() view[T] {
	switch {
	case l.Output == "json":
		return newJSONView(l)
	case l.streams.OutIsTerminal && l.isTable():
		return newScreenView(l)
	default:
		return newLineView(l)
	}
}

// followStream shows one stream until it ends. The returned error is the reason and never nil.
func (l *lister[T]) followStream(ctx context.Context, view view[T]) error {
	var goroutines sync.WaitGroup
	defer goroutines.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Before the first bookmark, silence means that the gateway hangs. Later it is normal, and a
	// lost connection ends the stream.
	timeout := time.AfterFunc(l.Timeout, func() { cancel(fmt.Errorf("no message from the gateway for %s", l.Timeout)) })
	defer timeout.Stop()
	receive, err := l.source.Watch(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	events, notes := make(chan received[T]), make(chan []string)
	goroutines.Go(func() { sendEvents(ctx, receive, events) })
	goroutines.Go(func() { l.sendNotes(ctx, notes) })
	view.startStream()
	ticker := time.NewTicker(tickPeriod)
	defer ticker.Stop()
	for bookmarked := false; ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case next := <-events:
			if next.err != nil {
				return cause(ctx, next.err)
			}
			if bookmarked = bookmarked || next.event.Type == Bookmark; bookmarked {
				timeout.Stop()
			} else {
				timeout.Reset(l.Timeout)
			}
			err = view.handle(next.event)
		case next := <-notes:
			err = view.setNotes(next)
		case now := <-ticker.C:
			err = view.tick(now)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errOutput, err)
		}
	}
}

// cause returns the cause of ctx if it is done, because err is then only its consequence.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

type received[T Item] struct {
	event Event[T]
	err   error
}

// sendEvents sends the events of a stream until ctx is done. The error of the stream comes last.
func sendEvents[T Item](ctx context.Context, receive Receive[T], events chan<- received[T]) {
	for {
		event, err := receive()
		select {
		case events <- received[T]{event: event, err: err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// sendNotes sends the notes of the source every notesPeriod until ctx is done.
func (l *lister[T]) sendNotes(ctx context.Context, notes chan<- []string) {
	for {
		next := l.notes(ctx)
		select {
		case notes <- next:
		case <-ctx.Done():
			return
		}
		if !client.Sleep(ctx, notesPeriod) {
			return
		}
	}
}

// selected reports whether a watch shows an item.
func (l *lister[T]) selected(item T) bool {
	return (l.Name == "" || l.Name == item.GetName()) && (l.selects == nil || l.selects(item))
}

func (l *lister[T]) onlySelected(items []T) []T {
	return slices.DeleteFunc(items, func(item T) bool { return !l.selected(item) })
}
