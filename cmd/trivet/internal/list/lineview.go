package list

import (
	"slices"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
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
	v := &lineView[T]{lister: l, store: newStore(l.kind), table: l.newTable()}
	var widths []int
	for _, column := range l.kind.Columns {
		if l.shows(column) {
			widths = append(widths, column.MinWidth)
		}
	}
	v.table.SetMinWidths(widths...)
	return v
}

func (v *lineView[T]) startStream() { v.store.startStream() }

func (v *lineView[T]) handle(event Event[T]) error {
	v.lostNotice = ""
	switch event.Type {
	case Put:
		last, existed, changed := v.store.put(event.Item)
		if v.listed && changed && (v.selected(event.Item) || existed && v.selected(last)) {
			return v.printItems(withoutStale(v.kind, event.Item))
		}
	case Delete:
		last, existed := v.store.remove(event.Item.GetName())
		switch {
		case !v.listed || !existed || !v.selected(last):
		case v.kind.DeleteHasState:
			return v.printItems(event.Item)
		default:
			return v.printDeleted(last)
		}
	case Bookmark:
		return v.handleBookmark(event)
	case UnknownEvent:
	}
	return nil
}

func (v *lineView[T]) handleBookmark(event Event[T]) error {
	missing := missingNotes(event.Missing)
	switch {
	case slices.Equal(missing, v.missing):
	case len(missing) == 0:
		v.printNotes("complete: all replicas answer")
	default:
		v.printNotes(missing...)
	}
	v.missing = missing
	switch {
	case !v.listed:
		v.listed = true
		return v.printList()
	case len(missing) == 0:
		return v.printDeleted(v.onlySelected(v.store.prune())...)
	}
	return nil
}

func (v *lineView[T]) printList() error {
	items := v.onlySelected(v.store.items())
	if err := v.printItems(items...); err != nil {
		return err
	}
	if v.isTable() {
		v.printNotes(v.kind.Summary(items))
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
		v.addTitles(v.table)
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
		v.printNotes(notes...)
	}
	v.lastNotes = notes
	return nil
}

func (v *lineView[T]) disconnected(notice string) error {
	if notice != v.lostNotice { // each attempt may fail in the same way, for hours
		v.printNotes(notice)
	}
	v.lostNotice = notice
	return nil
}

func (*lineView[T]) tick(time.Time) error { return nil }

func (v *lineView[T]) synced() bool { return v.listed }
