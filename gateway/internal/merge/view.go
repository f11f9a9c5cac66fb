package merge

import (
	"slices"
	"time"
)

// Hold is how long an item lives on after it was said to be gone. It covers what a shard takes to be claimed and, for sessions,
// the interval after which their holders beat at the new place.
const Hold = 10 * time.Second

// Item is what replicas tell of.
type Item interface {
	// GetName names the item among all.
	GetName() string
	// GetEpoch is that of the term under which it is told; for one name a later term has a higher one.
	GetEpoch() int64
}

// State is the merged view. Make it with New. It is not safe for concurrent use, its readers included.
type State[T Item] struct {
	same func(a, b T) bool
	// shared is whether every replica tells of every item.
	shared  bool
	parts   map[string]*part
	planned bool // whether Expect has ever said who there is
	slots   []slot[T]
	byName  map[string]int // of each name in slots, gone ones included while somebody has to be told
	free    []int          // places in slots that nobody uses
	doubted []doubt        // what is said to be gone, in the order in which it will be believed
	readers map[*Reader[T]]struct{}
	// news counts what a bookmark could tell.
	news uint64
}

// part is one replica.
type part struct {
	// round counts how often it began to tell everything.
	round uint64
	// heard is whether it has told everything and goes on telling.
	heard bool
	// tried is whether it was heard or has failed at least once.
	tried bool
}

// slot is what is known of one name.
type slot[T Item] struct {
	name    string
	item    T
	epoch   int64 // of the last word that counted, also of the one that it is gone
	replica string
	round   uint64 // in which replica said it
	alive   bool
	// due is when to believe that it is gone; zero while nobody says so.
	due time.Time
	// told counts the readers who know of it.
	told int
	// tellers are, of a shared item, the replicas that tell of it, with the round in which each did last.
	tellers map[string]uint64
}

type doubt struct {
	place int
	due   time.Time
}

// New returns an empty state. same says whether two states of an item look the same to readers.
func New[T Item](same func(a, b T) bool) *State[T] {
	return &State[T]{same: same, parts: map[string]*part{}, byName: map[string]int{}, readers: map[*Reader[T]]struct{}{}}
}

// Expect says which replicas there are. Items of those that left are doubted from now on.
func (s *State[T]) Expect(now time.Time, replicas []string) {
	if !s.planned {
		s.planned = true
		s.news++
	}
	for id := range s.parts {
		if !slices.Contains(replicas, id) {
			delete(s.parts, id)
			s.retract(now, id, func(uint64) bool { return true })
			s.news++
		}
	}
	for _, id := range replicas {
		if s.parts[id] == nil {
			s.parts[id] = &part{}
			s.news++
		}
	}
}

// Begin says that a replica starts to tell: everything or, where it resumes, what changed since it stopped. It is heard again
// at its next bookmark.
func (s *State[T]) Begin(replica string, resumes bool) {
	p := s.parts[replica]
	if p == nil {
		return
	}
	if p.heard {
		p.heard = false
		s.news++
	}
	if !resumes {
		p.round++
	}
}

// Bookmark says that a replica has told everything. What it did not mention since it began is doubted.
func (s *State[T]) Bookmark(now time.Time, replica string) {
	p := s.parts[replica]
	if p == nil || p.heard {
		return
	}
	p.heard, p.tried = true, true
	s.news++
	s.retract(now, replica, func(round uint64) bool { return round != p.round })
}

// Fail says that a replica does not tell, or stopped to. It is among the missing until its next bookmark.
func (s *State[T]) Fail(replica string) {
	p := s.parts[replica]
	if p == nil {
		return
	}
	p.heard, p.tried = false, true
	s.news++
}

// Put takes the word of a replica that an item is so.
func (s *State[T]) Put(replica string, item T) {
	p := s.parts[replica]
	if p == nil {
		return
	}
	place, known := s.byName[item.GetName()]
	if !known {
		place = s.add(item.GetName())
	}
	now := &s.slots[place]
	s.hear(now, replica, p.round)
	if known && !s.outranks(now, replica, item.GetEpoch()) {
		return
	}
	changed := !now.alive || !s.same(now.item, item)
	now.item, now.epoch, now.replica, now.round = item, item.GetEpoch(), replica, p.round
	now.alive, now.due = true, time.Time{}
	if changed {
		s.mark(place)
	}
}

// Remove takes the word of a replica that an item is gone; only its name and epoch count.
func (s *State[T]) Remove(now time.Time, replica string, item T) {
	place, known := s.byName[item.GetName()]
	if !known || s.parts[replica] == nil {
		return
	}
	gone := &s.slots[place]
	delete(gone.tellers, replica)
	if !gone.alive || item.GetEpoch() < gone.epoch {
		return
	}
	gone.epoch, gone.replica = item.GetEpoch(), replica
	if s.shared {
		s.bury(place)
		return
	}
	s.suspect(now, place)
}

// Advance removes what has been doubted for long enough, and returns when to call it next; zero when there is nothing to wait for.
func (s *State[T]) Advance(now time.Time) (next time.Time) {
	for len(s.doubted) > 0 {
		first := s.doubted[0]
		if item := &s.slots[first.place]; !item.alive || !item.due.Equal(first.due) {
			s.doubted = s.doubted[1:] // told of again, or doubted anew
			continue
		}
		if first.due.After(now) {
			return first.due
		}
		s.doubted = s.doubted[1:]
		s.bury(first.place)
	}
	s.doubted = nil
	return time.Time{}
}

// Settled says whether every replica has been heard or has failed, so that waiting brings nothing more.
func (s *State[T]) Settled() bool {
	for _, p := range s.parts {
		if !p.tried {
			return false
		}
	}
	return s.planned
}

// Heard says whether any replica has told everything and goes on telling.
func (s *State[T]) Heard() bool {
	for _, p := range s.parts {
		if p.heard {
			return true
		}
	}
	return false
}

// Missing names the replicas whose part is not known, or not anew since they failed; ordered.
func (s *State[T]) Missing() []string {
	var missing []string
	for id, p := range s.parts {
		if !p.heard {
			missing = append(missing, id)
		}
	}
	slices.Sort(missing)
	return missing
}

// Nudge has every reader get a bookmark, as a sign of life.
func (s *State[T]) Nudge() { s.news++ }

func (s *State[T]) add(name string) int {
	place := len(s.slots)
	if last := len(s.free) - 1; last >= 0 {
		place, s.free = s.free[last], s.free[:last]
	} else {
		s.slots = append(s.slots, slot[T]{})
	}
	s.slots[place] = slot[T]{name: name}
	s.byName[name] = place
	return place
}

func (s *State[T]) suspect(now time.Time, place int) {
	item := &s.slots[place]
	if !item.due.IsZero() {
		return // doubted already, and never for longer
	}
	item.due = now.Add(Hold)
	s.doubted = append(s.doubted, doubt{place: place, due: item.due})
}

func (s *State[T]) bury(place int) {
	item := &s.slots[place]
	item.alive = false
	if item.told == 0 {
		s.forget(place)
		return
	}
	s.mark(place)
}

// forget frees the place of an item that is gone and that no reader knows of any more.
func (s *State[T]) forget(place int) {
	delete(s.byName, s.slots[place].name)
	s.slots[place] = slot[T]{}
	s.free = append(s.free, place)
}

// mark has every reader look at a place.
func (s *State[T]) mark(place int) {
	for reader := range s.readers {
		reader.due.set(place)
	}
}
