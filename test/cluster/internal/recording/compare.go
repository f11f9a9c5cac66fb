package recording

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// DifferenceKind says in what two recordings differ.
type DifferenceKind string

// The kinds of differences, as seen from the second recording.
const (
	Missing    DifferenceKind = "missing"
	Added      DifferenceKind = "added"
	OtherValue DifferenceKind = "other value"
	OtherOrder DifferenceKind = "other order"
	Slower     DifferenceKind = "slower"
	Faster     DifferenceKind = "faster"
	OtherSteps DifferenceKind = "other steps"
)

// Difference is one difference of the second recording, ours, from the first one, upstream's.
type Difference struct {
	Difference DifferenceKind
	Step       string
	Kind       string
	Object     string
	Field      string
	// Upstream and Ours are the values with their times; the side that lacks the change has
	// neither.
	Upstream, Ours           string
	UpstreamAfter, OursAfter time.Duration
	// Because is the reason of the allowance that covers the difference; empty: none does.
	Because string
}

// Pair is a change that both recordings have.
type Pair struct{ Upstream, Ours Change }

// Tolerance is how far two times of the same change may be apart. Both bounds must be exceeded for
// a difference.
type Tolerance struct {
	Ratio    float64
	Absolute time.Duration
}

// Rules are what Compare goes by.
type Rules struct {
	Tolerance  Tolerance
	Allowances []Allowance
}

// Comparison is the result of Compare.
type Comparison struct {
	Upstream, Ours Recording
	Differences    []Difference
	Pairs          []Pair
	// Unused are the allowances that cover no difference and are not marked as rare.
	Unused []Allowance
}

// Compare lines up two recordings of the same scenario. For each field of each object, the values
// of a step are lined up in their order. Values on one side only are missing, added, or another
// value.
func Compare(upstream, ours Recording, rules Rules) Comparison {
	c := Comparison{Upstream: upstream, Ours: ours}
	if u, o := stepNames(upstream), stepNames(ours); !slices.Equal(u, o) {
		c.Differences = append(c.Differences, Difference{Difference: OtherSteps, Upstream: fmt.Sprint(u), Ours: fmt.Sprint(o)})
	}
	for _, step := range stepNames(upstream) {
		if slices.Contains(stepNames(ours), step) {
			c.compareStep(step, rules.Tolerance)
		}
	}
	c.Unused = allow(c.Differences, rules.Allowances)
	return c
}

// Problems are the differences that no allowance covers, and the unused allowances, a line each.
func (c Comparison) Problems() []string {
	var problems []string
	for _, d := range c.Differences {
		if d.Because == "" {
			problems = append(problems, d.String())
		}
	}
	for _, a := range c.Unused {
		problems = append(problems, "no difference needs the allowance: "+a.String())
	}
	return problems
}

// String is the difference in one line.
func (d Difference) String() string {
	return fmt.Sprintf("%s: %s: %s %s %s: upstream %s, ours %s", d.Step, d.Difference, d.Kind, d.Object, d.Field,
		at(d.Upstream, d.UpstreamAfter), at(d.Ours, d.OursAfter))
}

func at(value string, after time.Duration) string {
	if value == "" {
		return "–"
	}
	return fmt.Sprintf("%q after %s", value, seconds(after))
}

func stepNames(r Recording) []string {
	var names []string
	for _, s := range r.Steps {
		names = append(names, s.Name)
	}
	return names
}

// field is what a change is about. Changes of the same field are lined up.
type field struct{ kind, object, name string }

func (c *Comparison) compareStep(step string, tolerance Tolerance) {
	upstream, order := byField(c.Upstream, step, nil)
	ours, order := byField(c.Ours, step, order)
	begin := len(c.Pairs)
	for _, f := range order {
		if f.name == fieldRenewals {
			c.compareRenewals(step, f, upstream[f], ours[f], tolerance)
			continue
		}
		c.compareField(upstream[f], ours[f], tolerance)
	}
	c.compareOrder(c.Pairs[begin:], tolerance)
}

// byField groups the changes of a step. order lists the fields in the order of their appearance.
func byField(r Recording, step string, order []field) (map[field][]Change, []field) {
	found := map[field][]Change{}
	for _, change := range r.Changes {
		if change.Step != step {
			continue
		}
		f := field{change.Kind, change.Object, change.Field}
		if !slices.Contains(order, f) {
			order = append(order, f)
		}
		found[f] = append(found[f], change)
	}
	return found, order
}

// compareField lines up the changes of one field.
func (c *Comparison) compareField(upstream, ours []Change, tolerance Tolerance) {
	var left, right []Change // since the last pair
	flush := func() {
		for len(left) > 0 && len(right) > 0 {
			c.differ(OtherValue, left[0], right[0])
			left, right = left[1:], right[1:]
		}
		for _, change := range left {
			c.differ(Missing, change, Change{})
		}
		for _, change := range right {
			c.differ(Added, Change{}, change)
		}
		left, right = nil, nil
	}
	lineUp := align
	if len(upstream) > 0 && upstream[0].Kind == KindEvent {
		lineUp = match
	}
	for _, pair := range lineUp(upstream, ours) {
		switch {
		case pair.Upstream.Step == "":
			right = append(right, pair.Ours)
		case pair.Ours.Step == "":
			left = append(left, pair.Upstream)
		default:
			flush()
			c.Pairs = append(c.Pairs, pair)
			if tolerance.exceeded(pair.Upstream.After, pair.Ours.After) {
				c.differ(speed(pair.Upstream.After, pair.Ours.After), pair.Upstream, pair.Ours)
			}
		}
	}
	flush()
}

