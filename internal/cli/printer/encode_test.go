package printer_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trivet-dev/trivet/internal/cli/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

func TestWriteDocument(t *testing.T) {
	bookmark := &metav1.Bookmark{InitialEventsEnd: true, Missing: []*metav1.MissingPart{{Service: "leasesvc", Shards: []int32{3}, Message: "no\x1b leader"}}}
	own := struct {
		Count int    `json:"count"`
		Name  string `json:"name"`
	}{2_000_000, "<a>"}
	const line = `{"initialEventsEnd":true,"sources":[],"missing":[{"service":"leasesvc","shards":[3],"replicaId":"","code":"OK","message":"no\u001b leader","reason":""}]}`
	const yaml = `initialEventsEnd: true
missing:
- code: OK
  message: "no\e leader"
  reason: ""
  replicaId: ""
  service: leasesvc
  shards:
  - 3
sources: []
`
	for name, test := range map[string]struct {
		form            string
		value           any
		document, event string
	}{
		"JSON": {"json", bookmark, `{
  "initialEventsEnd": true,
  "sources": [],
  "missing": [
    {
      "service": "leasesvc",
      "shards": [
        3
      ],
      "replicaId": "",
      "code": "OK",
      "message": "no\u001b leader",
      "reason": ""
    }
  ]
}
`, line + "\n"},
		"YAML":                     {"yaml", bookmark, yaml, "---\n" + yaml},
		"JSONPath":                 {`jsonpath={range .missing[*]}{.service} {.shards[0]}{"\n"}{end}`, bookmark, "leasesvc 3\n", "leasesvc 3\n"},
		"JSONPath sanitizes":       {`jsonpath={.missing[0].message}`, bookmark, "no� leader", "no� leader\n"},
		"JSONPath, missing field":  {`jsonpath={.missing[*].nonsense}`, bookmark, "", "\n"},
		"JSONPath, filter":         {`jsonpath={.missing[?(@.service=="slicesvc")].message}`, bookmark, "", "\n"},
		"JSON of another value":    {"json", own, "{\n  \"count\": 2000000,\n  \"name\": \"<a>\"\n}\n", `{"count":2000000,"name":"<a>"}` + "\n"},
		"YAML of another value":    {"yaml", own, "count: 2000000\nname: <a>\n", "---\ncount: 2000000\nname: <a>\n"},
		"JSONPath keeps a integer": {"jsonpath={.count}", own, "2000000", "2000000\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var document, event strings.Builder
			if written, err := printer.WriteDocument(&document, test.form, test.value); err != nil || !written {
				t.Fatal(written, err)
			}
			if err := printer.WriteEvent(&event, test.form, test.value); err != nil {
				t.Fatal(err)
			}
			if document.String() != test.document {
				t.Errorf("document\n%s, want\n%s", document.String(), test.document)
			}
			if event.String() != test.event {
				t.Errorf("event\n%s, want\n%s", event.String(), test.event)
			}
		})
	}
	if written, err := printer.WriteDocument(&strings.Builder{}, "table", bookmark); written || err != nil {
		t.Errorf("a table: %t, %v", written, err)
	}
}

// A terminal obeys none of the text of other programs, and a program reads it unchanged from JSON.
func TestWriteDocument_ControlsNoTerminal(t *testing.T) {
	const hostile = "a\x7f\u009b5m\u202e\u2028\U000e0041\x1b\nb"
	for _, value := range []any{&metav1.MissingPart{Message: hostile}, map[string]string{"message": hostile}} {
		for _, form := range []string{"json", "yaml", "jsonpath={.message}"} {
			var text strings.Builder
			if _, err := printer.WriteDocument(&text, form, value); err != nil {
				t.Fatal(err)
			}
			if strings.ContainsFunc(text.String(), func(r rune) bool {
				return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028')
			}) {
				t.Errorf("%s of %T: %q", form, value, text.String())
			}
			var back struct{ Message string }
			if form == "json" && (json.Unmarshal([]byte(text.String()), &back) != nil || back.Message != hostile) {
				t.Errorf("%q became %q", hostile, back.Message)
			}
		}
	}
}

// A time of another process that JSON does not have fails no command.
func TestWriteDocument_ATimeOutOfRange(t *testing.T) {
	var text strings.Builder
	source := &metav1.Source{Service: "leasesvc", ReadTime: &timestamppb.Timestamp{Seconds: -1 << 40}}
	if _, err := printer.WriteDocument(&text, "json", source); err != nil || !strings.Contains(text.String(), "0001-01-01T00:00:00Z") {
		t.Errorf("%v, %s", err, text.String())
	}
}

func TestCheckDocument_WrongTemplates(t *testing.T) {
	for form, isRight := range map[string]bool{
		"json": true, "jsonpath={.name}": true, "jsonpath=a {.name} b": true,
		"jsonpath=": false, "jsonpath=.name": false, "jsonpath={.name": false, "jsonpath={range .x[*]}{[}{end}": false,
	} {
		if err := printer.CheckDocument(form); (err == nil) != isRight {
			t.Errorf("%s: %v", form, err)
		}
	}
}
