package term

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

// view is the known state of a service's members and terms. It merges changes of the watch and
// responses to this replica's own transactions. Each term keeps the revision of its last known
// change, so the order of arrival does not matter. A view does no I/O, and time is a parameter. It
// is not safe for concurrent use.
type view struct {
	keys      keys
	listed    time.Time // when the first list arrived; zero before
	revision  int64     // of the newest applied change
	members   map[string]member
	terms     map[int]record
	switched  []string // the loops in dry run that write
	malformed *malformedKeys
}

type member struct {
	announcement
	lease  clientv3.LeaseID
	joined int64
	// rankSince is when this replica learned of the member's rank.
	rankSince time.Time
}

// record is the known state of the key of one shard.
type record struct {
	// revision of the last known change, a creation or a deletion.
	revision int64
	// since is when this replica learned of that change.
	since time.Time
	// held says that the key exists. Then leader, lease and epoch describe it.
	held   bool
	leader string
	lease  clientv3.LeaseID
	epoch  int64
	// handedOver says that the leader itself deleted the key, so its body has returned: its member
	// key names the term. An operator or the end of a lease deletes the key alone.
	handedOver bool
}

func recordOf(entry *mvccpb.KeyValue) record {
	return record{
		revision: entry.ModRevision, held: true,
		leader: string(entry.Value), lease: clientv3.LeaseID(entry.Lease), epoch: entry.CreateRevision,
	}
}

func newView(keys keys, logger *slog.Logger) *view {
	return &view{
		keys: keys, members: map[string]member{}, terms: map[int]record{}, malformed: newMalformedKeys(logger),
	}
}

// apply applies a change.
func (v *view) apply(now time.Time, c change) {
	if c.whole {
		if v.listed.IsZero() {
			v.listed = now
		}
		v.replace(now, c)
	} else {
		v.advance(now, c.events)
	}
	v.revision = max(v.revision, c.revision)
}

// replace applies the whole contents as of a revision. Newer records stay.
func (v *view) replace(now time.Time, c change) {
	v.malformed.keep(c.entries)
	present := make(map[int]bool, len(v.terms))
	before := v.members
	v.members = make(map[string]member, len(c.entries))
	v.switched = nil
	for _, entry := range c.entries {
		v.putSwitch(entry)
		if strings.HasPrefix(string(entry.Key), v.keys.members) {
			v.putMember(now, entry, before)
		} else if shard, ok := v.shardOf(entry.Key); ok {
			present[shard] = true
			v.putTerm(now, shard, entry)
		}
	}
	for shard, known := range v.terms {
		if known.held && !present[shard] {
			v.dropTerm(now, shard, c.revision, v.members[known.leader].released(shard, known.epoch))
		}
	}
}

// advance applies events in order. Within one revision, members come first: the end of a lease
// deletes the member key and the term keys together, and then the shards were not handed over.
func (v *view) advance(now time.Time, events []*clientv3.Event) {
	for len(events) > 0 {
		revision := events[0].Kv.ModRevision
		end := slices.IndexFunc(events, func(e *clientv3.Event) bool { return e.Kv.ModRevision != revision })
		if end < 0 {
			end = len(events)
		}
		for _, event := range events[:end] {
			v.memberEvent(now, event)
			v.switchEvent(event)
		}
		for _, event := range events[:end] {
			v.termEvent(now, event)
		}
		events = events[end:]
	}
}

func (v *view) memberEvent(now time.Time, event *clientv3.Event) {
	id, ok := strings.CutPrefix(string(event.Kv.Key), v.keys.members)
	switch {
	case !ok:
	case event.Type == clientv3.EventTypeDelete:
		delete(v.members, id)
	default:
		v.putMember(now, event.Kv, v.members)
	}
}

func (v *view) switchEvent(event *clientv3.Event) {
	if event.Type != clientv3.EventTypeDelete {
		v.putSwitch(event.Kv)
	} else if string(event.Kv.Key) == v.keys.switches {
		v.switched = nil
	}
}

// putSwitch records the switch, if the entry is that of this service. A malformed one switches no
// loop on.
func (v *view) putSwitch(entry *mvccpb.KeyValue) {
	if string(entry.Key) != v.keys.switches {
		return
	}
	value, err := decodeSwitch(entry.Value)
	if err != nil {
		v.malformed.report(entry.Key, err.Error())
	}
	v.switched = value.Loops
}

