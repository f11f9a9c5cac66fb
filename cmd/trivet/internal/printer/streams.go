// Package terminal is where a command of trivet writes: data to standard output, everything else to standard error, in
// colour where a person looks at it.
//
// What comes from elsewhere, names of replicas as much as error messages, passes through [Plain] before it is written, so
// that nobody steers the reader's terminal by calling a replica an escape sequence.
package printer

import (
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// Streams are a command's outputs, its input, and surroundings.
type Streams struct {
	// Out takes data and nothing else; Err takes progress and errors.
	Out, Err io.Writer
	// OutIsTerminal and ErrIsTerminal say whether a person looks at them now.
	OutIsTerminal, ErrIsTerminal bool
	// In is what a person types where InIsTerminal; nothing reads it elsewhere.
	In           io.Reader
	InIsTerminal bool
	// Env looks up an environment variable, as os.Getenv does.
	Env func(string) string
	// Size is how many columns and lines the terminal of Out has now; nil or zeros where that is not known.
	Size func() (width, height int)
}

// Standard is the process's own streams.
func Standard() Streams {
	return Streams{
		Out: os.Stdout, Err: os.Stderr,
		OutIsTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		ErrIsTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		In:            os.Stdin,
		InIsTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		Env:           os.Getenv,
		Size: func() (width, height int) {
			width, height, err := term.GetSize(int(os.Stdout.Fd()))
			if err != nil {
				return 0, 0
			}
			return width, height
		},
	}
}

// Width is how many columns a line written to Out may have; 0 means that nothing limits it.
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

// Ink returns the ink for Out: by mode "always" or "never"; by "auto" in colour on a terminal, unless NO_COLOR is set (see
// no-color.org) or the terminal is dumb.
func (s Streams) Ink(mode string) Ink {
	switch mode {
	case "always":
		return Ink{coloured: true}
	case "never":
		return Ink{}
	default:
		return Ink{coloured: s.OutIsTerminal && s.Env("NO_COLOR") == "" && s.Env("TERM") != "dumb"}
	}
}

// Plain replaces what could move the cursor, colour or reorder the text around it: control characters, line breaks and
// Unicode's formatting characters.
func Plain(text string) string {
	if isPrintableASCII(text) { // nearly all that is ever written, in lists of many thousands
		return text
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

func isPrintableASCII(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}
