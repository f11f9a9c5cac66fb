package printer_test

import (
	"testing"

	"github.com/trivet-dev/trivet/internal/cli/printer"
)

func TestColors_DependOnModeTerminalAndEnvironment(t *testing.T) {
	const coloured, plain = "\x1b[32mwell\x1b[0m", "well"
	tests := []struct {
		name     string
		mode     string
		terminal bool
		env      map[string]string
		want     string
	}{
		{name: "auto on a terminal", mode: "auto", terminal: true, want: coloured},
		{name: "auto in a pipe", mode: "auto", want: plain},
		{name: "NO_COLOR on a terminal", mode: "auto", terminal: true, env: map[string]string{"NO_COLOR": "1"}, want: plain},
		{name: "dumb terminal", mode: "auto", terminal: true, env: map[string]string{"TERM": "dumb"}, want: plain},
		{name: "always in a pipe", mode: "always", env: map[string]string{"NO_COLOR": "1"}, want: coloured},
		{name: "never on a terminal", mode: "never", terminal: true, want: plain},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			streams := printer.Streams{OutIsTerminal: test.terminal, Env: func(name string) string { return test.env[name] }}
			if got := streams.Colors(test.mode).Apply(printer.Success, "well"); got != test.want {
				t.Errorf("Apply() = %q, want %q", got, test.want)
			}
		})
	}
}

func TestSanitize_RemovesControlAndFormattingCharacters(t *testing.T) {
	tests := []struct{ text, want string }{
		{text: "node-1-x7k2p: größer ≥ 3 次", want: "node-1-x7k2p: größer ≥ 3 次"},
		{text: "\x1b[2Jgone", want: "�[2Jgone"},
		{text: "\u009b31mred", want: "�31mred"},
		{text: "two\nlines\ttab\r", want: "two�lines�tab�"},
		{text: "right\u202eleft\u200b", want: "right�left�"},
	}
	for _, test := range tests {
		if got := printer.Sanitize(test.text); got != test.want {
			t.Errorf("Sanitize(%q) = %q, want %q", test.text, got, test.want)
		}
	}
}
