package main

import (
	"slices"
	"testing"
)

func TestGoLines_HoldsLiteralsAndNamesOnTheirLines(t *testing.T) {
	got, err := goLines([]byte("package lines\n\ntype T struct{ Seen string `json:\"tag\"` }\n\n// nothing of a comment\nfunc markUnknown() error {\n\tlastSeen := \"two\" + `three\nfour`\n\treturn lastSeen\n}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"lines . ", "", "T . Seen . ", "", "", "mark Unknown . ", "two . three . last Seen . ", "four . ", "", "", ""}
	if !slices.Equal(got, want) {
		t.Errorf("lines are %q, want %q", got, want)
	}
}

func TestJavaScriptLines_HoldsLiteralsAndNamesOnTheirLines(t *testing.T) {
	got := javaScriptLines("// a comment\nconst lastSeen = 'never' + \"a\\\"b\"; // not this\nshow(`n ${nodes} nodes`)")
	want := []string{"", "never . a\\\"b . last Seen", "n … nodes"}
	if !slices.Equal(got, want) {
		t.Errorf("lines are %q, want %q", got, want)
	}
}
