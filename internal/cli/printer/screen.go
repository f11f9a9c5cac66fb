package printer

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Screen shows one text after the other in the same place of a terminal. Each text overwrites the
// last one line by line, so that nothing flickers. The texts are on the alternate screen of the
// terminal, so that they do not replace what stood there before; [Screen.Close] ends that. Lines
// are cut to the width and the text to the height of the terminal, because a wrapped line would
// move all lines below it. An unknown size cuts nothing.
//
// A character counts as one column.
type Screen struct {
	streams Streams
	last    string // the last text; empty before the first
}

// NewScreen returns a screen on Out. It draws nothing yet.
func NewScreen(streams Streams) *Screen { return &Screen{streams: streams} }

// Height returns the number of visible lines; 0 if unknown.
func (s *Screen) Height() int {
	_, height := s.streams.size()
	return height
}

// Show draws a text. Its only escape sequences must be those of [Colors].
func (s *Screen) Show(text string) error {
	const enterAlternate, home, clearLine, clearBelow = "\x1b[?1049h", "\x1b[H", "\x1b[K", "\x1b[J"
	width, height := s.streams.size()
	var frame strings.Builder
	if s.last == "" {
		frame.WriteString(enterAlternate)
	}
	frame.WriteString(home)
	for _, line := range fitHeight(strings.Split(strings.TrimSuffix(text, "\n"), "\n"), height) {
		frame.WriteString(fitWidth(line, width) + clearLine + "\n")
	}
	frame.WriteString(clearBelow)
	s.last = text
	_, err := io.WriteString(s.streams.Out, frame.String())
	return err
}

// Close leaves the alternate screen and writes the last text where the cursor was before, so that
// it stays readable. It does nothing before the first text.
func (s *Screen) Close() error {
	const leaveAlternate = "\x1b[?1049l"
	if s.last == "" {
		return nil
	}
	width, _ := s.streams.size()
	var text strings.Builder
	text.WriteString(leaveAlternate)
	for line := range strings.Lines(s.last) {
		text.WriteString(fitWidth(strings.TrimSuffix(line, "\n"), width) + "\n")
	}
	s.last = ""
	_, err := io.WriteString(s.streams.Out, text.String())
	return err
}

// fitHeight leaves one line for the cursor.
func fitHeight(lines []string, height int) []string {
	visible := height - 1
	if visible < 1 || len(lines) <= visible {
		return lines
	}
	return append(lines[:visible-1:visible-1], fmt.Sprintf("… and %d more lines", len(lines)-visible+1))
}

// fitWidth shortens a line to a width. Escape sequences take no column; a cut line ends with a
// reset.
func fitWidth(line string, width int) string {
	if width < 1 || len(line) <= width {
		return line
	}
	columns, end := 0, 0 // end is the length of the longest prefix that leaves a column for the ellipsis
	for at := 0; at < len(line); {
		if line[at] == '\x1b' {
			at += strings.IndexByte(line[at:], 'm') + 1
			continue
		}
		_, size := utf8.DecodeRuneInString(line[at:])
		columns++
		at += size
		if columns == width-1 {
			end = at
		}
		if columns > width {
			return resetStyle(line[:end] + "…")
		}
	}
	return line
}

func resetStyle(line string) string {
	if strings.Contains(line, "\x1b") {
		return line + "\x1b[0m"
	}
	return line
}
