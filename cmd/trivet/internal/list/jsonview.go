package list

import (
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
)

// jsonView prints each event as a line of JSON. After a lost stream, all events come again. An item
// that is no longer selected is printed once more, so that a reader can remove it from its list.
type jsonView[T Item] struct {
	*lister[T]

	printed    map[string]bool // names of selected items that exist
	bookmarked bool
	lostNotice string // printed for the current loss of the stream; empty while connected
}

func newJSONView[T Item](l *lister[T]) *jsonView[T] {
	return &jsonView[T]{lister: l, printed: map[string]bool{}}
}

func (*jsonView[T]) startStream() {}

func (v *jsonView[T]) handle(event Event[T]) error {
	v.lostNotice = ""
	switch event.Type {
	case Put:
		name := event.Item.GetName()
		selected, wasPrinted := v.selected(event.Item), v.printed[name]
		if selected {
			v.printed[name] = true
		} else {
			delete(v.printed, name)
		}
		if !selected && !wasPrinted {
			return nil
		}
	case Delete:
		name := event.Item.GetName()
		if !v.printed[name] {
			return nil
		}
		delete(v.printed, name)
	case Bookmark:
		v.bookmarked = true
	case UnknownEvent:
	}
	if event.Message == nil {
		return nil
	}
	line, err := printer.JSONLine(event.Message)
	if err != nil {
		return err
	}
	_, err = v.streams.Out.Write(append(line, '\n'))
	return err
}

func (*jsonView[T]) setNotes([]string) error { return nil }

func (v *jsonView[T]) disconnected(notice string) error {
	if notice != v.lostNotice {
		v.printNotes(notice)
	}
	v.lostNotice = notice
	return nil
}

func (*jsonView[T]) tick(time.Time) error { return nil }

func (v *jsonView[T]) synced() bool { return v.bookmarked }
