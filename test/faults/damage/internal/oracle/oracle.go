package oracle

import (
	"fmt"
	"maps"
	"slices"
)

// Kind of an event.
type Kind int

// What happens to allocations and uses.
const (
	Allocate Kind = iota // Subject is allocated
	Free                 // Subject is not allocated any more
	Use                  // Service uses Subjects and nothing else
)

// Event is one change.
type Event struct {
	// Revision of etcd; many events may share one.
	Revision int64
	Kind     Kind
	// Subject is an address or a port, of Allocate and Free.
	Subject string
	// Service and Subjects are of Use. Gone tells that the Service was deleted: then there are no Subjects.
	Service  string
	Subjects []string
	Gone     bool
	// Planted marks damage that was done on purpose.
	Injected bool
}

// Rule that was broken.
type Rule string

// The rules.
const (
	FreedInUse      Rule = "freed while it was used"
	UsedUnallocated Rule = "taken into use though it was not allocated"
	Shared          Rule = "taken into use by a second Service"
)

// Breach is a rule that was broken.
type Violation struct {
	Rule     Rule
	Revision int64
	Subject  string
	// Services use the subject, sorted.
	Services []string
	// Healed is the revision at which the subject was allocated again, without having been given to anybody else meanwhile;
	// 0 if it was not. Only what was freed can heal.
	ReallocatedAt int64
	// Yielded is the revision at which a Service that goes on living gave the subject up, so that nobody was harmed; 0 if none
	// did. kube-apiserver frees what an update of a Service gives up a moment before it writes the Service.
	ReleasedAt int64
}

func (b Violation) String() string {
	text := fmt.Sprintf("revision %d: %s was %s by %v", b.Revision, b.Subject, b.Rule, b.Services)
	if b.ReallocatedAt > 0 {
		text += fmt.Sprintf(", and allocated again at revision %d", b.ReallocatedAt)
	}
	if b.ReleasedAt > 0 {
		text += fmt.Sprintf(", and given up at revision %d", b.ReleasedAt)
	}
	return text
}

// Judge has seen all events so far.
type Oracle struct {
	allocated  map[string]bool
	users      map[string]map[string]bool // Services by subject
	uses       map[string][]string        // subjects by Service
	violations []Violation
	freedInUse map[string]int // breach of a subject that was freed in use and is not allocated yet, by index
	last       map[string]int // last breach of a subject, by index
	// wounded subjects were freed on purpose while they were used, until nobody uses them any more. Others may then be given
	// them, and mixed are those that were: whoever lets go of one frees it under the other.
	damaged, sharedByDamage map[string]bool
	events                  int
}

// NewJudge knows of nothing.
func New() *Oracle {
	return &Oracle{
		allocated: map[string]bool{}, users: map[string]map[string]bool{}, uses: map[string][]string{}, freedInUse: map[string]int{}, last: map[string]int{},
		damaged: map[string]bool{}, sharedByDamage: map[string]bool{},
	}
}

// See takes in the next event.
func (o *Oracle) Observe(e Event) {
	o.events++
	switch e.Kind {
	case Allocate:
		o.allocate(e)
	case Free:
		o.free(e)
	case Use:
		o.use(e)
	}
}

func (o *Oracle) allocate(e Event) {
	o.allocated[e.Subject] = true
	if index, ok := o.freedInUse[e.Subject]; ok {
		o.violations[index].ReallocatedAt = e.Revision
		delete(o.freedInUse, e.Subject)
	}
}

func (o *Oracle) free(e Event) {
	delete(o.allocated, e.Subject)
	used := len(o.users[e.Subject]) > 0
	o.damaged[e.Subject] = used && (e.Injected || o.damaged[e.Subject])
	if e.Injected || !used || o.sharedByDamage[e.Subject] {
		return
	}
	o.freedInUse[e.Subject] = len(o.violations)
	o.violate(FreedInUse, e.Revision, e.Subject)
}

func (o *Oracle) use(e Event) {
	before := o.uses[e.Service]
	for _, subject := range before {
		if slices.Contains(e.Subjects, subject) {
			continue
		}
		delete(o.users[subject], e.Service)
		if index, ok := o.last[subject]; ok && !e.Gone && o.violations[index].ReleasedAt == 0 {
			o.violations[index].ReleasedAt = e.Revision
		}
	}
	delete(o.uses, e.Service)
	if len(e.Subjects) == 0 {
		return
	}
	o.uses[e.Service] = slices.Clone(e.Subjects)
	for _, subject := range e.Subjects {
		if slices.Contains(before, subject) {
			continue
		}
		o.startUse(e, subject)
	}
}

// take is the use of a subject by a Service that did not use it before.
func (o *Oracle) startUse(e Event, subject string) {
	if o.users[subject] == nil {
		o.users[subject] = map[string]bool{}
	}
	o.users[subject][e.Service] = true
	delete(o.freedInUse, subject) // whoever allocates it now heals nothing
	if e.Injected {
		return
	}
	if !o.allocated[subject] {
		o.violate(UsedUnallocated, e.Revision, subject)
	}
	switch {
	case len(o.users[subject]) == 1:
		delete(o.sharedByDamage, subject)
	case o.damaged[subject]:
		o.sharedByDamage[subject] = true
	default:
		o.violate(Shared, e.Revision, subject)
	}
}

func (o *Oracle) violate(rule Rule, revision int64, subject string) {
	o.last[subject] = len(o.violations)
	o.violations = append(o.violations, Violation{
		Rule: rule, Revision: revision, Subject: subject, Services: slices.Sorted(maps.Keys(o.users[subject])),
	})
}

// Breaches are all that were seen, in order.
func (o *Oracle) Violations() []Violation { return slices.Clone(o.violations) }

// Events is how many were seen.
func (o *Oracle) Events() int { return o.events }

// Users are the Services that use a subject, sorted.
func (o *Oracle) Users(subject string) []string { return slices.Sorted(maps.Keys(o.users[subject])) }

// IsHeld tells whether a subject is allocated.
func (o *Oracle) IsAllocated(subject string) bool { return o.allocated[subject] }

// Unused are the subjects that are allocated and that nobody uses, sorted.
func (o *Oracle) Unused() []string {
	var unused []string
	for subject := range o.allocated {
		if len(o.users[subject]) == 0 {
			unused = append(unused, subject)
		}
	}
	slices.Sort(unused)
	return unused
}
