package merge

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// Ownership says which sources report an item.
type Ownership int

const (
	// Partitioned means that the source that leads the shard of an item reports it.
	Partitioned Ownership = iota
	// Replicated means that every source reports every item; the highest epoch is the most
	// complete.
	Replicated
	// Exclusive means that there is one source, whose streams come from one replica after the
	// other.
	Exclusive
	// Local means that each item belongs to one source, without a shard, and is gone with it.
	Local
)

// countsReporters returns whether an item exists as long as a source reports it.
func (o Ownership) countsReporters() bool { return o == Replicated || o == Local }

// DividesItems returns whether the sources have different items.
func (o Ownership) DividesItems() bool { return o == Partitioned || o == Local }

// MaxShards bounds the shards of a service: numbers of shards come from the wire.
const MaxShards = maxShards

// Sink receives the merged items, as *watchcache.Cache does.
type Sink interface {
	Put(items ...Item)
	Delete(last ...Item)
}

// ViewConfig describes the items of a View.
type ViewConfig struct {
	Ownership Ownership
	// Sink receives the changes. Required.
	Sink Sink
	// Ended returns the last state of an item that disappeared without a report of its end. It must
	// not change its argument. Without it that is the last reported state.
	Ended func(Item) Item
}

// View is the merged state of all sources. It is not safe for concurrent use.
type View struct {
	cfg     ViewConfig
	sources map[string]*sourceState
	started bool // SetSources was called
	entries map[string]*entry
	// shares has the items of each source, also of one that left.
	shares map[string]share
	// changes counts calls of SetSources; left has its value when a source left, by id.
	changes uint64
	left    map[string]uint64
}

// share is a number of items, and of their bytes when they are encoded.
type share struct{ items, bytes int }

// sourceState is what is known of one source.
type sourceState struct {
	// joined is View.changes when the source came.
	joined uint64
	// clock counts the times at which reports of the source ceased to be valid: the start of a
	// stream that reports everything, and the loss of a shard.
	clock uint64
	// base is the clock at the start of the last stream that reports everything; since has the
	// clock of shards that were lost after that.
	base  uint64
	since map[int32]uint64
	// newest has the highest epoch that the source reported in each shard; risen are the shards in
	// which it grew after the last bookmark.
	newest map[int32]int64
	risen  map[int32]bool
	// reported is the source as its last bookmark describes it, covered has the shards of it.
	reported *metav1.Source
	covered  map[int32]bool
	// synced is whether the current stream has reported everything.
	synced bool
	// settled is whether the source was synced or has failed, so that waiting for it is pointless.
	settled bool
	// swept is whether the first bookmark of the current stream was applied.
	swept bool
}

// entry has one item and its last report that counted.
type entry struct {
	item   Item
	shard  int32
	epoch  int64
	source string
	clock  uint64 // of source, at the report
	bytes  int    // of item, encoded
	// reporters maps the sources that report a replicated item to their clocks.
	reporters map[string]uint64
}

// NewView returns an empty View.
func NewView(cfg ViewConfig) *View {
	return &View{cfg: cfg, sources: map[string]*sourceState{}, entries: map[string]*entry{}, shares: map[string]share{}, left: map[string]uint64{}}
}

// SetSources replaces the set of sources. Reports of other sources are ignored. Items of a source
// that left stay until another source covers their shard.
func (v *View) SetSources(ids []string) {
	v.started = true
	v.changes++
	for id := range v.sources {
		if !slices.Contains(ids, id) {
			delete(v.sources, id)
			v.left[id] = v.changes
			v.withdraw(id, func(uint64) bool { return true })
		}
	}
	v.forgetLeft()
	for _, id := range ids {
		if v.sources[id] == nil {
			v.sources[id] = &sourceState{
				joined: v.changes, since: map[int32]uint64{}, newest: map[int32]int64{}, risen: map[int32]bool{},
			}
		}
	}
	if v.cfg.Ownership.countsReporters() && v.Synced() {
		v.removeUnreported()
	}
}

// maxLeft is how many sources that left are remembered before those without an item are forgotten.
const maxLeft = 64

// forgetLeft forgets sources that left and have no item. Each restart of a replica is a new source.
func (v *View) forgetLeft() {
	if len(v.left) <= maxLeft {
		return
	}
	last := map[string]bool{}
	for _, e := range v.entries {
		last[e.source] = true
	}
	maps.DeleteFunc(v.left, func(id string, _ uint64) bool { return !last[id] })
}

