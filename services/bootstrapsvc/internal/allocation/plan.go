package allocation

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Plan is what would be written to mend findings, and what that leaves.
type Plan struct {
	// Steps in the order in which they must be carried out: what allocates first, what replaces next, what frees last.
	Steps []Step
	// Left are the findings that no step mends, ordered by name, each with why in its UnsafeReason.
	Left []Finding
}

// PlanRepair orders the steps of findings; one that is pending has none yet. The order of findings does not matter, and
// each counts once.
func PlanRepair(findings []Finding) Plan {
	ordered := slices.Clone(findings)
	slices.SortStableFunc(ordered, func(a, b Finding) int { return strings.Compare(a.Name, b.Name) })
	ordered = slices.CompactFunc(ordered, func(a, b Finding) bool { return a.Name == b.Name })
	var plan Plan
	for _, f := range ordered {
		if len(f.Steps) == 0 {
			plan.Left = append(plan.Left, f)
		}
		plan.Steps = append(plan.Steps, f.Steps...)
	}
	slices.SortStableFunc(plan.Steps, compareUrgency)
	return plan
}

// compareUrgency puts what allocates before what frees, and keeps the steps of one finding together.
func compareUrgency(a, b Step) int {
	return cmp.Or(
		cmp.Compare(a.urgency(), b.urgency()),
		cmp.Compare(a.Store, b.Store),
		cmp.Compare(a.Offset, b.Offset),
		compareSubjects(a.Subject, b.Subject),
		strings.Compare(a.Finding, b.Finding),
	)
}

func (s Step) urgency() int {
	switch {
	case s.Reason == ReasonReference:
		return 2
	case s.Verb == Relabel:
		return 1
	case s.Frees():
		return 3
	default:
		return 0
	}
}

// compareSubjects orders addresses as addresses.
func compareSubjects(a, b string) int {
	first, err := netip.ParseAddr(a)
	second, err2 := netip.ParseAddr(b)
	if err == nil && err2 == nil {
		return first.Compare(second)
	}
	return strings.Compare(a, b)
}

// Safe returns the plan with its safe steps only. A finding's steps are all safe or none is.
func (p Plan) Safe() Plan {
	return Plan{
		Steps: slices.DeleteFunc(slices.Clone(p.Steps), func(s Step) bool { return !s.Safe }),
		Left:  slices.Clone(p.Left),
	}
}

// Material is a canonical text of the steps with what they were planned from, in their order: two plans are the same if and
// only if their materials are. Guard.Revision is not part of it, see there.
func (p Plan) Material() string {
	var text strings.Builder
	for _, step := range p.Steps {
		text.WriteString(step.Material())
		text.WriteByte('\n')
	}
	return text.String()
}

// Material is the canonical text of one step: one line without its line break. What is said to people is not part of it.
func (s Step) Material() string {
	fields := []string{
		s.Finding, string(s.Verb), s.Store.String(), s.Subject, string(s.Reason),
		strconv.Itoa(s.Offset), s.Range,
		strconv.FormatBool(s.Guard.Absent), s.Guard.UID, s.Guard.ResourceVersion,
		s.Owner.Namespace, s.Owner.Name, s.Owner.UID, strconv.FormatBool(s.Sole), strconv.FormatBool(s.Safe),
		s.Object.Name, s.Object.Parent.Group, s.Object.Parent.Resource, s.Object.Parent.Namespace, s.Object.Parent.Name,
		s.Object.ManagedBy, s.Object.Family,
	}
	for i, field := range fields {
		fields[i] = strconv.Quote(field) // so that no value can pretend to be two
	}
	return strings.Join(fields, " ")
}
