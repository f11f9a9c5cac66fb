package list

import (
	"slices"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// lineView prints the list, and then a line for each change.
type lineView[T Item] struct {
	*lister[T]

	store      *store[T]
	table      *printer.Table
	listed     bool // the whole list was printed
	hasTitles  bool
	lastNotes  []string
	missing    []string // the last printed notes about missing parts
	lostNotice string   // printed for the current loss of the stream; empty while connected
}

func newLineView[T Item](l *lister[T]) *lineView[T] {
	v := &lineView[T]{lister: l, store: newStore(l.kind), table: l.NewTable()}
	var widths []int
	for _, column := range l.kind.Columns {
		if l.shows(column) {
			widths = append(widths, column.MinWidth)
		}
	}
	v.table.SetMinWidths(widths...)
	return v
}

func (v *lineView[T]) beginAnew() error {
	v.store.beginAnew()
	return nil
}

func (v *lineView[T]) handle(event watch.Event[T]) error {
	v.lostNotice = ""
	switch event.Type {
	case metav1.EventType_EVENT_TYPE_ADDED, metav1.EventType_EVENT_TYPE_MODIFIED:
		if v.store.put(event.Item) && v.listed && v.isWatched(event.Item) {
			return v.printItems(withoutStale(v.kind, event.Item))
		}
	case metav1.EventType_EVENT_TYPE_DELETED:
		last, existed := v.store.remove(event.Item.GetName())
		switch {
		case !v.listed || !existed || !v.isWatched(last) || v.kind.AppendOnly:
		case v.leftFilter(event.Item):
			return v.printItems(event.Item)
		default:
			return v.printDeleted(last)
		}
	case metav1.EventType_EVENT_TYPE_BOOKMARK:
		return v.handleBookmark(event)
	}
	return nil // a type of a later version of the API
}

func (v *lineView[T]) handleBookmark(event watch.Event[T]) error {
	missing := printer.Missing(event.Bookmark.GetMissing())
	switch {
	case slices.Equal(missing, v.missing):
	case len(missing) == 0:
		v.Note("complete: no part is missing")
	default:
		v.Warn(missing...)
	}
	v.missing = missing
	switch v.store.bookmark(event); {
	case !v.listed && event.EndsInitial():
		v.listed = true
		return v.printList()
	case v.listed:
		pruned := v.store.prune()
		if v.kind.AppendOnly {
			return nil
		}
		return v.printDeleted(v.onlyWatched(pruned)...)
	}
	return nil
}

func (v *lineView[T]) printList() error {
	items := v.onlyWatched(v.store.items())
	if err := v.sort(items); err != nil {
		return err
	}
	if err := v.printItems(items...); err != nil {
		return err
	}
	if v.isTable() {
		v.Note(v.kind.Summary(items))
	}
	return nil
}

func (v *lineView[T]) printItems(items ...T) error { return v.printRows(v.kind.Row, items) }

// printDeleted prints items with their last row and the state "deleted".
func (v *lineView[T]) printDeleted(items ...T) error {
	return v.printRows(func(now time.Time, item T) []printer.Cell {
		cells := slices.Clone(v.kind.Row(now, item))
		for i, column := range v.kind.Columns {
			if column.State {
				cells[i] = printer.Cell{Text: "deleted", Style: printer.Dim}
			}
		}
		return cells
	}, items)
}

func (v *lineView[T]) printRows(row func(time.Time, T) []printer.Cell, items []T) error {
	if !v.isTable() {
		return v.printNames(items...)
	}
	if len(items) > 0 && !v.hasTitles && !v.NoHeaders {
		v.hasTitles = true
		v.table.AddStyled(printer.Bold, v.titles()...)
	}
	now := time.Now()
	for _, item := range items {
		v.addRow(v.table, row(now, item))
	}
	_, err := v.table.WriteTo(v.streams.Out)
	return err
}

func (v *lineView[T]) setNotes(notes []string) error {
	if v.isTable() && !slices.Equal(notes, v.lastNotes) {
		v.Note(notes...)
	}
	v.lastNotes = notes
	return nil
}

func (v *lineView[T]) disconnected(notice string) error {
	if notice != v.lostNotice { // each attempt may fail in the same way, for hours
		v.Warn(notice)
	}
	v.lostNotice = notice
	return nil
}

func (*lineView[T]) tick(time.Time) error { return nil }

func (v *lineView[T]) synced() bool { return v.listed }

func (v *lineView[T]) close() error { return nil }
