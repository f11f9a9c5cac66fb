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

// view is what is known about a service's members and terms. Terms are folded from changes and from the answers to this
// replica's own transactions; each keeps the revision of the last change known, so that neither can undo the other, in
// whatever order they arrive. A view has one owner and does no I/O; time is a parameter.
type view struct {
	keys     keys
	listed   time.Time // when the first list arrived; zero before
	revision int64     // of the newest change applied
	members  map[string]member
	terms    map[int]record
	odd      *oddities
}

type member struct {
	announcement
	lease  clientv3.LeaseID
	joined int64
}

// record is what is known about the key of one shard.
type record struct {
	// revision of the last change known, be it the key's creation or its deletion.
	revision int64
	// since is when that change became known here.
	since time.Time
	// held says that the key exists; holder, lease and epoch then describe it.
	held   bool
	holder string
	lease  clientv3.LeaseID
	epoch  int64
	// handedOver says that the key was deleted while its holder was still a member: nobody acts for the shard any more.
	handedOver bool
}

func newView(keys keys, logger *slog.Logger) *view {
	return &view{
		keys: keys, members: map[string]member{}, terms: map[int]record{}, odd: newOddities(logger),
	}
}

// apply folds a change in.
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

// replace takes the whole contents as of a revision. What is known to be newer stays.
func (v *view) replace(now time.Time, c change) {
	v.odd.keep(c.entries)
	present := make(map[int]bool, len(v.terms))
	v.members = make(map[string]member, len(c.entries))
	for _, entry := range c.entries {
		if strings.HasPrefix(string(entry.Key), v.keys.members) {
			v.putMember(entry)
		} else if shard, ok := v.shardOf(entry.Key); ok {
			present[shard] = true
			v.putTerm(now, shard, entry)
		}
	}
	for shard, known := range v.terms {
		if known.held && !present[shard] {
			// A holder that is still there, by the same lease, has been there when its key went.
			holder, alive := v.members[known.holder]
			v.dropTerm(now, shard, c.revision, alive && holder.lease == known.lease)
		}
	}
}

// advance takes events in order. Members come first within one revision: a lease that ends takes both keys with it, and
// then its shards were not handed over.
func (v *view) advance(now time.Time, events []*clientv3.Event) {
	for len(events) > 0 {
		revision := events[0].Kv.ModRevision
		end := slices.IndexFunc(events, func(e *clientv3.Event) bool { return e.Kv.ModRevision != revision })
		if end < 0 {
			end = len(events)
		}
		for _, event := range events[:end] {
			v.memberEvent(event)
		}
		for _, event := range events[:end] {
			v.termEvent(now, event)
		}
		events = events[end:]
	}
}

func (v *view) memberEvent(event *clientv3.Event) {
	id, ok := strings.CutPrefix(string(event.Kv.Key), v.keys.members)
	switch {
	case !ok:
	case event.Type == clientv3.EventTypeDelete:
		delete(v.members, id)
	default:
		v.putMember(event.Kv)
	}
}

func (v *view) termEvent(now time.Time, event *clientv3.Event) {
	if !strings.HasPrefix(string(event.Kv.Key), v.keys.terms) {
		return // another service's, which shares the watched range
	}
	shard, ok := v.shardOf(event.Kv.Key)
	switch {
	case !ok:
	case event.Type == clientv3.EventTypeDelete:
		_, alive := v.members[v.terms[shard].holder]
		v.dropTerm(now, shard, event.Kv.ModRevision, alive)
	default:
		v.putTerm(now, shard, event.Kv)
	}
}

func (v *view) putMember(entry *mvccpb.KeyValue) {
	id := strings.TrimPrefix(string(entry.Key), v.keys.members)
	announced, err := decodeMember(v.keys.service, id, entry.Value)
	if err != nil {
		v.odd.report(entry.Key, err.Error())
		delete(v.members, id)
		return
	}
	v.members[id] = member{announcement: announced, lease: clientv3.LeaseID(entry.Lease), joined: entry.CreateRevision}
}

func (v *view) shardOf(key []byte) (int, bool) {
	shard, ok := v.keys.shard(string(key))
	if !ok {
		v.odd.report(key, "not a shard number")
	}
	return shard, ok
}

func (v *view) putTerm(now time.Time, shard int, entry *mvccpb.KeyValue) {
	v.put(now, shard, record{
		revision: entry.ModRevision, held: true,
		holder: string(entry.Value), lease: clientv3.LeaseID(entry.Lease), epoch: entry.CreateRevision,
	})
}

// put notes that a key exists. Knowledge that is not newer changes nothing.
func (v *view) put(now time.Time, shard int, known record) {
	if known.revision <= v.terms[shard].revision {
		return
	}
	known.since = now
	v.terms[shard] = known
}

// dropTerm notes that a key is gone as of a revision.
func (v *view) dropTerm(now time.Time, shard int, revision int64, handedOver bool) {
	if revision <= v.terms[shard].revision {
		return
	}
	v.terms[shard] = record{revision: revision, since: now, handedOver: handedOver}
}

// shard is what is known about a shard. One that was never seen held has been vacant since the first list.
func (v *view) shard(shard int) record {
	if known, ok := v.terms[shard]; ok {
		return known
	}
	return record{since: v.listed}
}

// shardingMembers are the members in the order of their ids.
func (v *view) shardingMembers() []sharding.Member {
	members := make([]sharding.Member, 0, len(v.members))
	for _, id := range slices.Sorted(maps.Keys(v.members)) {
		m := v.members[id]
		members = append(members, sharding.Member{
			ID: id, Shards: m.Shards, Joined: m.joined, Leaving: m.Leaving, Unready: m.Unready,
		})
	}
	return members
}

// unready are the members that should get no shards while others can do their work, in the order of their ids.
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

// holders are the replicas that hold any shard, in the order of their ids.
func (v *view) holders() []string {
	ids := map[string]bool{}
	for _, r := range v.terms {
		if r.held {
			ids[r.holder] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}
