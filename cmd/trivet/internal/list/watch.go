package list

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/client"
)

const (
	// reconnectPause is how long to wait before a broken stream is opened again.
	reconnectPause = time.Second
	// notesPeriod is how often a watch asks for the source's notes.
	notesPeriod = 5 * time.Second
	// tickPeriod is how often a display may do what is due by time.
	tickPeriod = 200 * time.Millisecond
)

// display shows what a watch tells. Its errors are those of the output, after which watching is pointless.
type display[T Item] interface {
	// begin is called before the events of each stream.
	begin()
	// event takes one event, in the order of its stream.
	event(event Event[T]) error
	// notes takes the source's notes.
	notes(notes []string) error
	// lost says that the stream ended, and why; another one follows.
	lost(notice string) error
	// tick is called every tickPeriod.
	tick(now time.Time) error
	// began says whether everything was shown once.
	began() bool
}

// errDisplay marks failures to write.
var errDisplay = errors.New("standard output is gone")

// Watch shows everything and its changes until it is interrupted. A gateway that goes away is waited for; one that was never
// there ends the command.
func (s *Session[T]) Watch(ctx context.Context) error {
	shown := s.newDisplay()
	for {
		err := s.follow(ctx, shown)
		if ctx.Err() != nil {
			return client.Interrupted()
		}
		if errors.Is(err, errDisplay) {
			return client.Unprinted(s.Kind.Noun+"s", err)
		}
		if !shown.began() {
			return s.Unanswered(ctx, "list of "+s.Kind.Noun+"s", err)
		}
		if err := shown.lost("no longer live: " + words(err) + "; trying again"); err != nil {
			return client.Unprinted(s.Kind.Noun+"s", err)
		}
		if !client.Pause(ctx, reconnectPause) {
			return client.Interrupted()
		}
	}
}

func words(err error) string {
	if errors.Is(err, io.EOF) {
		return "the gateway ended the stream"
	}
	return status.Convert(err).Message()
}

func (s *Session[T]) newDisplay() display[T] {
	switch {
	case s.Output == "json":
		return newRecords(s)
	case s.Streams.OutIsTerminal && s.tabular():
		return newFrames(s)
	default:
		return newLines(s)
	}
}

// follow shows one stream until it ends. How it ended is the error, never nil.
func (s *Session[T]) follow(ctx context.Context, shown display[T]) error {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A gateway that hangs says nothing. Once everything was told, silence is normal, and a lost connection ends the stream.
	patience := time.AfterFunc(s.Timeout, func() { cancel(fmt.Errorf("the gateway said nothing for %s", s.Timeout)) })
	defer patience.Stop()
	receive, err := s.Source.Watch(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	events, notes := make(chan received[T]), make(chan []string)
	work.Go(func() { pump(ctx, receive, events) })
	work.Go(func() { s.pumpNotes(ctx, notes) })
	shown.begin()
	ticks := time.NewTicker(tickPeriod)
	defer ticks.Stop()
	for told := false; ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case next := <-events:
			if next.err != nil {
				return cause(ctx, next.err)
			}
			if told = told || next.event.Type == Bookmark; told {
				patience.Stop()
			} else {
				patience.Reset(s.Timeout)
			}
			err = shown.event(next.event)
		case said := <-notes:
			err = shown.notes(said)
		case now := <-ticks.C:
			err = shown.tick(now)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errDisplay, err)
		}
	}
}

// cause prefers why we ended a stream to how that looked.
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

// pump hands on what a stream tells, until ctx ends; the last is the error that ended the stream.
func pump[T Item](ctx context.Context, receive func() (Event[T], error), events chan<- received[T]) {
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

// pumpNotes asks for the notes again and again, until ctx ends.
func (s *Session[T]) pumpNotes(ctx context.Context, notes chan<- []string) {
	for {
		said := s.notes(ctx)
		select {
		case notes <- said:
		case <-ctx.Done():
			return
		}
		if !client.Pause(ctx, notesPeriod) {
			return
		}
	}
}
