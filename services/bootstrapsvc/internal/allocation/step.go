package allocation

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/trivet-dev/trivet/internal/planned"
)

// Reason is a stable UPPER_SNAKE_CASE code that says why a step is taken.
type Reason string

const (
	// ReasonInUse: the subject is allocated because a Service uses it.
	ReasonInUse Reason = "IN_USE_NOT_ALLOCATED"
	// ReasonReference: the address is allocated again with its user as parent. Both the delete and
	// the create have this reason.
	ReasonReference Reason = "WRONG_REFERENCE"
	// ReasonLabels: the labels are corrected.
	ReasonLabels Reason = "WRONG_LABELS"
	// ReasonLeaked: the subject is freed because no Service uses it.
	ReasonLeaked Reason = "LEAKED"
	// ReasonOrphan: the address is freed because its parent is gone and no Service uses it.
	ReasonOrphan Reason = "ORPHAN"
)

// Step is one write, with all its preconditions. Its JSON form is stored in etcd.
type Step struct {
	// Finding is the name of the finding that the step repairs.
	Finding string
	Verb    planned.Verb
	Store   Store
	Subject string
	// Object is, for IPAddresses, the object to write (Create, Relabel) or the object that was seen
	// (Delete).
	Object IPAddress
	// Previous has, for Relabel, the labels of the object that was seen.
	Previous *Labels `json:",omitempty"`
	// Offset is, for a bitmap, the number of the bit. Range is the stored range to which the offset
	// applies.
	Offset int
	Range  string
	// Guard is the version from which the step was planned.
	Guard Guard
	// Owner is the Service for which the step allocates. Its key is empty if the step frees.
	Owner Owner
	// Sole reports that no Service but Owner may use the subject; with an empty Owner, no Service
	// may.
	Sole   bool
	Reason Reason
	// Detail is a sentence that explains Reason with the values that matter.
	Detail string
	// Safe is Finding.Safe.
	Safe bool
	// Risk says what the step can break. It is empty if it can break nothing.
	Risk string
}

// Labels are the allocator's labels of an IPAddress.
type Labels struct{ ManagedBy, Family string }

// Guard is the version from which a step was planned.
type Guard struct {
	// Absent reports that the IPAddress must not exist.
	Absent bool
	// UID is that of the IPAddress. ResourceVersion is its version when the step was planned. That
	// version is shown, but not required: an annotation changes it. Check compares the content, and
	// the write requires the version that Check was given.
	UID, ResourceVersion string
	// Revision is the modification revision of the range's key when the step was planned. It is
	// shown, but not required: on a busy cluster every Service changes it. The write requires the
	// revision that Check was given.
	Revision int64
}

// Frees reports whether the step frees an allocation.
func (s Step) Frees() bool {
	return s.Verb == planned.ClearBit || s.Verb == planned.Delete && s.Reason != ReasonReference
}

// ReadsAllServices reports whether Check needs a list of all Services for the step: it frees, or it
// says which Service owns an address. The Services that a watch has shown may lack the owner.
func (s Step) ReadsAllServices() bool {
	return s.Frees() || s.Owner.Name == "" || !s.Store.IsBitmap() && (s.Sole || s.Reason == ReasonReference)
}

// Material returns the canonical text of a step: one line, without its line break and without texts
// for people. Two steps are equal if and only if their materials are. Guard.Revision and
// Guard.ResourceVersion are not part of it; see there.
func (s Step) Material() string {
	fields := []string{
		s.Finding, string(s.Verb), s.Store.String(), s.Subject, string(s.Reason),
		strconv.Itoa(s.Offset), s.Range,
		strconv.FormatBool(s.Guard.Absent), s.Guard.UID,
		s.Owner.Namespace, s.Owner.Name, s.Owner.UID, strconv.FormatBool(s.Sole), strconv.FormatBool(s.Safe),
		s.Object.Name, s.Object.Parent.Group, s.Object.Parent.Resource, s.Object.Parent.Namespace, s.Object.Parent.Name,
		s.Object.ManagedBy, s.Object.Family,
	}
	for i, field := range fields {
		fields[i] = strconv.Quote(field) // so that no value can look like two
	}
	return strings.Join(fields, " ")
}

// Plan is an ordered list of steps that repair findings.
type Plan struct {
	// Steps are in the order in which they are applied: allocations first, replacements next, frees
	// last.
	Steps []Step
	// Left are the findings that no step repairs, ordered by name. UnsafeReason says why.
	Left []Finding
}

// PlanRepair orders the steps of findings. A pending finding has no steps yet. The order of the
// findings does not matter, and each counts once.
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
	slices.SortStableFunc(plan.Steps, CompareSteps)
	return plan
}

// Safe returns the plan with its safe steps only. A finding's steps are all safe or none is.
func (p Plan) Safe() Plan {
	return Plan{
		Steps: slices.DeleteFunc(slices.Clone(p.Steps), func(s Step) bool { return !s.Safe }),
		Left:  slices.Clone(p.Left),
	}
}

// Material returns the materials of all steps, one on each line.
func (p Plan) Material() string {
	var text strings.Builder
	for _, step := range p.Steps {
		text.WriteString(step.Material())
		text.WriteByte('\n')
	}
	return text.String()
}

// CompareSteps orders steps by priority: a step that allocates what is in use comes before one that
// frees. Under a stable sort, the steps of one finding stay together and in order.
func CompareSteps(a, b Step) int {
	return cmp.Or(
		cmp.Compare(a.Priority(), b.Priority()),
		cmp.Compare(a.Store, b.Store),
		cmp.Compare(a.Offset, b.Offset),
		compareSubjects(a.Subject, b.Subject),
		strings.Compare(a.Finding, b.Finding),
	)
}

// lowestPriority is the priority of steps that free.
const lowestPriority = 3

// Priority orders steps: 0 for one that allocates what is in use and free, and the highest for one
// that frees.
func (s Step) Priority() int {
	switch {
	case s.Reason == ReasonReference:
		return 2
	case s.Verb == planned.Relabel:
		return 1
	case s.Frees():
		return lowestPriority
	default:
		return 0
	}
}

func compareSubjects(a, b string) int {
	first, err := netip.ParseAddr(a)
	second, err2 := netip.ParseAddr(b)
	if err == nil && err2 == nil {
		return first.Compare(second)
	}
	return strings.Compare(a, b)
}
