package sessioncontroller

import (
	"cmp"
	"slices"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

const (
	// problemsInterval is the time between two updates of Problems.
	problemsInterval = time.Second
	// problemFailures is how often in a row the write of a Lease must fail to be a problem: a
	// conflict is resolved by the next write.
	problemFailures = 2
	// maxProblemSessions is the number of sessions that Affected names.
	maxProblemSessions = 5
)

// Problems are sessions with which something is wrong, as of the last second.
type Problems struct {
	// Unwritten have a Lease that cannot be written. Detail is why the first one cannot.
	Unwritten Affected
	// Unowned have a Lease that is not written because its Node does not exist.
	Unowned Affected
	// Duplicates are held by one boot while another one beats. Detail is the rejected boot of the
	// first one.
	Duplicates Affected
}

// Affected are sessions of which a few are named.
type Affected struct {
	Count int
	// First are ordered by class and name. A session is named until it recovers.
	First  []session.Key
	Detail string
}

// Problems returns what is wrong, from memory.
func (c *Controller) Problems() Problems {
	if p := c.problems.Load(); p != nil {
		return *p
	}
	return Problems{}
}

// problemSlots are the slots of sessions with a problem. They belong to the owner of the sessions.
type problemSlots struct {
	unwritten, unowned, duplicates affectedSlots
	updateAt                       monotonic.Instant
}

// affectedSlots is a set of slots. named are in the set.
type affectedSlots struct {
	slots map[uint32]struct{}
	named []uint32
}

func (a *affectedSlots) add(slot uint32) {
	if a.slots == nil {
		a.slots = map[uint32]struct{}{}
	}
	a.slots[slot] = struct{}{}
}

// written removes what is wrong with the write of a Lease.
func (p *problemSlots) written(slot uint32) {
	delete(p.unwritten.slots, slot)
	delete(p.unowned.slots, slot)
}

// remove removes a session that is gone.
func (p *problemSlots) remove(slot uint32) {
	p.written(slot)
	delete(p.duplicates.slots, slot)
}

// updateProblems takes constant time unless there are many duplicates.
func (c *Controller) updateProblems(now monotonic.Instant) {
	p := &c.problemSlots
	if now < p.updateAt {
		return
	}
	p.updateAt = now.Add(problemsInterval)
	for slot := range p.duplicates.slots {
		if _, is := c.duplicate(now, c.sessionAt(slot)); !is {
			delete(p.duplicates.slots, slot)
			c.changes.touch(slot)
		}
	}
	problems := Problems{Unwritten: c.affected(&p.unwritten), Unowned: c.affected(&p.unowned), Duplicates: c.affected(&p.duplicates)}
	c.problems.Store(&problems)
}

// duplicate returns the other boot of a session; false if none has been rejected lately.
func (c *Controller) duplicate(now monotonic.Instant, s session.Session) (session.Duplicate, bool) {
	return c.table.Duplicate(now, s.Ref)
}

// affected names the slots that were named before, and others up to maxProblemSessions.
func (c *Controller) affected(a *affectedSlots) Affected {
	a.named = slices.DeleteFunc(a.named, func(slot uint32) bool {
		_, is := a.slots[slot]
		return !is
	})
	for slot := range a.slots {
		if len(a.named) == maxProblemSessions {
			break
		}
		if !slices.Contains(a.named, slot) {
			a.named = append(a.named, slot)
		}
	}
	slices.SortFunc(a.named, func(x, y uint32) int { return compareSessions(c.sessionAt(x), c.sessionAt(y)) })
	result := Affected{Count: len(a.slots)}
	for i, slot := range a.named {
		s := c.sessionAt(slot)
		result.First = append(result.First, s.Holder.Key)
		if i > 0 {
			continue
		}
		result.Detail = c.exceptions.errors[slot]
		if d, rejected := c.table.Duplicate(c.now(), s.Ref); rejected && result.Detail == "" {
			result.Detail = d.Boot
		}
	}
	return result
}

func (c *Controller) sessionAt(slot uint32) session.Session {
	s, _ := c.table.At(slot)
	return s
}

func compareSessions(a, b session.Session) int {
	x, y := a.Holder.Key, b.Holder.Key
	return cmp.Or(cmp.Compare(x.Class, y.Class), cmp.Compare(x.Name, y.Name))
}
