package list

import (
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// eventView prints each event in a form for programs.
type eventView[T Item] struct {
	*lister[T]

	bookmarked bool
	lostNotice string // printed for the current loss of the stream; empty while connected
}

func newEventView[T Item](l *lister[T]) *eventView[T] { return &eventView[T]{lister: l} }

// beginAnew tells a reader that keeps its own list to begin it anew, too.
func (v *eventView[T]) beginAnew() error {
	if v.bookmarked && v.lostNotice != "" {
		v.Warn("the watch cannot be resumed; all items come again")
	}
	return nil
}

func (v *eventView[T]) handle(event watch.Event[T]) error {
	v.lostNotice = ""
	v.bookmarked = v.bookmarked || event.EndsInitial()
	if event.Type != metav1.EventType_EVENT_TYPE_BOOKMARK && !v.isWatched(event.Item) ||
		event.Type == metav1.EventType_EVENT_TYPE_DELETED && v.kind.AppendOnly {
		return nil
	}
	return printer.WriteEvent(v.streams.Out, v.Output, event.Message)
}

func (*eventView[T]) setNotes([]string) error { return nil }

func (v *eventView[T]) disconnected(notice string) error {
	if notice != v.lostNotice {
		v.Warn(notice)
	}
	v.lostNotice = notice
	return nil
}

func (*eventView[T]) tick(time.Time) error { return nil }

func (v *eventView[T]) synced() bool { return v.bookmarked }

func (v *eventView[T]) close() error { return nil }