func (v *view) termEvent(now time.Time, event *clientv3.Event) {
	if !strings.HasPrefix(string(event.Kv.Key), v.keys.terms) {
		return // a key of another service in the watched range
	}
	shard, ok := v.shardOf(event.Kv.Key)
	switch {
	case !ok:
	case event.Type == clientv3.EventTypeDelete:
		known := v.terms[shard]
		v.dropTerm(now, shard, event.Kv.ModRevision, v.members[known.leader].released(shard, known.epoch))
	default:
		v.putTerm(now, shard, event.Kv)
	}
}

// putMember records a member. before has the members that were known before.
func (v *view) putMember(now time.Time, entry *mvccpb.KeyValue, before map[string]member) {
	id := strings.TrimPrefix(string(entry.Key), v.keys.members)
	announced, err := decodeMember(v.keys.service, id, entry.Value)
	if err != nil {
		v.malformed.report(entry.Key, err.Error())
		delete(v.members, id)
		return
	}
	next := member{announcement: announced, lease: clientv3.LeaseID(entry.Lease), joined: entry.CreateRevision, rankSince: now}
	if known, ok := before[id]; ok && known.rank() == next.rank() {
		next.rankSince = known.rankSince
	}
	v.members[id] = next
}

func (v *view) shardOf(key []byte) (int, bool) {
	shard, ok := v.keys.shard(string(key))
	if !ok {
		v.malformed.report(key, "not a shard number")
	}
	return shard, ok
}

func (v *view) putTerm(now time.Time, shard int, entry *mvccpb.KeyValue) {
	v.put(now, shard, recordOf(entry))
}

// put records that a key exists, if the record is newer than the known one.
func (v *view) put(now time.Time, shard int, known record) {
	if known.revision <= v.terms[shard].revision {
		return
	}
	known.since = now
	v.terms[shard] = known
}

// dropTerm records that a key is gone as of a revision.
func (v *view) dropTerm(now time.Time, shard int, revision int64, handedOver bool) {
	if revision <= v.terms[shard].revision {
		return
	}
	v.terms[shard] = record{revision: revision, since: now, handedOver: handedOver}
}

// shard returns the record of a shard. A shard without one has been vacant since the first list.
func (v *view) shard(shard int) record {
	if known, ok := v.terms[shard]; ok {
		return known
	}
	return record{since: v.listed}
}

// shardingMembers returns the members, ordered by id.
func (v *view) shardingMembers(now time.Time) []sharding.Member {
	members := make([]sharding.Member, 0, len(v.members))
	for _, id := range slices.Sorted(maps.Keys(v.members)) {
		m := v.members[id]
		members = append(members, sharding.Member{
			ID: id, Shards: m.Shards, DryRun: m.DryRun, Joined: m.joined, Leaving: m.Leaving, Rank: m.rank(), RankFor: now.Sub(m.rankSince),
		})
	}
	return members
}

// unready returns the ids of the unready members, ordered.
func (v *view) unready() []string {
	var ids []string
	for id, m := range v.members {
		if m.Unready {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// leaders returns the ids of the replicas that hold a shard, ordered.
func (v *view) leaders() []string {
	ids := map[string]bool{}
	for _, r := range v.terms {
		if r.held {
			ids[r.leader] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// malformedKeys reports each malformed key once.
type malformedKeys struct {
	logger   *slog.Logger
	reported map[string]bool
}

func newMalformedKeys(logger *slog.Logger) *malformedKeys {
	return &malformedKeys{logger: logger, reported: map[string]bool{}}
}

func (m *malformedKeys) report(key []byte, problem string) {
	if m.reported[string(key)] {
		return
	}
	m.reported[string(key)] = true
	m.logger.Warn("ignoring a malformed key; delete it if nothing owns it", "key", string(key), "problem", problem)
}

// keep forgets the reports of keys that are not among entries, which are all keys.
func (m *malformedKeys) keep(entries []*mvccpb.KeyValue) {
	present := make(map[string]bool, len(entries))
	for _, entry := range entries {
		present[string(entry.Key)] = true
	}
	maps.DeleteFunc(m.reported, func(key string, _ bool) bool { return !present[key] })
}
