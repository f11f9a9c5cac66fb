package printer_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// controls says whether a text would control a terminal.
func controls(text string) bool {
	return !utf8.ValidString(text) || strings.IndexFunc(text, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }) >= 0
}

// No text of a server, such as a reason or a message, controls the terminal.
func FuzzSanitize(f *testing.F) {
	for _, text := range []string{"", "plain", "\x1b[2J", "a\r\nb", "\u202egnp", "\u2028", "\xff\xfe", "\xc2\x9b31m", "é", "\U000e0041"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := printer.Sanitize(text)
		if controls(got) || printer.Sanitize(got) != got {
			t.Errorf("Sanitize(%q) = %q", text, got)
		}
	})
}

// A template over any JSON ends in bounded time, and lets no control character of the data through.
func FuzzJSONPath(f *testing.F) {
	const data = `{"nodes":[{"name":"a","n":1,"t":"\u001b[2J"},{"name":"b","n":9007199254740993,"labels":{"x/y":"\u202e"}},null,[[]]]}`
	for _, template := range []string{
		"{.nodes[*].name}", "{.nodes[::0]}", "{.nodes[-1]}", "{.nodes[9999999999]}", "{.nodes[-9223372036854775808:]}", "{..}", "{..*}", "{..name..name..name}", "{range .nodes[*]}{.name}{end}", "{range .nodes[*]}",
		"{end}", "{", "}", "{}", "{.}", "{@}", "{$}", "{.nodes[?(@.n>0)].name}", "{.nodes[?(@.n>'a')].name}", "{.nodes[?(@.name==", "{.['a','b']}", "{[0:1:-1]}", "{\"\\", "{.nodes[0].labels.x\\/y}", "{.nodes[1:0:1]}",
		"{range .nodes[*]}{range .nodes[*]}{end}{end}", "{.nodes[*]['name','n']}", strings.Repeat("{range .nodes[*]}", 30), "{.nodes[?(@.nodes[?(@.n)])]}",
	} {
		f.Add(template, []byte(data))
	}
	f.Add("{.a}", []byte("["))
	f.Add("{..a}", []byte(strings.Repeat(`[`, 300)+strings.Repeat(`]`, 300)))
	f.Fuzz(func(t *testing.T, template string, data []byte) {
		if len(template) > 200 || len(data) > 2000 {
			return
		}
		_ = printer.CheckDocument("jsonpath=" + template)
		began := time.Now()
		text, err := printer.JSONPath(template, data)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("JSONPath(%q) takes %v", template, took)
		}
		if err == nil && !controls(template) && !strings.Contains(template, `\`) && controls(string(text)) {
			t.Errorf("JSONPath(%q, %q) = %q", template, data, text)
		}
		if json.Valid(data) {
			var out bytes.Buffer
			_, _ = printer.WriteDocument(&out, "yaml", json.RawMessage(data))
		}
	})
}
