package oracle

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Kind is the kind of an event.
type Kind int

// Kinds of events.
const (
	Allocate Kind = iota // Subject is allocated
	Free                 // Subject is freed
	Use                  // Service uses exactly Subjects
)

// Event is one change in etcd.
type Event struct {
	// Revision is the etcd revision. Several events may have the same one.
	Revision int64
	Kind     Kind
	// Subject is the address or port of Allocate and Free.
	Subject string
	// Service and Subjects belong to Use. Gone is set, and Subjects is empty, if the Service was
	// deleted.
	Service  string
	Subjects []string
	Gone     bool
	// Twice has those of Subjects that the Service lists twice: ports of two protocols.
	Twice []string
	// Injected marks damage by the test.
	Injected bool
	// Time is the time at which the event was observed.
	Time time.Time
}

// Rule names a violated rule.
type Rule string

// Rules.
const (
	FreedInUse      Rule = "freed while in use"
	UsedUnallocated Rule = "used without an allocation"
	Shared          Rule = "used by a second Service"
)

// Violation is one violation of a rule.
type Violation struct {
	Rule     Rule
	Revision int64
	Subject  string
	// Services has the sorted Services that use the subject.
	Services []string
	// ReallocatedAt is the revision at which a freed subject was allocated again, or 0. It remains
	// 0 if another Service used the subject before.
	ReallocatedAt int64
	// ReleasedAt is the revision at which an update of a Service released the subject, or 0.
	// kube-apiserver frees what an update releases just before it writes the Service, which is
	// harmless.
	ReleasedAt int64
}

func (b Violation) String() string {
	text := fmt.Sprintf("revision %d: %s: %s, Services %v", b.Revision, b.Subject, b.Rule, b.Services)
	if b.ReallocatedAt > 0 {
		text += fmt.Sprintf(", and allocated again at revision %d", b.ReallocatedAt)
	}
	if b.ReleasedAt > 0 {
		text += fmt.Sprintf(", and released at revision %d", b.ReleasedAt)
	}
	return text
}

// Cause says why a subject is allocated and not in use.
type Cause string

// Causes. A request that allocates before its write, or frees after it, has none: such a subject is
// unused for a moment only.
const (
	NoCause         Cause = ""
	InjectedLeak    Cause = "injected, or older than the observation"
	UpdateAndRepair Cause = "an update of a Service freed it, and it was allocated again before the update was written or just after"
)

// Unuse is a time during which a subject was allocated and not in use.
type Unuse struct {
	Subject string
	// Revision is the revision at which it began.
	Revision int64
	// From and To are times of events. To is zero while it lasts.
	From, To time.Time
	Cause    Cause
}

func (u Unuse) String() string {
	return fmt.Sprintf("%s is allocated and unused since revision %d (cause: %q)", u.Subject, u.Revision, u.Cause)
}

// Oracle holds the state after all observed events.
type Oracle struct {
	allocated  map[string]bool
	users      map[string]map[string]bool // Services by subject
	uses       map[string][]string        // subjects by Service
	violations []Violation
	freedInUse map[string]int // index of the violation of a subject that is freed in use, until it is allocated or used again
	last       map[string]int // index of the last violation of a subject
	// damaged has subjects that the test freed while in use, until they are unused. The allocator
	// may give them to a second Service: sharedByDamage has those subjects. The first Service that
	// releases one frees it for both.
	damaged, sharedByDamage map[string]bool
	unuses                  map[string][]Unuse  // by subject, in order
	histories               map[string][]string // events by subject, in order
	shared                  map[string]bool     // subjects that two Services used at one time
	unallocated             map[string]bool     // subjects that were in use and not allocated
	twice                   map[string][]string // Event.Twice by Service
	doubleFrees             map[string]*doubleFree
	freedTwice              map[string]time.Time // the last consequence of a double free, by subject
	events                  int
}

