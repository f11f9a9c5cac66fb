package recording

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Allowance is a difference that is intended. In all patterns, * stands for any text, and an empty
// pattern matches everything.
type Allowance struct {
	Difference []DifferenceKind
	Step       string
	Kind       string
	Object     string
	Field      string
	// Upstream and Ours match the values.
	Upstream, Ours string
	// AtMost bounds the ratio of the times of a slower change; 0: no bound.
	AtMost float64
	// Because is the reason, for a reader of the comparison.
	Because string
	// Sometimes allows that no difference needs the allowance, because it depends on chance.
	Sometimes bool
}

// String is the allowance in one line.
func (a Allowance) String() string {
	return fmt.Sprintf("%s %v %q %q %q %q %q: %s", a.Step, a.Difference, a.Kind, a.Object, a.Field, a.Upstream, a.Ours, a.Because)
}

// allow gives each difference the reason of the first allowance that covers it, and returns the
// allowances that cover none.
func allow(differences []Difference, allowances []Allowance) (unused []Allowance) {
	for _, a := range allowances {
		used := a.Sometimes
		covers := a.matcher()
		for i := range differences {
			d := &differences[i]
			if !covers(*d) {
				continue
			}
			used = true
			if d.Because == "" {
				d.Because = a.Because
			}
		}
		if !used {
			unused = append(unused, a)
		}
	}
	return unused
}

func (a Allowance) matcher() func(Difference) bool {
	step, kind, object, field := Pattern(a.Step), Pattern(a.Kind), Pattern(a.Object), Pattern(a.Field)
	upstream, ours := Pattern(a.Upstream), Pattern(a.Ours)
	return func(d Difference) bool {
		if len(a.Difference) > 0 && !slices.Contains(a.Difference, d.Difference) {
			return false
		}
		if a.AtMost > 0 && d.Difference == Slower && float64(d.OursAfter) > a.AtMost*float64(d.UpstreamAfter) {
			return false
		}
		return step(d.Step) && kind(d.Kind) && object(d.Object) && field(d.Field) && upstream(d.Upstream) && ours(d.Ours)
	}
}

// Pattern matches texts in which * stands for any text. The empty pattern matches all.
func Pattern(text string) func(string) bool {
	if text == "" {
		return func(string) bool { return true }
	}
	parts := strings.Split(text, "*")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(part)
	}
	return regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`).MatchString
}
