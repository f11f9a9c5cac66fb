package recording

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// fieldRenewals counts how often a Lease was renewed in a step.
const fieldRenewals = "renewals"

// Tracker turns views of objects into changes. Times are since any fixed moment. It is not safe for
// concurrent use.
type Tracker struct {
	steps    []Step
	began    time.Duration // of the last step
	changes  []Change      // with names of this run
	views    map[key]View
	subjects []subject
	renewals map[string]int
	// events of this step, each with its text, so that a repeated event is no change.
	events map[Change]bool
	last   time.Duration
}

type key struct{ kind, name string }

// subject is an object whose name or addresses get roles.
type subject struct {
	View
	step int
}

// NewTracker returns a tracker that is in no step: it remembers what it sees, and lists no change.
func NewTracker() *Tracker {
	return &Tracker{views: map[key]View{}, renewals: map[string]int{}, events: map[Change]bool{}}
}

// BeginStep ends the last step and begins the next one. The first step begins with all fields of
// all objects as changes, except for events, which belong to the start of the cluster.
func (t *Tracker) BeginStep(at time.Duration, name string) {
	t.endStep(at)
	t.steps = append(t.steps, Step{Name: name})
	t.began, t.last = at, at
	if len(t.steps) > 1 {
		return
	}
	for _, k := range slices.SortedFunc(maps.Keys(t.views), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	}) {
		t.compare(at, View{Kind: k.kind, Name: k.name}, t.views[k])
	}
}

func (t *Tracker) endStep(at time.Duration) {
	if len(t.steps) == 0 {
		return
	}
	t.steps[len(t.steps)-1].Duration = at - t.began
	for _, lease := range slices.Sorted(maps.Keys(t.renewals)) {
		t.add(at, KindLease, lease, fieldRenewals, fmt.Sprint(t.renewals[lease]))
	}
	clear(t.renewals)
	clear(t.events)
}

// Observe takes in an object as it is now.
func (t *Tracker) Observe(at time.Duration, v View) {
	if v.Kind == KindEvent {
		t.observeEvent(at, v)
		return
	}
	k := key{v.Kind, v.Name}
	before, known := t.views[k]
	t.views[k] = v
	t.remember(v)
	if len(t.steps) == 0 {
		return
	}
	t.compare(at, before, v)
	if known && v.Renewal != before.Renewal {
		t.renewals[v.Name]++
	}
}

func (t *Tracker) observeEvent(at time.Duration, v View) {
	if len(t.steps) == 0 {
		return
	}
	for _, field := range slices.Sorted(maps.Keys(v.Fields)) {
		event := Change{Object: v.Name, Field: field, Value: v.Fields[field]}
		if !t.events[event] {
			t.events[event] = true
			t.add(at, KindEvent, v.Name, field, v.Fields[field])
		}
	}
}

// Gone takes in the end of an object. Its other fields end with it and are not listed.
func (t *Tracker) Gone(at time.Duration, kind, name string) {
	if _, known := t.views[key{kind, name}]; !known {
		return
	}
	delete(t.views, key{kind, name})
	if len(t.steps) > 0 {
		t.add(at, kind, name, FieldExists, "")
	}
}

// compare lists the fields that differ.
func (t *Tracker) compare(at time.Duration, before, now View) {
	fields := map[string]bool{}
	for field := range before.Fields {
		fields[field] = true
	}
	for field := range now.Fields {
		fields[field] = true
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if before.Fields[field] != now.Fields[field] {
			t.add(at, now.Kind, now.Name, field, now.Fields[field])
		}
	}
}

func (t *Tracker) add(at time.Duration, kind, name, field, value string) {
	if field != fieldRenewals {
		t.last = at
	}
	step := t.steps[len(t.steps)-1].Name
	t.changes = append(t.changes, Change{Step: step, After: at - t.began, Kind: kind, Object: name, Field: field, Value: value})
}

// remember keeps the newest view of an object with a role, also after the object is gone.
func (t *Tracker) remember(v View) {
	if v.role == "" && len(v.addresses) == 0 {
		return
	}
	i := slices.IndexFunc(t.subjects, func(s subject) bool { return s.Kind == v.Kind && s.Name == v.Name })
	if i < 0 {
		t.subjects = append(t.subjects, subject{View: v, step: len(t.steps)})
		return
	}
	// A Pod that has ended reports no address any more.
	v.node = cmp.Or(v.node, t.subjects[i].node)
	if len(v.addresses) == 0 {
		v.addresses = t.subjects[i].addresses
	}
	t.subjects[i].View = v
}

// LastChange is when the last change was seen, or when the step began. Renewals of Leases are no
// changes.
func (t *Tracker) LastChange() time.Duration { return t.last }

// Views returns the objects of a kind as they are now, in no order.
func (t *Tracker) Views(kind string) []View {
	var found []View
	for k, v := range t.views {
		if k.kind == kind {
			found = append(found, v)
		}
	}
	return found
}

// Finish ends the last step and returns the recording with roles instead of names.
func (t *Tracker) Finish(at time.Duration) Recording {
	t.endStep(at)
	return Recording{Steps: slices.Clone(t.steps), Changes: normalize(t.changes, rolesOf(t.subjects))}
}
