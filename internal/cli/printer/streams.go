// Package printer writes what commands of trivet show: streams, colours, tables, JSON and YAML,
// numbers and ages.
//
// Data goes to standard output, everything else to standard error. Text from a cluster passes
// through [Sanitize] before it is written, so that the name of a replica cannot control the
// reader's terminal.
package printer

import (
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"
)

// Streams are the outputs, the input and the surroundings of a command.
type Streams struct {
	// Out takes data and nothing else. Err takes progress and errors.
	Out, Err io.Writer
	// OutIsTerminal and ErrIsTerminal say whether the output is a terminal.
	OutIsTerminal, ErrIsTerminal bool
	// In is read only if InIsTerminal.
	In           io.Reader
	InIsTerminal bool
	// Env looks up an environment variable, as os.Getenv does.
	Env func(string) string
	// Size returns the columns and lines of the terminal; nil or zeros if unknown.
	Size func() (width, height int)
	// ProgressDelay is how long a call may take before the command says what it waits for; 0 means
	// two seconds.
	ProgressDelay time.Duration
}

// Standard returns the streams of the process.
func Standard() Streams {
	return Streams{
		Out: os.Stdout, Err: os.Stderr,
		OutIsTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		ErrIsTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		In:            os.Stdin,
		InIsTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		Env:           os.Getenv,
		Size: func() (width, height int) {
			for _, output := range []*os.File{os.Stdout, os.Stderr} { // one of them may be a pipe
				if width, height, err := term.GetSize(int(output.Fd())); err == nil {
					return width, height
				}
			}
			return 0, 0
		},
	}
}

// Width returns the largest number of columns of a line on Out; 0 means no limit.
func (s Streams) Width() int {
	width, _ := s.size()
	return width
}

func (s Streams) size() (width, height int) {
	if !s.OutIsTerminal || s.Size == nil {
		return 0, 0
	}
	return s.Size()
}

// errWidth returns the largest number of columns of a line on Err; 0 means no limit.
func (s Streams) errWidth() int {
	if !s.ErrIsTerminal || s.Size == nil {
		return 0
	}
	width, _ := s.Size()
	return width
}

// Colors returns the colours for Out. The mode is "always", "never" or "auto": colours on a
// terminal, unless NO_COLOR is set (no-color.org) or the terminal is dumb.
func (s Streams) Colors(mode string) Colors {
	switch mode {
	case "always":
		return Colors{enabled: true}
	case "never":
		return Colors{}
	default:
		return Colors{enabled: s.OutIsTerminal && s.Env("NO_COLOR") == "" && s.Env("TERM") != "dumb"}
	}
}

// Style is the meaning of a text, from which its colour follows.
type Style int

// The styles.
const (
	Normal Style = iota
	Success
	Warning
	Failure
	Bold
	Dim
)

// Colors applies styles to text. The zero value applies none.
type Colors struct{ enabled bool }

// Apply returns the text with the escape sequences of its style.
func (c Colors) Apply(style Style, text string) string {
	codes := [...]string{Normal: "", Success: "32", Warning: "33", Failure: "31", Bold: "1", Dim: "2"}
	if !c.enabled || text == "" || codes[style] == "" {
		return text
	}
	return "\x1b[" + codes[style] + "m" + text + "\x1b[0m"
}

// Sanitize replaces control characters, line breaks and Unicode's formatting characters. They could
// move the cursor, or colour or reorder the text around them.
func Sanitize(text string) string {
	if isPrintableASCII(text) { // nearly always, in lists of many thousands
		return text
	}
	return strings.Map(func(r rune) rune {
		if isControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

func isControl(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

func isPrintableASCII(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}
