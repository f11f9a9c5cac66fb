package list

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
)

// store has the items of a watch. One goroutine uses it.
type store[T Item] struct {
	kind    Kind[T]
	entries map[string]entry[T]
	// stream is the number of opened streams. Each stream begins with all items.
	stream int
}

type entry[T Item] struct {
	item   T
	stream int // the last stream with the item
}

func newStore[T Item](kind Kind[T]) *store[T] {
	return &store[T]{kind: kind, entries: map[string]entry[T]{}}
}

// startStream must be called before the events of each stream.
func (s *store[T]) startStream() { s.stream++ }

// put stores an item. It returns the last version, and whether more than volatile fields changed.
func (s *store[T]) put(item T) (last T, existed, changed bool) {
	item = withoutStale(s.kind, item)
	old, existed := s.entries[item.GetName()]
	s.entries[item.GetName()] = entry[T]{item: item, stream: s.stream}
	return old.item, existed, !existed || !proto.Equal(s.kind.WithoutVolatile(old.item), s.kind.WithoutVolatile(item))
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

// prune removes and returns the items that the current stream did not send. It must not be called
// before the stream has sent all items, or while parts are missing, because a missing part may have
// the item.
func (s *store[T]) prune() []T {
	var removed []T
	for name, entry := range s.entries {
		if entry.stream != s.stream {
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