// New returns an oracle without events.
func New() *Oracle {
	return &Oracle{
		allocated: map[string]bool{}, users: map[string]map[string]bool{}, uses: map[string][]string{}, freedInUse: map[string]int{}, last: map[string]int{},
		damaged: map[string]bool{}, sharedByDamage: map[string]bool{}, unuses: map[string][]Unuse{}, histories: map[string][]string{},
		shared: map[string]bool{}, unallocated: map[string]bool{}, twice: map[string][]string{},
		doubleFrees: map[string]*doubleFree{}, freedTwice: map[string]time.Time{},
	}
}

// Observe processes the next event.
func (o *Oracle) Observe(e Event) {
	o.events++
	changed := []string{e.Subject}
	switch e.Kind {
	case Allocate:
		o.allocate(e)
	case Free:
		o.free(e)
	case Use:
		changed = slices.Concat(o.uses[e.Service], e.Subjects)
		o.use(e)
	}
	for _, subject := range changed {
		o.histories[subject] = append(o.histories[subject], describe(e, subject))
		o.unallocated[subject] = o.unallocated[subject] || len(o.users[subject]) > 0 && !o.allocated[subject]
		o.recordUnuse(e, subject)
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
	if o.countFree(e) {
		e.Injected = true
	}
	used := len(o.users[e.Subject]) > 0
	o.damaged[e.Subject] = used && (e.Injected || o.damaged[e.Subject])
	if e.Injected || !used || o.sharedByDamage[e.Subject] {
		return
	}
	o.freedInUse[e.Subject] = len(o.violations)
	o.addViolation(FreedInUse, e.Revision, e.Subject)
}

func (o *Oracle) use(e Event) {
	before := o.uses[e.Service]
	for _, subject := range before {
		if slices.Contains(e.Subjects, subject) {
			continue
		}
		delete(o.users[subject], e.Service)
		if !e.Gone {
			o.markReleased(e, subject)
		} else if slices.Contains(o.twice[e.Service], subject) {
			o.doubleFrees[subject] = &doubleFree{gone: e.Time}
		}
	}
	delete(o.uses, e.Service)
	o.twice[e.Service] = slices.Clone(e.Twice)
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

// doubleFree counts the frees of a port of two protocols after the deletion of its Service.
// kube-apiserver frees such a port once for each protocol. In between it can give the port to
// another Service, which then uses it without an allocation.
type doubleFree struct {
	gone  time.Time
	frees int
}

// releaseTime is longer than kube-apiserver needs to free what a deleted Service used.
const releaseTime = 10 * time.Second

// countFree reports whether a free is the second one, or a consequence of one.
func (o *Oracle) countFree(e Event) bool {
	if double := o.doubleFrees[e.Subject]; double != nil && e.Time.Sub(double.gone) <= releaseTime {
		if double.frees++; double.frees == 2 {
			delete(o.doubleFrees, e.Subject)
			o.freedTwice[e.Subject] = e.Time
		}
	}
	return o.isFreedTwice(e, e.Subject)
}

// isFreedTwice reports whether an event can be a consequence of a double free: a Service that uses
// the port without an allocation frees it again when it is deleted.
func (o *Oracle) isFreedTwice(e Event, subject string) bool {
	last, ok := o.freedTwice[subject]
	if !ok || e.Time.Sub(last) > releaseTime {
		return false
	}
	o.freedTwice[subject] = e.Time
	return true
}

// markReleased marks the violations that an update of a Service explains. There may be several:
// kube-apiserver frees a port of two protocols twice, and a repair allocates it in between.
func (o *Oracle) markReleased(e Event, subject string) {
	for index := range o.violations {
		violation := &o.violations[index]
		if violation.Subject == subject && violation.ReleasedAt == 0 && slices.Contains(violation.Services, e.Service) {
			violation.ReleasedAt = e.Revision
		}
	}
}

// startUse processes the first use of a subject by a Service.
func (o *Oracle) startUse(e Event, subject string) {
	if o.users[subject] == nil {
		o.users[subject] = map[string]bool{}
	}
	o.users[subject][e.Service] = true
	o.shared[subject] = o.shared[subject] || len(o.users[subject]) > 1
	delete(o.freedInUse, subject) // A later allocation is no reallocation.
	if e.Injected {
		return
	}
	byDoubleFree := !o.allocated[subject] && o.isFreedTwice(e, subject)
	if !o.allocated[subject] && !byDoubleFree {
		o.addViolation(UsedUnallocated, e.Revision, subject)
	}
	switch {
	case len(o.users[subject]) == 1:
		delete(o.sharedByDamage, subject)
	case o.damaged[subject], o.isFreedTwice(e, subject):
		o.sharedByDamage[subject] = true
	default:
		o.addViolation(Shared, e.Revision, subject)
	}
}

func describe(e Event, subject string) string {
	text := map[Kind]string{Allocate: "allocated", Free: "freed", Use: e.Service + " does not use it"}[e.Kind]
	switch {
	case e.Gone:
		text = e.Service + " is deleted"
	case e.Kind == Use && slices.Contains(e.Subjects, subject):
		text = e.Service + " uses it"
	}
	if e.Injected {
		text += " (injected)"
	}
	return fmt.Sprintf("revision %d at %s: %s", e.Revision, e.Time.Format("15:04:05.000"), text)
}

// recordUnuse begins or ends the unuse of a subject after an event.
func (o *Oracle) recordUnuse(e Event, subject string) {
	unuses := o.unuses[subject]
	lasts := len(unuses) > 0 && unuses[len(unuses)-1].To.IsZero()
	switch unused := o.isUnused(subject); {
	case unused && !lasts:
		o.unuses[subject] = append(unuses, Unuse{Subject: subject, Revision: e.Revision, From: e.Time, Cause: o.causeOf(e, subject)})
	case !unused && lasts:
		unuses[len(unuses)-1].To = e.Time
	}
}

func (o *Oracle) isUnused(subject string) bool {
	return o.allocated[subject] && len(o.users[subject]) == 0
}

// causeOf returns the cause of an unuse that begins with an event. kube-apiserver frees what an
// update releases before it writes the Service. An allocation for the Service in between, which
// still uses the subject, is therefore left over.
func (o *Oracle) causeOf(e Event, subject string) Cause {
	if e.Injected {
		return InjectedLeak
	}
	index, ok := o.last[subject]
	if !ok {
		return NoCause
	}
	last := o.violations[index]
	if last.Rule == FreedInUse && last.ReleasedAt > 0 && last.ReallocatedAt > 0 && max(last.ReleasedAt, last.ReallocatedAt) == e.Revision {
		return UpdateAndRepair
	}
	return NoCause
}

func (o *Oracle) addViolation(rule Rule, revision int64, subject string) {
	o.last[subject] = len(o.violations)
	o.violations = append(o.violations, Violation{
		Rule: rule, Revision: revision, Subject: subject, Services: slices.Sorted(maps.Keys(o.users[subject])),
	})
}

// Violations returns all violations in order.
func (o *Oracle) Violations() []Violation { return slices.Clone(o.violations) }

// Events returns the number of observed events.
func (o *Oracle) Events() int { return o.events }

// Users returns the sorted Services that use a subject.
func (o *Oracle) Users(subject string) []string { return slices.Sorted(maps.Keys(o.users[subject])) }

// IsAllocated reports whether a subject is allocated.
func (o *Oracle) IsAllocated(subject string) bool { return o.allocated[subject] }

// Unused returns the sorted subjects that are allocated and not in use.
func (o *Oracle) Unused() []string {
	var unused []string
	for subject := range o.allocated {
		if o.isUnused(subject) {
			unused = append(unused, subject)
		}
	}
	slices.Sort(unused)
	return unused
}

// WasUnallocated reports whether a subject was in use and not allocated at one time.
func (o *Oracle) WasUnallocated(subject string) bool { return o.unallocated[subject] }

// WasShared reports whether two Services used a subject at one time, by damage or in violation of a
// rule.
func (o *Oracle) WasShared(subject string) bool { return o.shared[subject] }

// Unuses returns all times during which a subject was allocated and not in use, in order.
func (o *Oracle) Unuses(subject string) []Unuse { return slices.Clone(o.unuses[subject]) }

// History returns the observed events of a subject in order, one line each.
func (o *Oracle) History(subject string) []string { return slices.Clone(o.histories[subject]) }
