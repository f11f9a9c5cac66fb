package merge

import (
	"maps"
	"slices"
	"time"
)

// Hold is how long a removed item stays in a partitioned View. It covers the time in which a shard
// moves and, for sessions, the interval after which holders send their next heartbeat.
const Hold = 10 * time.Second

// Ownership says which sources report an item.
type Ownership int

const (
	// Partitioned means that one source reports each item, and that items move between sources.
	Partitioned Ownership = iota
	// Replicated means that every source reports every item; the highest epoch is the most
	// complete.
	Replicated
	// Exclusive means that there is one source, whose streams come from one replica after the
	// other.
	Exclusive
)

// ViewConfig describes the items of a View.
type ViewConfig[T any] struct {
	// Key returns the name of an item, which is unique, and the epoch of the term that reports it.
	// It accepts the zero T. Required.
	Key func(T) (name string, epoch int64)
	// Same reports whether readers see no difference between two states of an item. Without it
	// every report is a change.
	Same func(a, b T) bool
	// Ended returns what readers get for an item that a new stream does not report again. It must
	// not change its argument. Without it they get the last state. Used with Exclusive only.
	Ended     func(T) T
	Ownership Ownership
}

// KeyOf is the Key of items that have a name and an epoch.
func KeyOf[T Named](item T) (name string, epoch int64) { return item.GetName(), item.GetEpoch() }

// View is the merged state of all sources. Neither a View nor its readers are safe for concurrent
// use.
type View[T any] struct {
	cfg     ViewConfig[T]
	sources map[string]*sourceState
	started bool // SetSources was called
	entries []entry[T]
	byName  map[string]int // index into entries; includes removed items that a reader still has
	free    []int          // indexes of unused entries
	expiry  []expiry       // in the order of due
	readers map[*Reader[T]]struct{}
	// bookmarks counts the reasons for a bookmark. A reader that has seen fewer is due one.
	bookmarks uint64
}

// sourceState is what is known of one source.
type sourceState struct {
	// round counts the streams that report everything from the start.
	round uint64
	// synced is whether the current stream has reported everything.
	synced bool
	// settled is whether the source was synced or has failed, so that waiting for it is pointless.
	settled bool
}

// entry holds one item.
type entry[T any] struct {
	name   string
	item   T
	epoch  int64 // of the last report that counted, also of a removal
	source string
	round  uint64 // of source, at the last report
	alive  bool
	due    time.Time // when to remove the item; zero while no removal is pending
	known  int       // number of readers that have the item
	// reporters maps the sources that report a replicated item to their rounds.
	reporters map[string]uint64
}

type expiry struct {
	index int
	due   time.Time
}

// NewView returns an empty View.
func NewView[T any](cfg ViewConfig[T]) *View[T] {
	return &View[T]{
		cfg: cfg, sources: map[string]*sourceState{}, byName: map[string]int{}, readers: map[*Reader[T]]struct{}{},
	}
}

// SetSources replaces the set of sources. Reports of other sources are ignored. Items of a source
// that left are removed, after Hold, unless another source reports them.
func (v *View[T]) SetSources(now time.Time, ids []string) {
	if !v.started {
		v.started = true
		v.bookmarks++
	}
	for id := range v.sources {
		if !slices.Contains(ids, id) {
			delete(v.sources, id)
			v.retract(now, id, func(uint64) bool { return true })
			v.bookmarks++
		}
	}
	for _, id := range ids {
		if v.sources[id] == nil {
			v.sources[id] = &sourceState{}
			v.bookmarks++
		}
	}
}

// Begin starts a stream of a source. Unless it resumes, the stream reports everything again. The
// source is missing until the next Bookmark.
func (v *View[T]) Begin(id string, resumes bool) {
	s := v.sources[id]
	if s == nil {
		return
	}
	if v.cfg.Ownership == Exclusive {
		s.synced, s.settled = false, false // readers wait for the new stream instead of a bookmark
		for reader := range v.readers {
			clear(reader.announced)
		}
	}
	if s.synced {
		s.synced = false
		v.bookmarks++
	}
	if !resumes {
		s.round++
	}
}

// Bookmark ends the initial report of a stream. Items that it did not contain are removed.
func (v *View[T]) Bookmark(now time.Time, id string) {
	s := v.sources[id]
	if s == nil || s.synced {
		return
	}
	s.synced, s.settled = true, true
	v.bookmarks++
	v.retract(now, id, func(round uint64) bool { return round != s.round })
}

// Fail marks a source as missing until its next Bookmark. Its items stay.
func (v *View[T]) Fail(id string) {
	s := v.sources[id]
	if s == nil {
		return
	}
	s.synced, s.settled = false, true
	v.bookmarks++
}

// Put takes the report that an item exists. A report of an earlier term is ignored.
func (v *View[T]) Put(id string, item T) {
	s := v.sources[id]
	if s == nil {
		return
	}
	name, epoch := v.cfg.Key(item)
	index, known := v.byName[name]
	if !known {
		index = v.add(name)
	}
	e := &v.entries[index]
	if v.cfg.Ownership == Replicated {
		e.addReporter(id, s.round)
	}
	if known && !v.outranks(e, id, epoch) {
		return
	}
	changed := !e.alive || v.cfg.Same == nil || !v.cfg.Same(e.item, item)
	e.item, e.epoch, e.source, e.round = item, epoch, id, s.round
	e.alive, e.due = true, time.Time{}
	if changed {
		v.mark(index)
	}
}