// Begin starts a stream of a source. Unless it resumes, the stream reports everything again. The
// source is missing until the first bookmark.
func (v *View) Begin(id string, resumes bool) {
	s := v.sources[id]
	if s == nil {
		return
	}
	s.synced, s.settled, s.swept = false, false, false
	if !resumes {
		s.clock++
		s.base = s.clock
		clear(s.since)
		clear(s.newest)
		clear(s.risen)
	}
}

// Fail marks a source as missing until its next bookmark. Its items stay.
func (v *View) Fail(id string) {
	if s := v.sources[id]; s != nil {
		s.synced, s.settled = false, true
	}
}

// GiveUp stops waiting for the first bookmark of a stream, which goes on.
func (v *View) GiveUp(id string) {
	if s := v.sources[id]; s != nil {
		s.settled = true
	}
}

// Put takes the report that an item exists. A report of an earlier term is ignored, and one of a
// shard that no service has.
func (v *View) Put(id string, item Item) {
	s := v.sources[id]
	if s == nil || item.GetName() == "" {
		return
	}
	shard, epoch := v.placeOf(item)
	if shard < 0 || shard >= MaxShards {
		return
	}
	e := v.entries[item.GetName()]
	known := e != nil
	if !known && v.isOutdated(id, shard, epoch) {
		return
	}
	if !known {
		e = &entry{}
		v.entries[item.GetName()] = e
	}
	if v.cfg.Ownership.countsReporters() {
		e.addReporter(id, s.clock)
	}
	if known && epoch < v.rankOf(e, s) && (!v.cfg.Ownership.countsReporters() || e.source != id) {
		return // the leader of a replicated item lowers the epoch itself when it gives up the shard
	}
	if epoch > s.newest[shard] {
		s.newest[shard], s.risen[shard] = epoch, true
	}
	if known {
		v.count(e, -1)
	}
	e.item, e.shard, e.epoch, e.source, e.clock = item, shard, epoch, id, s.clock
	e.bytes = proto.Size(item)
	v.count(e, 1)
	v.cfg.Sink.Put(item)
}

// Remove takes the report that an item is gone. A report of an earlier term is ignored.
func (v *View) Remove(id string, item Item) {
	e := v.entries[item.GetName()]
	s := v.sources[id]
	if e == nil || s == nil {
		return
	}
	delete(e.reporters, id)
	if _, epoch := v.placeOf(item); epoch < v.rankOf(e, s) {
		return
	}
	last := e.item
	if v.cfg.Ownership == Exclusive {
		last = item
	}
	v.delete(e, last)
}

// Bookmark takes the statement which shards a source has reported wholly; first is whether it ends
// the initial report of a stream. An item of such a shard that the source did not report is gone.
// Items of a shard that left the source stay.
func (v *View) Bookmark(id string, reported *metav1.Source, first bool) {
	s := v.sources[id]
	if s == nil || !first && !s.swept {
		return
	}
	covered := v.coverOf(reported)
	swept := map[int32]bool{}
	before := s.covered
	for shard := range covered {
		if !s.swept || !before[shard] || s.risen[shard] {
			swept[shard] = true
		}
	}
	if v.cfg.Ownership.countsReporters() {
		if !s.swept {
			v.withdraw(id, func(clock uint64) bool { return clock < s.base })
			v.removeUnreported()
		}
	} else if len(swept) > 0 {
		v.sweep(id, s, swept, reported.GetEpoch())
	}
	for shard := range before {
		if !covered[shard] {
			s.clock++
			s.since[shard] = s.clock
			delete(s.newest, shard)
		}
	}
	clear(s.risen)
	s.reported, s.covered, s.synced, s.settled, s.swept = reported, covered, true, true, true
}

// sweep deletes the items of shards that a source covers and did not report, unless another source
// reported them under a later term.
func (v *View) sweep(id string, s *sourceState, shards map[int32]bool, epoch int64) {
	for _, e := range v.entries {
		if !shards[e.shard] || e.source == id && e.clock >= max(s.base, s.since[e.shard]) && e.epoch >= s.newest[e.shard] {
			continue
		}
		if e.source != id && v.rankOf(e, s) > epoch {
			continue
		}
		v.deleteUnseen(e)
	}
}

// Settled reports whether each source was synced or has failed.
func (v *View) Settled() bool {
	for _, s := range v.sources {
		if !s.settled {
			return false
		}
	}
	return v.started
}

