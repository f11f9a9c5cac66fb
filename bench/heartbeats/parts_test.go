package main

import (
	"slices"
	"testing"
)

func TestChoose_KeepsTheOrderOfTheTable(t *testing.T) {
	all := []part{{name: "a"}, {name: "b"}, {name: "c"}}
	for only, want := range map[string][]string{"": {"a", "b", "c"}, "c,a": {"a", "c"}, "b": {"b"}} {
		got, err := choose(all, only)
		if err != nil || !slices.Equal(names(got), want) {
			t.Errorf("choose(%q) = %v, %v; want %v", only, names(got), err, want)
		}
	}
	if got, err := choose(all, "a,d"); err == nil {
		t.Errorf("a part that does not exist is no error: %v", names(got))
	}
}