// Remove takes the report that an item is gone. A report of an earlier term is ignored. Readers get
// the given state in an exclusive View, else the last state that was put.
func (v *View[T]) Remove(now time.Time, id string, item T) {
	name, epoch := v.cfg.Key(item)
	index, known := v.byName[name]
	if !known || v.sources[id] == nil {
		return
	}
	e := &v.entries[index]
	delete(e.reporters, id)
	if !e.alive || epoch < e.epoch {
		return
	}
	e.epoch, e.source = epoch, id
	switch v.cfg.Ownership {
	case Partitioned:
		v.expire(now, index) // the shard may move: its next holder reports the item again
	case Replicated:
		v.remove(index)
	case Exclusive:
		e.item = item
		v.remove(index)
	}
}

// Advance removes items whose Hold has passed. It returns when to call it again, or zero.
func (v *View[T]) Advance(now time.Time) (next time.Time) {
	for len(v.expiry) > 0 {
		first := v.expiry[0]
		if e := &v.entries[first.index]; !e.alive || !e.due.Equal(first.due) {
			v.expiry = v.expiry[1:] // reported again, or removed
			continue
		}
		if first.due.After(now) {
			return first.due
		}
		v.expiry = v.expiry[1:]
		v.remove(first.index)
	}
	v.expiry = nil
	return time.Time{}
}

// Settled reports whether each source was synced or has failed.
func (v *View[T]) Settled() bool {
	for _, s := range v.sources {
		if !s.settled {
			return false
		}
	}
	return v.started
}

// Synced reports whether at least one source has reported everything and still reports.
func (v *View[T]) Synced() bool {
	for _, s := range v.sources {
		if s.synced {
			return true
		}
	}
	return false
}

// Missing returns the sources that are not synced, in order.
func (v *View[T]) Missing() []string {
	var missing []string
	for id, s := range v.sources {
		if !s.synced {
			missing = append(missing, id)
		}
	}
	slices.Sort(missing)
	return missing
}

// RequestBookmarks makes a bookmark due for every reader.
func (v *View[T]) RequestBookmarks() { v.bookmarks++ }

// outranks reports whether a report counts: its epoch is not lower, or the source of the last
// report left. The holder of a replicated item lowers the epoch itself when it gives up the shard.
func (v *View[T]) outranks(known *entry[T], id string, epoch int64) bool {
	return epoch >= known.epoch || v.sources[known.source] == nil || v.cfg.Ownership == Replicated && known.source == id
}

// retract withdraws what a source reported in the given rounds.
func (v *View[T]) retract(now time.Time, id string, isOld func(round uint64) bool) {
	for index := range v.entries {
		e := &v.entries[index]
		if round, reports := e.reporters[id]; reports && isOld(round) {
			delete(e.reporters, id)
		}
		if e.source != id || !isOld(e.round) || !e.alive || e.handOver() {
			continue
		}
		if v.cfg.Ownership != Exclusive {
			v.expire(now, index)
			continue
		}
		if v.cfg.Ended != nil {
			e.item = v.cfg.Ended(e.item)
		}
		v.remove(index)
	}
}

func (e *entry[T]) addReporter(id string, round uint64) {
	if e.reporters == nil {
		e.reporters = map[string]uint64{}
	}
	e.reporters[id] = round
}

// handOver makes another reporter the source of a replicated item, and reports whether there is
// one. With epoch 0 any next report counts.
func (e *entry[T]) handOver() bool {
	if len(e.reporters) == 0 {
		return false
	}
	e.source = slices.Min(slices.Collect(maps.Keys(e.reporters)))
	e.round, e.epoch = e.reporters[e.source], 0
	return true
}

func (v *View[T]) add(name string) int {
	index := len(v.entries)
	if last := len(v.free) - 1; last >= 0 {
		index, v.free = v.free[last], v.free[:last]
	} else {
		v.entries = append(v.entries, entry[T]{})
	}
	v.entries[index] = entry[T]{name: name}
	v.byName[name] = index
	return index
}

// expire schedules a removal. A removal that is pending already is not postponed.
func (v *View[T]) expire(now time.Time, index int) {
	e := &v.entries[index]
	if !e.due.IsZero() {
		return
	}
	e.due = now.Add(Hold)
	v.expiry = append(v.expiry, expiry{index: index, due: e.due})
}

func (v *View[T]) remove(index int) {
	e := &v.entries[index]
	e.alive = false
	if e.known == 0 {
		v.release(index)
		return
	}
	v.mark(index)
}

// release frees the entry of a removed item that no reader has.
func (v *View[T]) release(index int) {
	delete(v.byName, v.entries[index].name)
	v.entries[index] = entry[T]{}
	v.free = append(v.free, index)
}

// mark makes an entry due for every reader.
func (v *View[T]) mark(index int) {
	for reader := range v.readers {
		reader.due.set(index)
	}
}
