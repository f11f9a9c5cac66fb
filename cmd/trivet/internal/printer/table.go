// Package table lays out cells in columns as wide as their widest cell, two spaces apart, with nothing at the ends of lines.
//
// A table may be written piece by piece: it remembers its widths, so that what is added later stands below what was written
// before, and only moves to the right where a wider cell came. Cells may hold anything; they pass Plain.
package printer

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Cell is a text in a tone.
type Cell struct {
	Text string
	Tone Tone
}

// Table collects rows and writes them. It is used by one goroutine.
type Table struct {
	// Ink is what it is written in.
	Ink Ink
	// Width is how many columns of a terminal a line may take; 0 means any number. Only the last cell of a line is ever cut,
	// and never to less than leastText, because a name that is cut is no name.
	Width int

	widths []int
	rows   [][]Cell
}

const (
	gap       = 2
	leastText = 20
)

// Reserve makes columns at least so wide. It is called before the first row is added.
func (t *Table) Reserve(widths ...int) { t.widths = widths }

// Add appends a row. The table keeps the slice.
func (t *Table) Add(cells ...Cell) {
	for i := range cells {
		cells[i].Text = Plain(cells[i].Text)
		width := utf8.RuneCountInString(cells[i].Text)
		switch {
		case i == len(t.widths):
			t.widths = append(t.widths, width)
		case i < len(cells)-1 || i < len(t.widths)-1:
			t.widths[i] = max(t.widths[i], width)
		}
	}
	t.rows = append(t.rows, cells)
}

// AddAll appends a row of one tone.
func (t *Table) AddAll(tone Tone, texts ...string) {
	cells := make([]Cell, len(texts))
	for i, text := range texts {
		cells[i] = Cell{Text: text, Tone: tone}
	}
	t.Add(cells...)
}

// WriteTo writes the rows that were added since the last time and forgets them, keeping the widths.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	var text strings.Builder
	for _, row := range t.rows {
		t.line(&text, row)
	}
	t.rows = nil
	n, err := io.WriteString(w, text.String())
	return int64(n), err
}

func (t *Table) line(text *strings.Builder, row []Cell) {
	pending, column := 0, 0 // blanks to write before the next text, and where that one begins
	for i, cell := range row {
		words := cell.Text
		if i == len(row)-1 && t.Width > 0 {
			words = shortened(words, max(t.Width-column, leastText))
		}
		if words != "" {
			text.WriteString(strings.Repeat(" ", pending))
			text.WriteString(t.Ink.Dye(cell.Tone, words))
			pending = 0
		}
		pending += t.widths[i] - utf8.RuneCountInString(words) + gap
		column += t.widths[i] + gap
	}
	text.WriteByte('\n')
}

func shortened(words string, width int) string {
	if utf8.RuneCountInString(words) <= width {
		return words
	}
	runes := []rune(words)
	return strings.TrimRight(string(runes[:width-1]), " ") + "…"
}
