package list

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/watch"
)

// store has the items of a watch. One goroutine uses it.
type store[T Item] struct {
	kind    Kind[T]
	entries map[string]entry[T]
	// round is the number of times that all items were sent. A resumed stream continues a round.
	round int
	// sent says that all items of the round were sent; complete, that no part is missing besides.
	sent, complete bool
}

type entry[T Item] struct {
	item  T
	round int // the last round with the item
}

func newStore[T Item](kind Kind[T]) *store[T] {
	return &store[T]{kind: kind, entries: map[string]entry[T]{}}
}

// beginAnew must be called before all items are sent again.
func (s *store[T]) beginAnew() {
	s.round++
	s.sent, s.complete = false, false
}

// put stores an item and reports whether it is new or more than its volatile fields changed.
func (s *store[T]) put(item T) (changed bool) {
	item = withoutStale(s.kind, item)
	old, existed := s.entries[item.GetName()]
	s.entries[item.GetName()] = entry[T]{item: item, round: s.round}
	return !existed || !proto.Equal(s.kind.WithoutVolatile(old.item), s.kind.WithoutVolatile(item))
}

func withoutStale[T Item](kind Kind[T], item T) T {
	if kind.WithoutStale == nil {
		return item
	}
	return kind.WithoutStale(item)
}

// remove removes an item and returns its last version.
func (s *store[T]) remove(name string) (last T, existed bool) {
	old, existed := s.entries[name]
	delete(s.entries, name)
	return old.item, existed
}

// bookmark takes a bookmark.
func (s *store[T]) bookmark(event watch.Event[T]) {
	s.sent = s.sent || event.EndsInitial()
	s.complete = s.sent && len(event.Bookmark.GetMissing()) == 0
}

// prune removes and returns the items that the current round did not send. It removes nothing until
// the round is complete, because a missing part may have the item.
func (s *store[T]) prune() []T {
	var removed []T
	for name, entry := range s.entries {
		if s.complete && entry.round != s.round {
			removed = append(removed, entry.item)
			delete(s.entries, name)
		}
	}
	slices.SortFunc(removed, compareNames[T])
	return removed
}

// items returns all items, sorted by name.
func (s *store[T]) items() []T {
	items := make([]T, 0, len(s.entries))
	for _, entry := range s.entries {
		items = append(items, entry.item)
	}
	slices.SortFunc(items, compareNames[T])
	return items
}

func compareNames[T Item](a, b T) int { return strings.Compare(a.GetName(), b.GetName()) }
