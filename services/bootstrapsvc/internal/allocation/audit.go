package allocation

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// draft is a finding as it will be once nothing speaks against it.
type draft struct {
	Finding
	doubt doubt
	// incarnation names the object or Service that it is about: another one of the same name begins anew.
	incarnation string
}

// entry is a finding that the ledger holds.
type entry struct {
	draft    draft
	ripening ripening
	fresh    bool // the ripening has to begin, at the next audit
	shown    Finding
	subject  subject
	due      time.Time // its moment in verdicts.due; zero when it has none
}

// verdicts are what the last audit found.
type verdicts struct {
	byName    map[string]*entry
	bySubject map[subject][]*entry
	pending   map[*entry]struct{}
	due       *dues
}

func newVerdicts() verdicts {
	return verdicts{
		byName: map[string]*entry{}, bySubject: map[subject][]*entry{}, pending: map[*entry]struct{}{}, due: &dues{},
	}
}

// of are the subjects of a store about which something was found.
func (v verdicts) of(store Store) []subject {
	var found []subject
	for s := range v.bySubject {
		if s.store == store {
			found = append(found, s)
		}
	}
	return found
}

// restart has what is unused begin anew: something spoke against it.
func (v verdicts) restart(s subject) {
	for _, e := range v.bySubject[s] {
		e.fresh = e.fresh || e.draft.doubt == unused
	}
}

func (v verdicts) restartStore(store Store) {
	for _, s := range v.of(store) {
		v.restart(s)
	}
}

// interrupt has begin anew whatever is unused, and whatever is not open yet.
func (v verdicts) interrupt() {
	for _, e := range v.byName {
		e.fresh = e.fresh || e.draft.doubt == unused || e.shown.State == Pending
	}
}

// Delta is what an audit found that the one before had not.
type Delta struct {
	// Changed are findings that are new or other than before, ordered by name.
	Changed []Finding
	// Ended are findings that are no more, as they last were, ordered by name.
	Ended []Finding
}

// Audit judges what changed since the last call, and what time has ripened, and says what differs. The work is that of
// the changes, and not of the cluster's size.
func (l *Ledger) Audit(now time.Time) Delta {
	l.ripen(now)
	var delta Delta
	for s := range l.dirty {
		l.settle(s, now, &delta)
	}
	l.dirty = map[subject]struct{}{} // a cleared map stays as large as the first audit made it, and slow to walk
	byName := func(a, b Finding) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(delta.Changed, byName)
	slices.SortFunc(delta.Ended, byName)
	return delta
}

// ripen marks what time has ripened. What waits for passes is looked at again a second later: a pass that does not count
// must not keep the owner of the ledger turning in circles.
func (l *Ledger) ripen(now time.Time) {
	for {
		e, ok := l.verdicts.due.take(now)
		if !ok {
			return
		}
		if ripe, _ := e.ripening.ripe(now, l.patience, e.draft.doubt); ripe {
			l.mark(e.subject)
		} else {
			l.verdicts.due.set(e, now.Add(time.Second))
		}
	}
}

// settle replaces what was found about a subject by what is found now.
func (l *Ledger) settle(s subject, now time.Time, delta *Delta) {
	before := l.verdicts.bySubject[s]
	drafts := l.world.judge(s)
	if len(before) == 0 && len(drafts) == 0 {
		return
	}
	after := make([]*entry, 0, len(drafts))
	for _, d := range drafts {
		e := l.verdicts.carry(d, now)
		shown := e.show(now, l.patience)
		if !reflect.DeepEqual(shown, e.shown) {
			e.shown = shown
			delta.Changed = append(delta.Changed, l.stamped(shown))
		}
		after = append(after, e)
	}
	for _, e := range before {
		if !slices.Contains(after, e) {
			delete(l.verdicts.byName, e.draft.Name)
			l.verdicts.decide(e)
			delta.Ended = append(delta.Ended, l.stamped(e.shown))
		}
	}
	l.verdicts.keep(s, after, l.patience)
}

// carry returns the entry of a draft, the one it had where it is still about the same.
func (v verdicts) carry(d draft, now time.Time) *entry {
	e := v.byName[d.Name]
	if e == nil {
		e = &entry{fresh: true}
		v.byName[d.Name] = e
	}
	if e.fresh || e.draft.incarnation != d.incarnation {
		e.ripening, e.fresh = ripening{since: now}, false
	}
	e.draft = d
	return e
}

func (v verdicts) keep(s subject, entries []*entry, p Patience) {
	if len(entries) == 0 {
		delete(v.bySubject, s)
		return
	}
	v.bySubject[s] = entries
	for _, e := range entries {
		e.subject = s
		if e.shown.State != Pending {
			v.decide(e)
			continue
		}
		v.pending[e] = struct{}{}
		v.due.set(e, e.ripening.next(p, e.draft.doubt))
	}
}

// decide takes an entry out of what is pending.
func (v verdicts) decide(e *entry) {
	delete(v.pending, e)
	e.due = time.Time{}
}

// show is the finding as it stands at a moment.
func (e *entry) show(now time.Time, p Patience) Finding {
	f := e.draft.Finding
	f.Since, f.Sightings = e.ripening.since, e.ripening.sightings
	ripe, earliest := e.ripening.ripe(now, p, e.draft.doubt)
	if ripe {
		f.State = Open
		return f
	}
	f.State, f.Ripe = Pending, earliest
	f.Safe, f.Steps = false, nil
	if f.Repair != "" {
		f.UnsafeReason = p.waits(e.draft.doubt)
	}
	return f
}

// waits says what a finding waits for.
func (p Patience) waits(d doubt) string {
	length, sightings := p.of(d)
	if sightings == 0 {
		return fmt.Sprintf("it waits until it has been so for %s, for what is watched may be behind", length)
	}
	return fmt.Sprintf("it waits until nobody has used it for %s, watched without a gap, and %d passes saw it: "+
		"a request under way may be about to use it", length, sightings)
}

// Sight tells that a pass ended well: what it read was whole and no write of it met a conflict. Every pending finding that
// the last audit saw is sighted once more, unless its last sighting was less than Patience.Apart ago.
func (l *Ledger) Sight(now time.Time) {
	for e := range l.verdicts.pending {
		sighted := e.ripening.sight(now, l.patience.Apart)
		if e.fresh || sighted == e.ripening {
			continue
		}
		e.ripening = sighted
		l.mark(e.subject)
		l.verdicts.due.set(e, sighted.next(l.patience, e.draft.doubt))
	}
}

// Doubt has a finding ripen anew, whether it is open or not: somebody looked, and it was not so.
func (l *Ledger) Doubt(name string) {
	if e := l.verdicts.byName[name]; e != nil {
		e.fresh = true
		l.mark(e.subject)
	}
}

// Next is when the next pending finding can change by time or by a pass; zero when none can. A time that has passed
// asks for an audit at once. Audit has nothing to do before, unless something is put, deleted or sighted.
func (l *Ledger) Next() time.Time {
	next, _ := l.verdicts.due.first()
	return next.at
}
