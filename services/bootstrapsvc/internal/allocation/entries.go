package allocation

import (
	"reflect"
	"slices"
	"time"
)

// entry is a finding in the index.
type entry struct {
	finding     Finding
	subject     subject
	grace       graceKind
	incarnation string
	period      gracePeriod
	// restart makes the next comparison restart the grace period.
	restart bool
	// due is when time or a pass can next change a pending entry.
	due time.Time
}

// entries are the findings of the last comparison.
type entries struct {
	periods   GracePeriods
	byName    map[string]*entry
	bySubject map[subject][]*entry
	pending   map[*entry]struct{}
}

func newEntries(periods GracePeriods) entries {
	return entries{
		periods: periods, byName: map[string]*entry{}, bySubject: map[subject][]*entry{}, pending: map[*entry]struct{}{},
	}
}

func (es *entries) update(s subject, candidates []candidate, now time.Time, delta *Delta) {
	before := es.bySubject[s]
	if len(before) == 0 && len(candidates) == 0 {
		return
	}
	after := make([]*entry, 0, len(candidates))
	for _, c := range candidates {
		e := es.byName[c.Name]
		if e == nil {
			e = &entry{restart: true}
			es.byName[c.Name] = e
		}
		if e.set(s, c, now, es.periods) {
			delta.Changed = append(delta.Changed, e.finding)
		}
		es.schedule(e)
		after = append(after, e)
	}
	for _, e := range before {
		if !slices.Contains(after, e) {
			delete(es.byName, e.finding.Name)
			delete(es.pending, e)
			delta.Ended = append(delta.Ended, e.finding)
		}
	}
	if len(after) == 0 {
		delete(es.bySubject, s)
		return
	}
	es.bySubject[s] = after
}

func (e *entry) set(s subject, c candidate, now time.Time, periods GracePeriods) (changed bool) {
	if e.restart || e.incarnation != c.incarnation {
		e.period, e.restart = gracePeriod{since: now}, false
	}
	e.subject, e.grace, e.incarnation = s, c.grace, c.incarnation
	finding := c.Finding
	finding.Since, finding.Observations = e.period.since, e.period.observations
	if over, earliest := e.period.over(now, periods, c.grace); over {
		finding.State = StateOpen
	} else {
		finding.State, finding.GraceEnds = StatePending, earliest
		finding.Safe, finding.Steps = false, nil
		if finding.Repair != "" {
			finding.UnsafeReason = periods.unsafeReason(c.grace)
		}
	}
	changed = !reflect.DeepEqual(finding, e.finding)
	e.finding = finding
	return changed
}

func (es *entries) schedule(e *entry) {
	if e.finding.State != StatePending {
		delete(es.pending, e)
		return
	}
	es.pending[e] = struct{}{}
	e.due = e.period.due(es.periods, e.grace)
}

// nextDue returns the earliest time at which a pending entry is due, zero if none is pending.
func (es *entries) nextDue() (next time.Time) {
	for e := range es.pending {
		if next.IsZero() || e.due.Before(next) {
			next = e.due
		}
	}
	return next
}

// markDue calls mark for the subject of each entry whose grace period is over. An entry that waits
// for observations is due again a second later. Otherwise a pass that does not count would make the
// caller loop.
func (es *entries) markDue(now time.Time, mark func(subject)) {
	for e := range es.pending {
		if e.due.After(now) {
			continue
		}
		e.due = now.Add(time.Second)
		if over, _ := e.period.over(now, es.periods, e.grace); over {
			mark(e.subject)
		}
	}
}

// observe counts an observation of every pending entry, except those of some stores, and calls mark
// for the subjects of those that it changed.
func (es *entries) observe(now time.Time, except []Store, mark func(subject)) {
	for e := range es.pending {
		if slices.Contains(except, e.subject.store) {
			continue
		}
		observed := e.period.observe(now, es.periods.Interval)
		if e.restart || observed == e.period {
			continue
		}
		e.period = observed
		mark(e.subject)
		e.due = observed.due(es.periods, e.grace)
	}
}

// restartUnused restarts the grace period of a subject that is allocated and unused, because
// something contradicted that.
func (es *entries) restartUnused(s subject) {
	for _, e := range es.bySubject[s] {
		e.restart = e.restart || e.grace == graceUnused
	}
}

// restartAfterGap restarts the grace period of everything that is unused or pending.
func (es *entries) restartAfterGap() {
	for _, e := range es.byName {
		e.restart = e.restart || e.grace == graceUnused || e.finding.State == StatePending
	}
}

func (es *entries) subjectsOf(store Store) []subject {
	var found []subject
	for s := range es.bySubject {
		if s.store == store {
			found = append(found, s)
		}
	}
	return found
}
