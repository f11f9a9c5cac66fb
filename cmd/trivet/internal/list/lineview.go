package list

import (
	"slices"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
)

// lines is a watch as text that grows: the list as it is at first, then a line for each change.
type lines[T Item] struct {
	session *Session[T]
	fleet   *fleet[T]
	rows    *printer.Table
	// told is whether the list was shown, titled whether a row was.
	told, titled bool
	// missing and noted are what was said last.
	missing, noted []string
	notice         string // of the loss that lasts; empty while there is none
}

func newLines[T Item](s *Session[T]) *lines[T] {
	l := &lines[T]{session: s, fleet: newFleet(s.Kind), rows: s.newTable()}
	l.rows.Reserve(s.leastWidths()...)
	return l
}

func (l *lines[T]) begin() { l.fleet.begin() }

func (l *lines[T]) event(event Event[T]) error {
	l.notice = ""
	switch event.Type {
	case Present:
		before, existed, differs := l.fleet.put(event.Item)
		if l.told && differs && (l.session.Wanted(event.Item) || existed && l.session.Wanted(before)) {
			return l.write(false, l.session.Kind.Watched(event.Item))
		}
	case Deleted:
		before, existed := l.fleet.remove(event.Item.GetName())
		switch {
		case !l.told || !existed || !l.session.Wanted(before):
		case l.session.Kind.TellsEnd:
			return l.write(false, event.Item)
		default:
			return l.write(true, before)
		}
	case Bookmark:
		return l.bookmark(event)
	case Other:
	}
	return nil
}

func (l *lines[T]) bookmark(event Event[T]) error {
	missing := absences(event.Missing)
	switch {
	case slices.Equal(missing, l.missing):
	case len(missing) == 0:
		l.session.say("nothing is missing any more")
	default:
		l.session.say(missing...)
	}
	l.missing = missing
	if !l.told {
		l.told = true
		return l.first()
	}
	if len(missing) > 0 {
		return nil
	}
	return l.write(true, wanted(l.session, l.fleet.settle())...)
}

// first shows the list.
func (l *lines[T]) first() error {
	items := wanted(l.session, l.fleet.items())
	if err := l.write(false, items...); err != nil {
		return err
	}
	if l.session.tabular() {
		l.session.say(l.session.Kind.Tally(items))
	}
	return nil
}

func (l *lines[T]) write(gone bool, items ...T) error {
	if !l.session.tabular() {
		return l.session.printNames(items...)
	}
	if len(items) > 0 && !l.titled && !l.session.NoHeaders {
		l.titled = true
		l.session.addTitles(l.rows)
	}
	now := time.Now()
	for _, item := range items {
		if gone {
			l.session.addRow(l.rows, l.session.gone(now, item))
		} else {
			l.session.addRow(l.rows, l.session.Kind.Row(now, item))
		}
	}
	_, err := l.rows.WriteTo(l.session.Streams.Out)
	return err
}

func (l *lines[T]) notes(notes []string) error {
	if l.session.tabular() && !slices.Equal(notes, l.noted) {
		l.session.say(notes...)
	}
	l.noted = notes
	return nil
}

func (l *lines[T]) lost(notice string) error {
	if notice != l.notice { // an attempt a second may fail the same way for hours
		l.session.say(notice)
	}
	l.notice = notice
	return nil
}

func (*lines[T]) tick(time.Time) error { return nil }

func (l *lines[T]) began() bool { return l.told }

// wanted is what a watch shows of some things.
func wanted[T Item](s *Session[T], items []T) []T {
	return slices.DeleteFunc(items, func(item T) bool { return !s.Wanted(item) })
}
