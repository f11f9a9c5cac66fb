package voice

import (
	"cmp"
	"slices"
)

// Kind of an event.
type Kind int

const (
	// Added tells of an item for the first time in a round.
	Added Kind = iota + 1
	// Modified tells that an item is another one than before.
	Modified
	// Removed tells that an item is gone, and how it was at last.
	Removed
)

// Event is what a reader is told of one item.
type Event[T any] struct {
	Kind Kind
	Item T
}

// state is what was told. It is not safe for concurrent use; time and streams are its caller's.
type state[T any] struct {
	items map[string]*item[T]
	gone  int // how many of them are gone
	// changes counts what was told of items, news what a bookmark could tell.
	changes, news uint64
	// round counts the streams that have begun.
	round uint64
	// heard is whether the present one has told everything; failure why nobody speaks, where no stream has begun since.
	heard   bool
	failure error
	readers map[*share[T]]struct{}
}

// item is what is known under one name.
type item[T any] struct {
	name   string
	last   T
	change uint64 // when it was told last
	round  uint64 // in which it was told last
	gone   bool
}

// share is what one reader has been told.
type share[T any] struct {
	rounds  map[string]uint64 // of each item that it believes to exist, the round in which it was told
	changes uint64
	news    uint64
}

func newState[T any]() *state[T] {
	return &state[T]{items: map[string]*item[T]{}, readers: map[*share[T]]struct{}{}}
}

func (s *state[T]) join() *share[T] {
	reader := &share[T]{rounds: map[string]uint64{}}
	s.readers[reader] = struct{}{}
	return reader
}

func (s *state[T]) leave(reader *share[T]) {
	delete(s.readers, reader)
	s.forget()
}

// begin says that a stream tells everything anew.
func (s *state[T]) begin() {
	s.round++
	s.heard, s.failure = false, nil
}

func (s *state[T]) put(name string, told T) {
	s.changes++
	if known := s.items[name]; known != nil && known.gone {
		s.gone--
	}
	s.items[name] = &item[T]{name: name, last: told, change: s.changes, round: s.round}
}

func (s *state[T]) remove(name string, told T) {
	if known := s.items[name]; known != nil && !known.gone {
		s.changes++
		s.gone++
		known.last, known.change, known.gone = told, s.changes, true
	}
}

// bookmark says that the stream has told everything. What it did not mention is gone, as departed says it.
func (s *state[T]) bookmark(departed func(T) T) {
	if s.heard {
		return
	}
	s.heard = true
	s.news++
	for _, known := range s.items {
		if known.round != s.round && !known.gone {
			s.remove(known.name, departed(known.last))
		}
	}
}

// fail says that nobody speaks, and why.
func (s *state[T]) fail(why error) {
	s.heard, s.failure = false, why
	s.news++
}

// take tells a reader what it does not know yet, in the order in which it came to be so, and whether there is a bookmark behind.
func (s *state[T]) take(reader *share[T]) (events []Event[T], bookmark bool) {
	for _, known := range s.since(reader.changes) {
		round, told := reader.rounds[known.name]
		switch {
		case known.gone && told:
			delete(reader.rounds, known.name)
			events = append(events, Event[T]{Kind: Removed, Item: known.last})
		case known.gone: // it came and went unseen
		case told && round == known.round:
			events = append(events, Event[T]{Kind: Modified, Item: known.last})
		default:
			reader.rounds[known.name] = known.round
			events = append(events, Event[T]{Kind: Added, Item: known.last})
		}
	}
	bookmark = (s.heard || s.failure != nil) && reader.news != s.news
	reader.changes, reader.news = s.changes, s.news
	s.forget()
	return events, bookmark
}

// since are the items of which something was told after a change, in order.
func (s *state[T]) since(change uint64) []*item[T] {
	if change == s.changes {
		return nil
	}
	var later []*item[T]
	for _, known := range s.items {
		if known.change > change {
			later = append(later, known)
		}
	}
	slices.SortFunc(later, func(a, b *item[T]) int { return cmp.Compare(a.change, b.change) })
	return later
}

// forget drops what is gone and need not be told to anybody any more.
func (s *state[T]) forget() {
	if s.gone == 0 {
		return
	}
	told := s.changes
	for reader := range s.readers {
		told = min(told, reader.changes)
	}
	for name, known := range s.items {
		if known.gone && known.change <= told {
			s.gone--
			delete(s.items, name)
		}
	}
}
