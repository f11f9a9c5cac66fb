package list

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
)

// print writes a list in the chosen form.
func (s *Session[T]) print(list Page[T]) error {
	switch s.Output {
	case "json":
		return s.printJSON(s.Source.Answer(list))
	case "name":
		return s.printNames(list.Items...)
	default:
		return s.printTable(list.Items)
	}
}

func (s *Session[T]) printJSON(answer proto.Message) error {
	return printer.WriteJSON(s.Streams.Out, answer)
}

func (s *Session[T]) printNames(items ...T) error {
	var names []byte
	for _, item := range items {
		names = append(append(names, printer.Plain(item.GetName())...), '\n')
	}
	_, err := s.Streams.Out.Write(names)
	return err
}

// printTable writes a table, and nothing at all when it would have no row.
func (s *Session[T]) printTable(items []T) error {
	if len(items) == 0 {
		return nil
	}
	rows := s.newTable()
	if !s.NoHeaders {
		s.addTitles(rows)
	}
	now := time.Now()
	for _, item := range items {
		s.addRow(rows, s.Kind.Row(now, item))
	}
	_, err := rows.WriteTo(s.Streams.Out)
	return err
}

// newTable returns an empty table. The wide form is for those who want to see everything, so nothing in it is cut.
func (s *Session[T]) newTable() *printer.Table {
	rows := &printer.Table{Ink: s.Streams.Ink(s.Color)}
	if s.Output == "table" {
		rows.Width = s.Streams.Width()
	}
	return rows
}

func (s *Session[T]) addTitles(rows *printer.Table) {
	var titles []string
	for _, column := range s.Kind.Columns {
		if s.has(column) {
			titles = append(titles, column.Title)
		}
	}
	rows.AddAll(printer.Strong, titles...)
}

func (s *Session[T]) leastWidths() []int {
	var widths []int
	for _, column := range s.Kind.Columns {
		if s.has(column) {
			widths = append(widths, column.Width)
		}
	}
	return widths
}

func (s *Session[T]) addRow(rows *printer.Table, cells []printer.Cell) {
	var shown []printer.Cell
	for i, column := range s.Kind.Columns {
		if s.has(column) {
			shown = append(shown, cells[i])
		}
	}
	rows.Add(shown...)
}

func (s *Session[T]) has(column Column) bool { return !column.Wide || s.Output == "wide" }

// gone is the row of what was deleted: as it was last, with that word for its state.
func (s *Session[T]) gone(now time.Time, item T) []printer.Cell {
	cells := slices.Clone(s.Kind.Row(now, item))
	for i, column := range s.Kind.Columns {
		if column.State {
			cells[i] = printer.Cell{Text: "deleted", Tone: printer.Faint}
		}
	}
	return cells
}
