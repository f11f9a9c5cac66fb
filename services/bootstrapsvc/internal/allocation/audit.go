package allocation

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// candidate is a finding as it will be once nothing speaks against it.
type candidate struct {
	Finding
	grace graceKind
	// incarnation names the object or Service that it is about: another one of the same name begins anew.
	incarnation string
}

// entry is a finding that the ledger holds.
type entry struct {
	draft       candidate
	gracePeriod gracePeriod
	restart     bool // the ripening has to begin, at the next audit
	shown       Finding
	subject     subject
	due         time.Time // its moment in verdicts.due; zero when it has none
}

// entries are what the last audit found.
type entries struct {
	byName    map[string]*entry
	bySubject map[subject][]*entry
	pending   map[*entry]struct{}
	due       *dueHeap
}

func newEntries() entries {
	return entries{
		byName: map[string]*entry{}, bySubject: map[subject][]*entry{}, pending: map[*entry]struct{}{}, due: &dueHeap{},
	}
}

// of are the subjects of a store about which something was found.
func (v entries) of(store Store) []subject {
	var found []subject
	for s := range v.bySubject {
		if s.store == store {
			found = append(found, s)
		}
	}
	return found
}

// restart has what is unused begin anew: something spoke against it.
func (v entries) restart(s subject) {
	for _, e := range v.bySubject[s] {
		e.restart = e.restart || e.draft.grace == graceUnused
	}
}

func (v entries) restartStore(store Store) {
	for _, s := range v.of(store) {
		v.restart(s)
	}
}

// restartUnsettled has begin anew whatever is unused, and whatever is not open yet.
func (v entries) restartUnsettled() {
	for _, e := range v.byName {
		e.restart = e.restart || e.draft.grace == graceUnused || e.shown.State == StatePending
	}
}

// Delta is what an audit found that the one before had not.
type Delta struct {
	// Changed are findings that are new or other than before, ordered by name.
	Changed []Finding
	// Ended are findings that are no more, as they last were, ordered by name.
	Ended []Finding
}

// Compare judges what changed since the last call, and what time has ripened, and says what differs. The work is that of
// the changes, and not of the cluster's size.
func (l *Index) Compare(now time.Time) Delta {
	l.markDue(now)
	var delta Delta
	for s := range l.dirty {
		l.compareSubject(s, now, &delta)
	}
	l.dirty = map[subject]struct{}{} // a cleared map stays as large as the first audit made it, and slow to walk
	byName := func(a, b Finding) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(delta.Changed, byName)
	slices.SortFunc(delta.Ended, byName)
	return delta
}

// markDue marks what time has ripened. What waits for passes is looked at again a second later: a pass that does not count
// must not keep the owner of the ledger turning in circles.
func (l *Index) markDue(now time.Time) {
	for {
		e, ok := l.entries.due.take(now)
		if !ok {
			return
		}
		if ripe, _ := e.gracePeriod.over(now, l.gracePeriods, e.draft.grace); ripe {
			l.mark(e.subject)
		} else {
			l.entries.due.set(e, now.Add(time.Second))
		}
	}
}

// compareSubject replaces what was found about a subject by what is found now.
func (l *Index) compareSubject(s subject, now time.Time, delta *Delta) {
	before := l.entries.bySubject[s]
	drafts := l.cache.compare(s)
	if len(before) == 0 && len(drafts) == 0 {
		return
	}
	after := make([]*entry, 0, len(drafts))
	for _, d := range drafts {
		e := l.entries.update(d, now)
		shown := e.show(now, l.gracePeriods)
		if !reflect.DeepEqual(shown, e.shown) {
			e.shown = shown
			delta.Changed = append(delta.Changed, l.withRevision(shown))
		}
		after = append(after, e)
	}
	for _, e := range before {
		if !slices.Contains(after, e) {
			delete(l.entries.byName, e.draft.Name)
			l.entries.removePending(e)
			delta.Ended = append(delta.Ended, l.withRevision(e.shown))
		}
	}
	l.entries.store(s, after, l.gracePeriods)
}

// update returns the entry of a draft, the one it had where it is still about the same.
func (v entries) update(d candidate, now time.Time) *entry {
	e := v.byName[d.Name]
	if e == nil {
		e = &entry{restart: true}
		v.byName[d.Name] = e
	}
	if e.restart || e.draft.incarnation != d.incarnation {
		e.gracePeriod, e.restart = gracePeriod{since: now}, false
	}
	e.draft = d
	return e
}

func (v entries) store(s subject, entries []*entry, p GracePeriods) {
	if len(entries) == 0 {
		delete(v.bySubject, s)
		return
	}
	v.bySubject[s] = entries
	for _, e := range entries {
		e.subject = s
		if e.shown.State != StatePending {
			v.removePending(e)
			continue
		}
		v.pending[e] = struct{}{}
		v.due.set(e, e.gracePeriod.nextDue(p, e.draft.grace))
	}
}

// removePending takes an entry out of what is pending.
func (v entries) removePending(e *entry) {
	delete(v.pending, e)
	e.due = time.Time{}
}

// show is the finding as it stands at a moment.
func (e *entry) show(now time.Time, p GracePeriods) Finding {
	f := e.draft.Finding
	f.Since, f.Observations = e.gracePeriod.since, e.gracePeriod.observations
	ripe, earliest := e.gracePeriod.over(now, p, e.draft.grace)
	if ripe {
		f.State = StateOpen
		return f
	}
	f.State, f.GraceEnds = StatePending, earliest
	f.Safe, f.Steps = false, nil
	if f.Repair != "" {
		f.UnsafeReason = p.waitReason(e.draft.grace)
	}
	return f
}

// waitReason says what a finding waits for.
func (p GracePeriods) waitReason(d graceKind) string {
	length, sightings := p.of(d)
	if sightings == 0 {
		return fmt.Sprintf("it waits until it has been so for %s, for what is watched may be behind", length)
	}
	return fmt.Sprintf("it waits until nobody has used it for %s, watched without a gap, and %d passes saw it: "+
		"a request under way may be about to use it", length, sightings)
}

// Observe tells that a pass ended well: what it read was whole and no write of it met a conflict. Every pending finding that
// the last audit saw is sighted once more, unless its last sighting was less than Patience.Apart ago.
func (l *Index) Observe(now time.Time) {
	for e := range l.entries.pending {
		sighted := e.gracePeriod.observe(now, l.gracePeriods.Interval)
		if e.restart || sighted == e.gracePeriod {
			continue
		}
		e.gracePeriod = sighted
		l.mark(e.subject)
		l.entries.due.set(e, sighted.nextDue(l.gracePeriods, e.draft.grace))
	}
}

// RestartGracePeriod has a finding ripen anew, whether it is open or not: somebody looked, and it was not so.
func (l *Index) RestartGracePeriod(name string) {
	if e := l.entries.byName[name]; e != nil {
		e.restart = true
		l.mark(e.subject)
	}
}

// NextDue is when the next pending finding can change by time or by a pass; zero when none can. A time that has passed
// asks for an audit at once. Audit has nothing to do before, unless something is put, deleted or sighted.
func (l *Index) NextDue() time.Time {
	next, _ := l.entries.due.first()
	return next.at
}
