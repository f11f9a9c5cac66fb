package merge

// Kind says what happened to an item, as one reader sees it.
type Kind int

const (
	// Added: the reader did not know of the item.
	Added Kind = iota + 1
	// Modified: the reader knows of it; this is its newest state.
	Modified
	// Removed: the item is gone, or not wanted any more.
	Removed
)

// Event is one change for one reader.
type Event[T Item] struct {
	Kind Kind
	// Item is the newest state; of a removed item the last one.
	Item T
}

// Reader is one who follows the view. Make it with Join.
type Reader[T Item] struct {
	state *State[T]
	wants func(T) bool
	due   places // places to look at
	told  places // places of the items that the reader knows of
	next  int    // place to go on at
	begun uint64 // what a bookmark could have told when this pass over the places began
	news  uint64 // what the last bookmark told
}

// Join adds a reader of the items that are wanted. Everything that exists is due.
func (s *State[T]) Join(wants func(T) bool) *Reader[T] {
	r := &Reader[T]{state: s, wants: wants, news: s.news - 1} // so that a bookmark is due
	for place := range s.slots {
		if s.slots[place].alive {
			r.due.set(place)
		}
	}
	s.readers[r] = struct{}{}
	return r
}

// Leave forgets a reader. It must be called once.
func (s *State[T]) Leave(r *Reader[T]) {
	delete(s.readers, r)
	for place := r.told.next(0); place >= 0; place = r.told.next(place + 1) {
		s.untell(place)
	}
}

// Take returns the next changes, at most limit of them, and whether a bookmark follows them: then all that existed when the
// last bookmark was due has been taken. It returns nothing when there is nothing to tell.
func (r *Reader[T]) Take(limit int) (events []Event[T], bookmark bool) {
	for len(events) < limit {
		if r.next == 0 {
			r.begun = r.state.news
		}
		place := r.due.next(r.next)
		if place < 0 {
			r.next = 0
			if r.begun != r.state.news && r.state.Settled() {
				continue // who was heard during this pass may have told of places behind it: another one to its end
			}
			return events, r.state.Settled() && r.mark()
		}
		r.next = place + 1
		r.due.unset(place)
		if event, tells := r.look(place); tells {
			events = append(events, event)
		}
	}
	return events, false
}

// Pending says whether Take may have something to tell.
func (r *Reader[T]) Pending() bool {
	return r.due.next(0) >= 0 || r.news != r.state.news && r.state.Settled()
}

// mark takes the bookmark that is due, if one is.
func (r *Reader[T]) mark() bool {
	due := r.news != r.state.news
	r.news = r.state.news
	return due
}

// look tells what became of a place since the reader last looked.
func (r *Reader[T]) look(place int) (event Event[T], tells bool) {
	s := r.state
	item := &s.slots[place]
	event.Item = item.item
	known, wanted := r.told.has(place), item.alive && r.wants(item.item)
	switch {
	case wanted && known:
		event.Kind = Modified
	case wanted:
		event.Kind = Added
		r.told.set(place)
		item.told++
	case known:
		event.Kind = Removed
		r.told.unset(place)
		s.untell(place)
	default:
		return event, false
	}
	return event, true
}

// untell counts one reader less who knows of a place.
func (s *State[T]) untell(place int) {
	item := &s.slots[place]
	if item.told--; item.told == 0 && !item.alive {
		s.forget(place)
	}
}
