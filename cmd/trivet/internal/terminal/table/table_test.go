package table_test

import (
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/terminal"
	"github.com/trivet-dev/trivet/cmd/trivet/internal/terminal/table"
)

// written is what a table writes now.
func written(t *testing.T, rows *table.Table) string {
	t.Helper()
	var text strings.Builder
	if _, err := rows.WriteTo(&text); err != nil {
		t.Fatalf("WriteTo() = %v", err)
	}
	return text.String()
}

func TestTable_ColumnsAreAsWideAsTheirWidestCell(t *testing.T) {
	rows := &table.Table{Ink: terminal.Streams{}.Ink("always")}
	rows.AddAll(terminal.Strong, "NAME", "HEALTH", "REASON")
	rows.Add(table.Cell{Text: "größe-3"}, table.Cell{Text: "ready", Tone: terminal.Good}, table.Cell{})
	rows.Add(table.Cell{}, table.Cell{}, table.Cell{Text: "two\nlines, and wider than its title"})

	want := "\x1b[1mNAME\x1b[0m     \x1b[1mHEALTH\x1b[0m  \x1b[1mREASON\x1b[0m\n" +
		"größe-3  \x1b[32mready\x1b[0m\n" +
		"                 two�lines, and wider than its title\n"
	if got := written(t, rows); got != want {
		t.Errorf("wrote\n%q, want\n%q", got, want)
	}
}

func TestTable_RemembersItsWidths(t *testing.T) {
	rows := &table.Table{}
	rows.AddAll(terminal.Usual, "NAME", "AGE", "")
	rows.AddAll(terminal.Usual, "node-1", "3s", "x")
	if got, want := written(t, rows), "NAME    AGE\nnode-1  3s   x\n"; got != want {
		t.Errorf("wrote %q, want %q", got, want)
	}
	rows.AddAll(terminal.Usual, "n-2", "4s", "y")
	if got, want := written(t, rows), "n-2     4s   y\n"; got != want {
		t.Errorf("then wrote %q, want %q", got, want)
	}
	if got := written(t, rows); got != "" {
		t.Errorf("then wrote %q again", got)
	}
}

func TestTable_ReservesRoomForWhatComesLater(t *testing.T) {
	rows := &table.Table{}
	rows.Reserve(3, 0)
	rows.AddAll(terminal.Usual, "a", "b")
	rows.AddAll(terminal.Usual, "four", "c")
	if got, want := written(t, rows), "a     b\nfour  c\n"; got != want {
		t.Errorf("wrote %q, want %q", got, want)
	}
	rows.AddAll(terminal.Usual, "d", "e")
	if got, want := written(t, rows), "d     e\n"; got != want {
		t.Errorf("then wrote %q, want %q", got, want)
	}
}

func TestTable_CutsTheLastCellToTheTerminal(t *testing.T) {
	const reason = "its session has been silent for a minute"
	tests := []struct {
		width int
		want  string
	}{
		{width: 0, want: reason},
		{width: 8 + len(reason), want: reason},
		{width: 36, want: "its session has been silent…"}, // the blank before the next word is not kept
		{width: 30, want: "its session has been…"},
		{width: 12, want: "its session has bee…"}, // at least this much, whatever the terminal
	}
	for _, test := range tests {
		rows := &table.Table{Width: test.width}
		rows.AddAll(terminal.Usual, "node-1", reason)
		if got, want := written(t, rows), "node-1  "+test.want+"\n"; got != want {
			t.Errorf("%d columns: wrote %q, want %q", test.width, got, want)
		}
	}
}
