package mirroring

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// difference is a field that two observations have with other values. An empty value means that the
// field is missing.
type difference struct{ step, field, upstream, ours string }

// String is the difference in three lines.
func (d difference) String() string {
	return fmt.Sprintf("%s: %s\n  upstream: %s\n  ours:     %s", d.step, d.field, d.upstream, d.ours)
}

// compare returns the differences ordered by field. A slice that one side lacks is one difference,
// whose field is its title.
func compare(step string, upstream, ours observation) []difference {
	var found []difference
	differ := func(field, u, o string) {
		if u != o {
			found = append(found, difference{step: step, field: field, upstream: u, ours: o})
		}
	}
	differ("writes", upstream.writes, ours.writes)
	differ("events", upstream.events, ours.events)
	differ("deprecations", upstream.deprecations, ours.deprecations)
	for _, title := range sortedKeys(upstream.slices, ours.slices) {
		u, o := upstream.slices[title], ours.slices[title]
		if u == nil || o == nil {
			differ(title, joined(u), joined(o))
			continue
		}
		for _, field := range sortedKeys(u, o) {
			differ(title+" "+field, u[field], o[field])
		}
	}
	return found
}

func sortedKeys[V any](of ...map[string]V) []string {
	all := map[string]bool{}
	for _, m := range of {
		for key := range m {
			all[key] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// allowance is a difference that is intended. In all patterns, * stands for any text, and an empty
// pattern matches everything.
type allowance struct {
	step, field    string
	upstream, ours string
	// promise is the number of the promise in section 5 of the specification; 0: the specification
	// wants the difference in another section, or it is chance.
	promise int
	// because is the reason.
	because string
	// sometimes allows that no difference needs the allowance, because it depends on chance.
	sometimes bool
}

// String is the allowance in one line.
func (a allowance) String() string {
	return fmt.Sprintf("step %q, field %q, upstream %q, ours %q: promise %d: %s", a.step, a.field, a.upstream, a.ours, a.promise, a.because)
}

func (a allowance) covers(d difference) bool {
	return matches(a.step, d.step) && matches(a.field, d.field) && matches(a.upstream, d.upstream) && matches(a.ours, d.ours)
}

// judgement is what allowances make of differences.
type judgement struct {
	unexplained []difference
	explained   []string
	used        map[int]bool // indices of allowances
}

func judge(differences []difference, allowances []allowance) judgement {
	j := judgement{used: map[int]bool{}}
	for _, d := range differences {
		i := slices.IndexFunc(allowances, func(a allowance) bool { return a.covers(d) })
		if i < 0 {
			j.unexplained = append(j.unexplained, d)
			continue
		}
		j.used[i] = true
		j.explained = append(j.explained, fmt.Sprintf("%v\n  promise %d: %s", d, allowances[i].promise, allowances[i].because))
	}
	return j
}

// unused returns the allowances that no difference needs, of those that do not depend on chance.
func unused(allowances []allowance, used map[int]bool) []allowance {
	var left []allowance
	for i, a := range allowances {
		if !a.sometimes && !used[i] {
			left = append(left, a)
		}
	}
	return left
}

// none is a pattern for a missing value, because the empty pattern matches everything.
const none = "(none)"

func matches(pattern, text string) bool {
	switch pattern {
	case "":
		return true
	case none:
		return text == ""
	}
	parts := strings.Split(pattern, "*")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(part)
	}
	return regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`).MatchString(text)
}
