package printer

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"
)

// Screen shows one text after the other in the same place of a terminal. Each text overwrites the
// last one line by line, so that nothing flickers. The texts are on the alternate screen of the
// terminal, so that they do not replace what stood there before; [Screen.Close] ends that. Lines
// are cut to the width and the text to the height of the terminal, because a wrapped line would
// move all lines below it. An unknown size cuts nothing.
//
// A character counts as one column. While Ctrl-Z has stopped the process, the terminal shows what
// stood there before.
type Screen struct {
	streams Streams
	ended   chan struct{} // closed by Close; nil before the first text

	mu   sync.Mutex // guards last, and the order of what is written
	last string     // the last text; empty before the first
}

const enterAlternate, leaveAlternate = "\x1b[?1049h", "\x1b[?1049l"

// NewScreen returns a screen on Out. It draws nothing yet.
func NewScreen(streams Streams) *Screen { return &Screen{streams: streams} }

// Height returns the number of visible lines; 0 if unknown.
func (s *Screen) Height() int {
	_, height := s.streams.size()
	return height
}

// Show draws a text. Its only escape sequences must be those of [Colors].
func (s *Screen) Show(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != "" {
		return s.draw("", text)
	}
	s.ended = make(chan struct{})
	stops := make(chan os.Signal, 1)
	signal.Notify(stops, syscall.SIGTSTP)
	go s.followStops(stops, s.ended)
	return s.draw(enterAlternate, text)
}

// draw writes a text behind a prefix. The caller holds the lock.
func (s *Screen) draw(prefix, text string) error {
	const home, clearLine, clearBelow = "\x1b[H", "\x1b[K", "\x1b[J"
	width, height := s.streams.size()
	var frame strings.Builder
	frame.WriteString(prefix + home)
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == "" {
		return nil
	}
	close(s.ended)
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

// followStops leaves the alternate screen before the process stops, and draws the last text again
// when it goes on.
func (s *Screen) followStops(stops chan os.Signal, ended <-chan struct{}) {
	defer signal.Stop(stops)
	for {
		select {
		case <-ended:
			return
		case <-stops:
		}
		s.mu.Lock()
		_, _ = io.WriteString(s.streams.Out, leaveAlternate) // the next text has the error
		goesOn := make(chan os.Signal, 1)
		signal.Notify(goesOn, syscall.SIGCONT)
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP) // the Go runtime does not restore the action of SIGTSTP
		<-goesOn
		signal.Stop(goesOn)
		if s.last != "" {
			_ = s.draw(enterAlternate, s.last)
		}
		s.mu.Unlock()
	}
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
