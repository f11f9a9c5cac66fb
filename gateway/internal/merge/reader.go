package merge

import "math/bits"

// EventType is the type of an Event. The numbers are those of the API's event types.
type EventType int32

const (
	// Added means that the reader does not have the item yet, or that a new stream of an exclusive
	// View reports it again.
	Added EventType = iota + 1
	// Modified means that the reader has an earlier state of the item.
	Modified
	// Removed means that the item is gone, or that the reader's filter refuses its new state.
	Removed
)

// Event is one change as one reader sees it.
type Event[T any] struct {
	Type EventType
	// Item is the newest state; of a removed item the last one.
	Item T
}

// Reader is one subscription to a View. Make it with Join.
//
// A reader gets the newest state of each item and skips states between two calls of Take. It costs
// three bits for each item, however slow it is.
type Reader[T any] struct {
	view  *View[T]
	wants func(T) bool
	due   bitset // indexes of entries that may have changed
	known bitset // indexes of the items that the reader has
	// announced are the indexes of known items that the current stream of an exclusive View
	// reported.
	announced bitset
	next      int    // where the current pass over due goes on
	begun     uint64 // value of View.bookmarks when the current pass began
	marked    uint64 // value of View.bookmarks at the last bookmark
}

// Join adds a reader of the items that wants accepts. All of them are due, and a bookmark.
func (v *View[T]) Join(wants func(T) bool) *Reader[T] {
	r := &Reader[T]{view: v, wants: wants, marked: v.bookmarks - 1}
	for index := range v.entries {
		if v.entries[index].alive {
			r.due.set(index)
		}
	}
	v.readers[r] = struct{}{}
	return r
}

// Leave removes a reader. It must be called once.
func (v *View[T]) Leave(r *Reader[T]) {
	delete(v.readers, r)
	for index := r.known.next(0); index >= 0; index = r.known.next(index + 1) {
		v.drop(index)
	}
}

// Take returns at most limit changes, and whether a bookmark follows them: the reader then has all
// that existed when the bookmark became due. It returns nothing when nothing is due.
func (r *Reader[T]) Take(limit int) (events []Event[T], bookmark bool) {
	for len(events) < limit {
		if r.next == 0 {
			r.begun = r.view.bookmarks
		}
		index := r.due.next(r.next)
		if index < 0 {
			r.next = 0
			if r.begun != r.view.bookmarks && r.view.Settled() {
				continue // a source that was synced during this pass may have filled entries behind it
			}
			return events, r.view.Settled() && r.takeBookmark()
		}
		r.next = index + 1
		r.due.unset(index)
		if event, ok := r.look(index); ok {
			events = append(events, event)
		}
	}
	return events, false
}

// Pending reports whether Take may return something.
func (r *Reader[T]) Pending() bool {
	return r.due.next(0) >= 0 || r.marked != r.view.bookmarks && r.view.Settled()
}

func (r *Reader[T]) takeBookmark() bool {
	due := r.marked != r.view.bookmarks
	r.marked = r.view.bookmarks
	return due
}

// look returns what changed in an entry since the reader last looked.
func (r *Reader[T]) look(index int) (event Event[T], ok bool) {
	e := &r.view.entries[index]
	event.Item = e.item
	known, wanted := r.known.has(index), e.alive && r.wants(e.item)
	switch {
	case wanted && known && !r.reannounces(index):
		event.Type = Modified
	case wanted:
		event.Type = Added
		if r.view.inRound(e) {
			r.announced.set(index)
		}
		if !known {
			r.known.set(index)
			e.known++
		}
	case known:
		event.Type = Removed
		r.known.unset(index)
		r.view.drop(index)
	default:
		return event, false
	}
	return event, true
}

// reannounces reports whether an exclusive View has to report an item as Added although the reader
// has it: because a new stream reports it.
func (r *Reader[T]) reannounces(index int) bool {
	return r.view.inRound(&r.view.entries[index]) && !r.announced.has(index)
}

// inRound reports whether the current stream of an exclusive View has reported an item.
func (v *View[T]) inRound(e *entry[T]) bool {
	return v.cfg.Ownership == Exclusive && e.round == v.sources[e.source].round
}

// drop counts one reader less that has an item.
func (v *View[T]) drop(index int) {
	e := &v.entries[index]
	if e.known--; e.known == 0 && !e.alive {
		v.release(index)
	}
}

const wordSize = 64

// bitset is a set of small numbers.
type bitset []uint64

func (b *bitset) set(n int) {
	for len(*b) <= n/wordSize {
		*b = append(*b, 0)
	}
	(*b)[n/wordSize] |= 1 << (n % wordSize)
}

func (b bitset) unset(n int) {
	if n/wordSize < len(b) {
		b[n/wordSize] &^= 1 << (n % wordSize)
	}
}

func (b bitset) has(n int) bool {
	return n/wordSize < len(b) && b[n/wordSize]&(1<<(n%wordSize)) != 0
}

// next returns the smallest number in the set that is at least n, or -1.
func (b bitset) next(n int) int {
	word := n / wordSize
	if word >= len(b) {
		return -1
	}
	rest := b[word] >> (n % wordSize) << (n % wordSize)
	for {
		if rest != 0 {
			return word*wordSize + bits.TrailingZeros64(rest)
		}
		if word++; word >= len(b) {
			return -1
		}
		rest = b[word]
	}
}
