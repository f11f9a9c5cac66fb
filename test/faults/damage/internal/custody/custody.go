package custody

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
	Planted bool
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
type Breach struct {
	Rule     Rule
	Revision int64
	Subject  string
	// Services use the subject, sorted.
	Services []string
	// Healed is the revision at which the subject was allocated again, without having been given to anybody else meanwhile;
	// 0 if it was not. Only what was freed can heal.
	Healed int64
	// Yielded is the revision at which a Service that goes on living gave the subject up, so that nobody was harmed; 0 if none
	// did. kube-apiserver frees what an update of a Service gives up a moment before it writes the Service.
	Yielded int64
}

func (b Breach) String() string {
	text := fmt.Sprintf("revision %d: %s was %s by %v", b.Revision, b.Subject, b.Rule, b.Services)
	if b.Healed > 0 {
		text += fmt.Sprintf(", and allocated again at revision %d", b.Healed)
	}
	if b.Yielded > 0 {
		text += fmt.Sprintf(", and given up at revision %d", b.Yielded)
	}
	return text
}

// Judge has seen all events so far.
type Judge struct {
	held     map[string]bool
	users    map[string]map[string]bool // Services by subject
	uses     map[string][]string        // subjects by Service
	breaches []Breach
	bare     map[string]int // breach of a subject that was freed in use and is not allocated yet, by index
	last     map[string]int // last breach of a subject, by index
	// wounded subjects were freed on purpose while they were used, until nobody uses them any more. Others may then be given
	// them, and mixed are those that were: whoever lets go of one frees it under the other.
	wounded, mixed map[string]bool
	events         int
}

// NewJudge knows of nothing.
func NewJudge() *Judge {
	return &Judge{
		held: map[string]bool{}, users: map[string]map[string]bool{}, uses: map[string][]string{}, bare: map[string]int{}, last: map[string]int{},
		wounded: map[string]bool{}, mixed: map[string]bool{},
	}
}

// See takes in the next event.
func (j *Judge) See(e Event) {
	j.events++
	switch e.Kind {
	case Allocate:
		j.allocate(e)
	case Free:
		j.free(e)
	case Use:
		j.use(e)
	}
}

func (j *Judge) allocate(e Event) {
	j.held[e.Subject] = true
	if index, ok := j.bare[e.Subject]; ok {
		j.breaches[index].Healed = e.Revision
		delete(j.bare, e.Subject)
	}
}

func (j *Judge) free(e Event) {
	delete(j.held, e.Subject)
	used := len(j.users[e.Subject]) > 0
	j.wounded[e.Subject] = used && (e.Planted || j.wounded[e.Subject])
	if e.Planted || !used || j.mixed[e.Subject] {
		return
	}
	j.bare[e.Subject] = len(j.breaches)
	j.breach(FreedInUse, e.Revision, e.Subject)
}

func (j *Judge) use(e Event) {
	before := j.uses[e.Service]
	for _, subject := range before {
		if slices.Contains(e.Subjects, subject) {
			continue
		}
		delete(j.users[subject], e.Service)
		if index, ok := j.last[subject]; ok && !e.Gone && j.breaches[index].Yielded == 0 {
			j.breaches[index].Yielded = e.Revision
		}
	}
	delete(j.uses, e.Service)
	if len(e.Subjects) == 0 {
		return
	}
	j.uses[e.Service] = slices.Clone(e.Subjects)
	for _, subject := range e.Subjects {
		if slices.Contains(before, subject) {
			continue
		}
		j.take(e, subject)
	}
}

// take is the use of a subject by a Service that did not use it before.
func (j *Judge) take(e Event, subject string) {
	if j.users[subject] == nil {
		j.users[subject] = map[string]bool{}
	}
	j.users[subject][e.Service] = true
	delete(j.bare, subject) // whoever allocates it now heals nothing
	if e.Planted {
		return
	}
	if !j.held[subject] {
		j.breach(UsedUnallocated, e.Revision, subject)
	}
	switch {
	case len(j.users[subject]) == 1:
		delete(j.mixed, subject)
	case j.wounded[subject]:
		j.mixed[subject] = true
	default:
		j.breach(Shared, e.Revision, subject)
	}
}

func (j *Judge) breach(rule Rule, revision int64, subject string) {
	j.last[subject] = len(j.breaches)
	j.breaches = append(j.breaches, Breach{
		Rule: rule, Revision: revision, Subject: subject, Services: slices.Sorted(maps.Keys(j.users[subject])),
	})
}

// Breaches are all that were seen, in order.
func (j *Judge) Breaches() []Breach { return slices.Clone(j.breaches) }

// Events is how many were seen.
func (j *Judge) Events() int { return j.events }

// Users are the Services that use a subject, sorted.
func (j *Judge) Users(subject string) []string { return slices.Sorted(maps.Keys(j.users[subject])) }

// IsHeld tells whether a subject is allocated.
func (j *Judge) IsHeld(subject string) bool { return j.held[subject] }

// Unused are the subjects that are allocated and that nobody uses, sorted.
func (j *Judge) Unused() []string {
	var unused []string
	for subject := range j.held {
		if len(j.users[subject]) == 0 {
			unused = append(unused, subject)
		}
	}
	slices.Sort(unused)
	return unused
}
