package loop

import (
	"fmt"
	"slices"
	"strings"
)

// everything is the entry that enables all loops that are on by default.
const everything = "*"

// Selection says which loops are enabled. The zero value enables those that
// are on by default.
type Selection struct {
	entries []string
}

// ParseSelection reads spec, the values of --loops, where "name" enables a
// loop, "-name" disables it, and "*" enables every loop that is on by
// default. An empty spec means "*". An entry that fits none of names is
// refused; the error names all such entries and all names.
func ParseSelection(names []string, spec []string) (Selection, error) {
	var unknown []string
	for _, entry := range spec {
		name := strings.TrimPrefix(entry, "-")
		if entry != everything && !slices.Contains(names, name) {
			unknown = append(unknown, fmt.Sprintf("%q", entry))
		}
	}
	if len(unknown) > 0 {
		known := slices.Sorted(slices.Values(names))
		return Selection{}, fmt.Errorf("--loops: no such loop: %s; known are %s",
			strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return Selection{entries: slices.Clone(spec)}, nil
}

// Enabled reports whether the loop called name runs. As with
// kube-controller-manager's --controllers, the first entry that names the
// loop decides; without one, "*" enables it unless it is off by default; and
// without "*" it stays off.
func (s Selection) Enabled(name string, offByDefault bool) bool {
	star := len(s.entries) == 0
	for _, entry := range s.entries {
		switch entry {
		case name:
			return true
		case "-" + name:
			return false
		case everything:
			star = true
		}
	}
	return star && !offByDefault
}