// align returns a longest common sequence of values as pairs, and the remaining changes between
// them as pairs with one side empty.
func align(upstream, ours []Change) []Pair {
	// common[i][j] is the length of the longest common sequence of upstream[i:] and ours[j:].
	common := make([][]int, len(upstream)+1)
	for i := range common {
		common[i] = make([]int, len(ours)+1)
	}
	for i := len(upstream) - 1; i >= 0; i-- {
		for j := len(ours) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if upstream[i].Value == ours[j].Value {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var pairs []Pair
	i, j := 0, 0
	for i < len(upstream) || j < len(ours) {
		switch {
		case i < len(upstream) && j < len(ours) && upstream[i].Value == ours[j].Value:
			pairs = append(pairs, Pair{upstream[i], ours[j]})
			i, j = i+1, j+1
		case j == len(ours) || i < len(upstream) && common[i+1][j] >= common[i][j+1]:
			pairs = append(pairs, Pair{Upstream: upstream[i]})
			i++
		default:
			pairs = append(pairs, Pair{Ours: ours[j]})
			j++
		}
	}
	return pairs
}

// match pairs equal values in any order, because events of one reason are sent side by side. The
// remaining changes come last, with one side empty.
func match(upstream, ours []Change) []Pair {
	var pairs, rest []Pair
	ours = slices.Clone(ours)
	for _, u := range upstream {
		i := slices.IndexFunc(ours, func(o Change) bool { return o.Value == u.Value })
		if i < 0 {
			rest = append(rest, Pair{Upstream: u})
			continue
		}
		pairs = append(pairs, Pair{u, ours[i]})
		ours = slices.Delete(ours, i, i+1)
	}
	for _, o := range ours {
		rest = append(rest, Pair{Ours: o})
	}
	return append(pairs, rest...)
}

// compareRenewals compares how often a Lease was renewed. The steps of the two sides last
// differently long, so rates are compared; two renewals more or less are chance.
func (c *Comparison) compareRenewals(step string, f field, upstream, ours []Change, tolerance Tolerance) {
	const chance = 2
	u, o := renewals(upstream), renewals(ours)
	during, oursDuring := durationOf(c.Upstream, step), durationOf(c.Ours, step)
	if during == 0 {
		return
	}
	expected := float64(u) * float64(oursDuring) / float64(during)
	low, high := min(expected, float64(o)), max(expected, float64(o))
	if high-low <= chance || high <= tolerance.Ratio*low {
		return
	}
	kind := Slower
	if float64(o) > expected {
		kind = Faster
	}
	c.Differences = append(c.Differences, Difference{
		Difference: kind, Step: step, Kind: f.kind, Object: f.object, Field: f.name,
		Upstream: fmt.Sprint(u), Ours: fmt.Sprint(o), UpstreamAfter: during, OursAfter: oursDuring,
	})
}

func renewals(changes []Change) int {
	n := 0
	for _, c := range changes {
		if count, err := strconv.Atoi(c.Value); err == nil {
			n += count
		}
	}
	return n
}

// compareOrder finds changes of one object that come in the opposite order, further apart than the
// tolerance on both sides.
func (c *Comparison) compareOrder(pairs []Pair, tolerance Tolerance) {
	for _, a := range pairs {
		for _, b := range pairs {
			if a.Ours.Kind == b.Ours.Kind && a.Ours.Object == b.Ours.Object &&
				b.Upstream.After-a.Upstream.After > tolerance.Absolute && a.Ours.After-b.Ours.After > tolerance.Absolute {
				c.Differences = append(c.Differences, Difference{
					Difference: OtherOrder, Step: a.Ours.Step, Kind: a.Ours.Kind, Object: a.Ours.Object,
					Field:    a.Ours.Field + " before " + b.Ours.Field,
					Upstream: shown(a.Upstream), UpstreamAfter: a.Upstream.After, Ours: shown(a.Ours), OursAfter: a.Ours.After,
				})
			}
		}
	}
}

func (c *Comparison) differ(kind DifferenceKind, upstream, ours Change) {
	d := Difference{
		Difference: kind, Upstream: shown(upstream), Ours: shown(ours),
		UpstreamAfter: upstream.After, OursAfter: ours.After,
	}
	one := upstream
	if kind == Added {
		one = ours
	}
	d.Step, d.Kind, d.Object, d.Field = one.Step, one.Kind, one.Object, one.Field
	c.Differences = append(c.Differences, d)
}

// shown tells a field that is gone from a change that is missing.
func shown(c Change) string {
	if c.Step != "" && c.Value == "" {
		return "(gone)"
	}
	return c.Value
}

func (t Tolerance) exceeded(a, b time.Duration) bool {
	low, high := min(a, b), max(a, b)
	return high-low > t.Absolute && float64(high) > t.Ratio*float64(low)
}

func speed(upstream, ours time.Duration) DifferenceKind {
	if ours > upstream {
		return Slower
	}
	return Faster
}
