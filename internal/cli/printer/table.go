package printer

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Cell is a styled text. It may hold any text; the table sanitizes it.
type Cell struct {
	Text  string
	Style Style
}

// Table lays out cells in columns as wide as their widest cell, two spaces apart. It may be written
// in parts: it keeps its widths, so that later rows align with earlier ones. One goroutine uses it.
type Table struct {
	Colors Colors
	// Width is the largest number of columns of a line; 0 means no limit. The last cell of a line
	// is cut first, to no less than minText columns; then the line.
	Width int

	widths []int
	rows   [][]Cell
}

const (
	gap     = 2
	minText = 20
)

// SetMinWidths sets the smallest widths of columns. It must be called before the first row is
// added.
func (t *Table) SetMinWidths(widths ...int) { t.widths = widths }

// Add appends a row. The table keeps the slice.
func (t *Table) Add(cells ...Cell) {
	for i := range cells {
		cells[i].Text = Sanitize(cells[i].Text)
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

// AddStyled appends a row of one style.
func (t *Table) AddStyled(style Style, texts ...string) {
	cells := make([]Cell, len(texts))
	for i, text := range texts {
		cells[i] = Cell{Text: text, Style: style}
	}
	t.Add(cells...)
}

// WriteTo writes the rows that were added since the last call and forgets them, but not their
// widths.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	var text strings.Builder
	for _, row := range t.rows {
		t.writeRow(&text, row)
	}
	t.rows = nil
	n, err := io.WriteString(w, text.String())
	return int64(n), err
}

func (t *Table) writeRow(text *strings.Builder, row []Cell) {
	var line strings.Builder
	t.writeCells(&line, row)
	text.WriteString(fitWidth(line.String(), t.Width) + "\n")
}

func (t *Table) writeCells(text *strings.Builder, row []Cell) {
	blanks, column := 0, 0 // blanks before the next text, and the column of the next cell
	for i, cell := range row {
		content := cell.Text
		if i == len(row)-1 && t.Width > 0 {
			content = shorten(content, max(t.Width-column, minText))
		}
		if content != "" {
			text.WriteString(strings.Repeat(" ", blanks))
			text.WriteString(t.Colors.Apply(cell.Style, content))
			blanks = 0
		}
		blanks += t.widths[i] - utf8.RuneCountInString(content) + gap
		column += t.widths[i] + gap
	}
}

func shorten(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	runes := []rune(text)
	return strings.TrimRight(string(runes[:width-1]), " ") + "…"
}
