package list

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/cli/client"
)

const (
	// notesPeriod is how often a watch gets the notes of the source.
	notesPeriod = 5 * time.Second
	// tickPeriod is how often a view may redraw.
	tickPeriod = 200 * time.Millisecond
)

// view shows a watch. Its errors are errors of the output, which end the watch.
type view[T Item] interface {
	// beginAnew is called before the events of a stream that sends all items again.
	beginAnew() error
	// handle takes an event, in the order of the stream.
	handle(event watch.Event[T]) error
	// setNotes takes the notes of the source.
	setNotes(notes []string) error
	// disconnected takes a notice why the stream ended; another stream follows.
	disconnected(notice string) error
	// tick is called every tickPeriod.
	tick(now time.Time) error
	// synced reports whether all items were shown once.
	synced() bool
	// close is called once, after the last call of any other method.
	close() error
}

// watch shows all items and their changes until ctx is done. It reconnects to a lost gateway, but
// fails if the first connection fails.
func (l *lister[T]) watch(ctx context.Context) error {
	var goroutines sync.WaitGroup
	defer goroutines.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	updates, notes := make(chan watch.Update[T]), make(chan []string)
	goroutines.Go(func() { watch.Watch[T]{Open: l.source.Watch, Timeout: l.Timeout}.Run(ctx, updates) })
	goroutines.Go(func() { l.sendNotes(ctx, notes) })
	ticker := time.NewTicker(tickPeriod)
	defer ticker.Stop()
	view, connected := l.newView(), true
	defer func() { _ = view.close() }()
	for {
		var err error
		select {
		case <-ctx.Done():
			return client.Interrupted()
		case update := <-updates:
			if connected = update.Lost == nil; !connected && !view.synced() {
				return l.NoAnswer(ctx, "list of "+l.kind.Noun+"s", update.Lost)
			}
			err = show(view, update)
		case next := <-notes:
			if connected { // else they only repeat that the gateway is lost
				err = view.setNotes(next)
			}
		case now := <-ticker.C:
			err = view.tick(now)
		}
		if err != nil {
			return client.CannotPrint(l.kind.Noun+"s", err)
		}
	}
}

func show[T Item](view view[T], update watch.Update[T]) error {
	switch {
	case update.Anew:
		return view.beginAnew()
	case update.Lost != nil:
		return view.disconnected(LostNotice(update.Lost))
	default:
		return view.handle(*update.Event)
	}
}

// LostNotice says why a stream ended, and that another one follows.
func LostNotice(err error) string {
	if errors.Is(err, io.EOF) {
		return "stream lost: the gateway ended the stream; reconnecting"
	}
	return "stream lost: " + status.Convert(err).Message() + "; reconnecting"
}

func (l *lister[T]) newView() view[T] {
	switch {
	case l.IsDocument():
		return newEventView(l)
	case l.streams.OutIsTerminal && l.isTable() && !l.kind.AppendOnly:
		return newScreenView(l)
	default:
		return newLineView(l)
	}
}

// sendNotes sends the notes of the source every notesPeriod until ctx is done.
func (l *lister[T]) sendNotes(ctx context.Context, notes chan<- []string) {
	for l.source.Notes != nil {
		next := l.notes(ctx)
		select {
		case notes <- next:
		case <-ctx.Done():
			return
		}
		if !backoff.Sleep(ctx, notesPeriod) {
			return
		}
	}
}

// isWatched reports whether a watch is of an item. The API filters a watch, except by name.
func (l *lister[T]) isWatched(item T) bool { return l.Name == "" || l.Name == item.GetName() }

func (l *lister[T]) onlyWatched(items []T) []T {
	return slices.DeleteFunc(items, func(item T) bool { return !l.isWatched(item) })
}

// leftFilter reports whether a deleted item still exists, in a state that the filters do not
// select.
func (l *lister[T]) leftFilter(deleted T) bool {
	return l.selects != nil && l.kind.State(deleted) != "-" && !l.selects(deleted)
}
