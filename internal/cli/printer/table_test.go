package printer_test

import (
	"strings"
	"testing"

	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// write returns what a table writes.
func write(t *testing.T, rows *printer.Table) string {
	t.Helper()
	var text strings.Builder
	if _, err := rows.WriteTo(&text); err != nil {
		t.Fatalf("WriteTo() = %v", err)
	}
	return text.String()
}

func TestTable_ColumnsAreAsWideAsTheirWidestCell(t *testing.T) {
	rows := &printer.Table{Colors: printer.Streams{}.Colors("always")}
	rows.AddStyled(printer.Bold, "NAME", "HEALTH", "REASON")
	rows.Add(printer.Cell{Text: "größe-3"}, printer.Cell{Text: "ready", Style: printer.Success}, printer.Cell{})
	rows.Add(printer.Cell{}, printer.Cell{}, printer.Cell{Text: "two\nlines, and wider than its title"})

	want := "\x1b[1mNAME\x1b[0m     \x1b[1mHEALTH\x1b[0m  \x1b[1mREASON\x1b[0m\n" +
		"größe-3  \x1b[32mready\x1b[0m\n" +
		"                 two�lines, and wider than its title\n"
	if got := write(t, rows); got != want {
		t.Errorf("wrote\n%q, want\n%q", got, want)
	}
}

func TestTable_KeepsItsWidths(t *testing.T) {
	rows := &printer.Table{}
	rows.AddStyled(printer.Normal, "NAME", "AGE", "")
	rows.AddStyled(printer.Normal, "node-1", "3s", "x")
	if got, want := write(t, rows), "NAME    AGE\nnode-1  3s   x\n"; got != want {
		t.Errorf("wrote %q, want %q", got, want)
	}
	rows.AddStyled(printer.Normal, "n-2", "4s", "y")
	if got, want := write(t, rows), "n-2     4s   y\n"; got != want {
		t.Errorf("then wrote %q, want %q", got, want)
	}
	if got := write(t, rows); got != "" {
		t.Errorf("then wrote %q again", got)
	}
}

func TestTable_MinWidthsAlignLaterRows(t *testing.T) {
	rows := &printer.Table{}
	rows.SetMinWidths(3, 0)
	rows.AddStyled(printer.Normal, "a", "b")
	rows.AddStyled(printer.Normal, "four", "c")
	if got, want := write(t, rows), "a     b\nfour  c\n"; got != want {
		t.Errorf("wrote %q, want %q", got, want)
	}
	rows.AddStyled(printer.Normal, "d", "e")
	if got, want := write(t, rows), "d     e\n"; got != want {
		t.Errorf("then wrote %q, want %q", got, want)
	}
}

func TestTable_CutsTheLastCell(t *testing.T) {
	const reason = "its session has been silent for a minute"
	tests := []struct {
		width int
		want  string
	}{
		{width: 0, want: reason},
		{width: 8 + len(reason), want: reason},
		{width: 36, want: "its session has been silent…"}, // without the blank before the next word
		{width: 30, want: "its session has been…"},
		{width: 28, want: "its session has bee…"}, // the minimum
		{width: 12, want: "its…"},                 // the line is cut
	}
	for _, test := range tests {
		rows := &printer.Table{Width: test.width}
		rows.AddStyled(printer.Normal, "node-1", reason)
		if got, want := write(t, rows), "node-1  "+test.want+"\n"; got != want {
			t.Errorf("%d columns: wrote %q, want %q", test.width, got, want)
		}
	}
}