// Synced reports whether at least one source has reported everything and still reports.
func (v *View) Synced() bool {
	for _, s := range v.sources {
		if s.synced {
			return true
		}
	}
	return false
}

// Sources returns the synced sources as their last bookmarks describe them, by id.
func (v *View) Sources() []*metav1.Source {
	var synced []*metav1.Source
	for _, id := range slices.Sorted(maps.Keys(v.sources)) {
		if s := v.sources[id]; s.synced {
			synced = append(synced, s.reported)
		}
	}
	return synced
}

// Unsynced returns the ids of the other sources, in order.
func (v *View) Unsynced() []string {
	var missing []string
	for id, s := range v.sources {
		if !s.synced {
			missing = append(missing, id)
		}
	}
	slices.Sort(missing)
	return missing
}

// Len returns the number of items.
func (v *View) Len() int { return len(v.entries) }

// SizeOf returns the number of the items that a source reported last, and of their bytes when they
// are encoded.
func (v *View) SizeOf(id string) (items, bytes int) { return v.shares[id].items, v.shares[id].bytes }

// count adds an item to the share of its source, or removes it.
func (v *View) count(e *entry, sign int) {
	sum := v.shares[e.source]
	sum.items += sign
	sum.bytes += sign * e.bytes
	if v.shares[e.source] = sum; sum.items == 0 {
		delete(v.shares, e.source)
	}
}

// placeOf returns the shard and the epoch of a report. The one source of an exclusive view has one
// shard.
func (v *View) placeOf(item Item) (shard int32, epoch int64) {
	if v.cfg.Ownership == Exclusive {
		return 0, 0
	}
	owner := ownerOf(item)
	return owner.GetShard(), owner.GetEpoch()
}

// coverOf returns the shards that a bookmark names.
func (v *View) coverOf(reported *metav1.Source) map[int32]bool {
	covered := map[int32]bool{}
	if v.cfg.Ownership == Exclusive {
		covered[0] = true
		return covered
	}
	for _, shard := range reported.GetShards() {
		if shard >= 0 && shard < MaxShards {
			covered[shard] = true
		}
	}
	return covered
}

// rankOf returns the epoch that a report of a source must have to count. Any report counts of a
// source that came after the source of the last one had left: epochs start again after etcd was
// restored from a backup.
func (v *View) rankOf(e *entry, of *sourceState) int64 {
	if v.sources[e.source] == nil && of.joined >= v.left[e.source] {
		return 0
	}
	return e.epoch
}

// isOutdated reports whether another source has reported a shard wholly under a later term, so that
// an item that it has not is gone.
func (v *View) isOutdated(id string, shard int32, epoch int64) bool {
	if v.cfg.Ownership != Partitioned {
		return false
	}
	for other, s := range v.sources {
		if other != id && s.covered[shard] && s.newest[shard] > epoch {
			return true
		}
	}
	return false
}

// withdraw removes a source from the reporters of the items that it reported at the given clocks.
func (v *View) withdraw(id string, isOld func(clock uint64) bool) {
	if !v.cfg.Ownership.countsReporters() {
		return
	}
	for _, e := range v.entries {
		if clock, reports := e.reporters[id]; reports && isOld(clock) {
			delete(e.reporters, id)
		}
		if e.source == id && isOld(e.clock) {
			v.count(e, -1)
			e.handOver()
			v.count(e, 1)
		}
	}
}

// removeUnreported deletes the replicated items that no source reports.
func (v *View) removeUnreported() {
	for _, e := range v.entries {
		if len(e.reporters) == 0 {
			v.deleteUnseen(e)
		}
	}
}

// deleteUnseen deletes an item whose end was not reported.
func (v *View) deleteUnseen(e *entry) {
	last := e.item
	if v.cfg.Ended != nil {
		last = v.cfg.Ended(last)
	}
	v.delete(e, last)
}

func (v *View) delete(e *entry, last Item) {
	v.count(e, -1)
	delete(v.entries, e.item.GetName())
	v.cfg.Sink.Delete(last)
}

func (e *entry) addReporter(id string, clock uint64) {
	if e.reporters == nil {
		e.reporters = map[string]uint64{}
	}
	e.reporters[id] = clock
}

// handOver makes another reporter the source of a replicated item, if there is one. With epoch 0
// any next report counts.
func (e *entry) handOver() {
	e.epoch = 0
	if len(e.reporters) > 0 {
		e.source = slices.Min(slices.Collect(maps.Keys(e.reporters)))
		e.clock = e.reporters[e.source]
	}
}
