package printer

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Screen shows one text after the other in the same place of a terminal. Each is drawn over the one before, line by line, so
// that nothing flickers; lines are cut to the terminal's width and the text to its height, because a line that wraps would
// move all that follows. The zero number of columns or lines, for a terminal that does not tell, cuts nothing.
//
// It counts a character as one column, which is so for all that Trivet says itself.
type Screen struct {
	streams Streams
	drawn   bool
}

// NewScreen returns the screen on which Out is shown. Nothing is drawn yet.
func NewScreen(streams Streams) *Screen { return &Screen{streams: streams} }

// Height is how many lines can be seen; 0 means that it is not known.
func (s *Screen) Height() int {
	_, height := s.streams.size()
	return height
}

// Show draws a text. Its colours must be those of [Ink]; what comes from elsewhere must have passed [Plain].
func (s *Screen) Show(text string) error {
	const home, clearAll, clearLine, clearBelow = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"
	width, height := s.streams.size()
	var frame strings.Builder
	if !s.drawn {
		frame.WriteString(clearAll)
	}
	frame.WriteString(home)
	for _, line := range seen(strings.Split(strings.TrimSuffix(text, "\n"), "\n"), height) {
		frame.WriteString(cut(line, width) + clearLine + "\n")
	}
	frame.WriteString(clearBelow)
	s.drawn = true
	_, err := io.WriteString(s.streams.Out, frame.String())
	return err
}

// seen is what fits above the line on which the cursor rests.
func seen(lines []string, height int) []string {
	room := height - 1
	if room < 1 || len(lines) <= room {
		return lines
	}
	return append(lines[:room-1:room-1], fmt.Sprintf("… and %d more lines", len(lines)-room+1))
}

// cut shortens a line to a width. Colours take no room, and end with the line.
func cut(line string, width int) string {
	if width < 1 || len(line) <= width {
		return line
	}
	columns, fits := 0, 0 // fits is where the last character ends that leaves room for the ellipsis
	for at := 0; at < len(line); {
		if line[at] == '\x1b' {
			at += strings.IndexByte(line[at:], 'm') + 1
			continue
		}
		_, size := utf8.DecodeRuneInString(line[at:])
		columns++
		at += size
		if columns == width-1 {
			fits = at
		}
		if columns > width {
			return ended(line[:fits] + "…")
		}
	}
	return line
}

func ended(line string) string {
	if strings.Contains(line, "\x1b") {
		return line + "\x1b[0m"
	}
	return line
}
