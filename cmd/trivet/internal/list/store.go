package list

import (
	"slices"

	"google.golang.org/protobuf/proto"
)

// fleet is what a watch has told so far. It is used by one goroutine.
type fleet[T Item] struct {
	kind  Kind[T]
	known map[string]entry[T]
	// stream counts the streams that were opened, because after each one everything is told anew.
	stream int
}

type entry[T Item] struct {
	item   T
	stream int // the one that told it last
}

func newFleet[T Item](kind Kind[T]) *fleet[T] {
	return &fleet[T]{kind: kind, known: map[string]entry[T]{}}
}

// begin is called before the events of another stream.
func (f *fleet[T]) begin() { f.stream++ }

// put takes what exists and says what was known of it, and whether it differs in more than what changes by itself.
func (f *fleet[T]) put(item T) (before T, existed, differs bool) {
	item = f.kind.Watched(item)
	old, existed := f.known[item.GetName()]
	f.known[item.GetName()] = entry[T]{item: item, stream: f.stream}
	return old.item, existed, !existed || !proto.Equal(f.kind.Quiet(old.item), f.kind.Quiet(item))
}

// remove takes out what is gone and says what was known of it.
func (f *fleet[T]) remove(name string) (before T, existed bool) {
	old, existed := f.known[name]
	delete(f.known, name)
	return old.item, existed
}

// settle takes out what the present stream did not tell and returns it: it went while nobody listened. It is called when the
// stream has told everything, and never while parts are missing, because what is not told may be in one of them.
func (f *fleet[T]) settle() []T {
	var went []T
	for name, entry := range f.known {
		if entry.stream != f.stream {
			went = append(went, entry.item)
			delete(f.known, name)
		}
	}
	slices.SortFunc(went, byName[T])
	return went
}

// items returns what is known, ordered by name.
func (f *fleet[T]) items() []T {
	items := make([]T, 0, len(f.known))
	for _, entry := range f.known {
		items = append(items, entry.item)
	}
	slices.SortFunc(items, byName[T])
	return items
}
