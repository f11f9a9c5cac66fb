package term

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/trivet-dev/trivet/internal/term/internal/sharding"
)

var (
	viewKeys = keysOf("east", "leasesvc")
	noon     = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
)

func entry(key, value string, created, modified, lease int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: created, ModRevision: modified, Lease: lease}
}

func put(e *mvccpb.KeyValue) *clientv3.Event { return &clientv3.Event{Type: mvccpb.Event_PUT, Kv: e} }

func deletion(key string, revision int64) *clientv3.Event {
	return &clientv3.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}}
}

// memberEntry returns the key of a member that joined at a revision. Its lease has the same number.
func memberEntry(t *testing.T, id string, joined int64) *mvccpb.KeyValue {
	t.Helper()
	a := announcement{Member: Member{ID: id, Service: "leasesvc", Cluster: "east"}, Shards: 4}
	value, err := a.encode()
	if err != nil {
		t.Fatal(err)
	}
	return entry(viewKeys.member(id), value, joined, joined, joined)
}

// released returns the key of a member that released a term at a revision.
func released(id string, joined, modified int64, term string) *mvccpb.KeyValue {
	value := `{"id":"` + id + `","service":"leasesvc","cluster":"east","shards":4,"released":"` + term + `"}`
	return entry(viewKeys.member(id), value, joined, modified, joined)
}

func termEntry(shard int, leader string, epoch, lease int64) *mvccpb.KeyValue {
	return entry(viewKeys.term(shard), leader, epoch, epoch, lease)
}

func newTestView() (*view, *bytes.Buffer) {
	var log bytes.Buffer
	return newView(viewKeys, slog.New(slog.NewTextHandler(&log, nil))), &log
}

func heldBy(leader string, epoch, lease int64, since time.Time) record {
	return record{revision: epoch, since: since, held: true, leader: leader, lease: clientv3.LeaseID(lease), epoch: epoch}
}

func wantTerms(t *testing.T, v *view, want map[int]record) {
	t.Helper()
	if diff := cmp.Diff(want, v.terms, cmp.AllowUnexported(record{})); diff != "" {
		t.Errorf("terms (-want +got):\n%s", diff)
	}
}

func TestView_ListThenEvents(t *testing.T) {
	v, _ := newTestView()
	v.apply(noon, change{whole: true, revision: 20, entries: []*mvccpb.KeyValue{
		memberEntry(t, "a", 5), memberEntry(t, "b", 7), termEntry(0, "a", 10, 5), termEntry(1, "b", 11, 7),
	}})
	later := noon.Add(time.Second)
	v.apply(later, change{revision: 22, events: []*clientv3.Event{
		put(termEntry(2, "a", 21, 5)), put(released("b", 7, 22, "1@11")), deletion(viewKeys.term(1), 22),
		put(entry(keysOf("east", "bootstrapsvc").term(0), "x", 22, 22, 9)), // a key of another service in the watched range
	}})
	wantTerms(t, v, map[int]record{
		0: heldBy("a", 10, 5, noon),
		1: {revision: 22, since: later, handedOver: true},
		2: heldBy("a", 21, 5, later),
	})
	wantMembers := []sharding.Member{{ID: "a", Shards: 4, Joined: 5}, {ID: "b", Shards: 4, Joined: 7}}
	if diff := cmp.Diff(wantMembers, v.shardingMembers(noon)); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a"}, v.leaders()); diff != "" {
		t.Errorf("leaders (-want +got):\n%s", diff)
	}
	if v.revision != 22 {
		t.Errorf("revision = %d, want 22", v.revision)
	}
}

// A member of an older version does not write unready and counts as ready.
func TestView_MissingUnreadyMeansReady(t *testing.T) {
	v, _ := newTestView()
	value := func(more string) string {
		return `{"id":"b","service":"leasesvc","cluster":"east","shards":4` + more + `}`
	}
	v.apply(noon, change{whole: true, revision: 20, entries: []*mvccpb.KeyValue{
		memberEntry(t, "a", 5), entry(viewKeys.member("b"), value(`,"unready":true`), 7, 9, 7),
	}})
	want := []sharding.Member{{ID: "a", Shards: 4, Joined: 5}, {ID: "b", Shards: 4, Joined: 7, Rank: sharding.Unable}}
	if diff := cmp.Diff(want, v.shardingMembers(noon)); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"b"}, v.unready()); diff != "" {
		t.Errorf("unready (-want +got):\n%s", diff)
	}
	v.apply(noon, change{revision: 21, events: []*clientv3.Event{put(entry(viewKeys.member("b"), value(""), 7, 21, 7))}})
	want[1].Rank = sharding.Ready
	if diff := cmp.Diff(want, v.shardingMembers(noon)); diff != "" {
		t.Errorf("members once b is ready (-want +got):\n%s", diff)
	}
}

// An unready member of an older version does not say whether it is able, and counts as unable. One
// of another older version says that it is able and doubtful, and counts as able.
func TestView_RankOfAnUnreadyMember(t *testing.T) {
	v, _ := newTestView()
	value := func(id, more string) string {
		return `{"id":"` + id + `","service":"leasesvc","cluster":"east","shards":4,"unready":true` + more + `}`
	}
	v.apply(noon, change{whole: true, revision: 20, entries: []*mvccpb.KeyValue{
		entry(viewKeys.member("a"), value("a", ""), 5, 5, 5), entry(viewKeys.member("b"), value("b", `,"able":true`), 7, 9, 7),
		entry(viewKeys.member("c"), value("c", `,"able":true,"doubtful":true`), 8, 8, 8),
	}})
	want := []sharding.Member{
		{ID: "a", Shards: 4, Joined: 5, Rank: sharding.Unable}, {ID: "b", Shards: 4, Joined: 7, Rank: sharding.Able},
		{ID: "c", Shards: 4, Joined: 8, Rank: sharding.Able},
	}
	if diff := cmp.Diff(want, v.shardingMembers(noon)); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
}

// The end of a lease deletes all its keys in one revision, and an operator deletes only the key.
// Only a leader whose member key names the term has handed its shard over.
func TestView_TermThatEndsWithLeaseOrByHandIsNotHandedOver(t *testing.T) {
	v, _ := newTestView()
	v.apply(noon, change{whole: true, revision: 20, entries: []*mvccpb.KeyValue{
		memberEntry(t, "a", 5), termEntry(0, "a", 10, 5), termEntry(1, "a", 11, 5), termEntry(2, "a", 12, 5),
	}})
	v.apply(noon, change{revision: 31, events: []*clientv3.Event{
		put(released("a", 5, 29, "2@12")), deletion(viewKeys.term(2), 29),
		deletion(viewKeys.term(0), 30), // by hand
		deletion(viewKeys.term(1), 31), deletion(viewKeys.member("a"), 31),
	}})
	wantTerms(t, v, map[int]record{
		0: {revision: 30, since: noon},
		1: {revision: 31, since: noon},
		2: {revision: 29, since: noon, handedOver: true},
	})
}

func TestView_NewerRecordsStay(t *testing.T) {
	v, _ := newTestView()
	v.apply(noon, change{whole: true, revision: 20, entries: []*mvccpb.KeyValue{termEntry(0, "a", 10, 5)}})
	v.dropTerm(noon, 0, 25, true)            // this replica released it
	v.put(noon, 1, heldBy("a", 26, 5, noon)) // this replica claimed it
	later := noon.Add(time.Second)
	v.apply(later, change{whole: true, revision: 22, entries: []*mvccpb.KeyValue{termEntry(0, "a", 10, 5)}}) // an older list
	v.apply(later, change{revision: 24, events: []*clientv3.Event{deletion(viewKeys.term(1), 24)}})          // older events
	wantTerms(t, v, map[int]record{
		0: {revision: 25, since: noon, handedOver: true},
		1: heldBy("a", 26, 5, noon),
	})
}

func TestView_KeyMissingFromListIsVacant(t *testing.T) {
	v, _ := newTestView()
	v.apply(noon, change{whole: true, revision: 20, entries: []*mvccpb.KeyValue{termEntry(0, "a", 10, 5)}})
	later := noon.Add(time.Second)
	v.apply(later, change{whole: true, revision: 30})
	wantTerms(t, v, map[int]record{0: {revision: 30, since: later}})
	if got := v.shard(3); got != (record{since: noon}) {
		t.Errorf("a shard never seen = %+v, want it vacant since the first list", got)
	}
}

func TestView_KeyMissingFromListIsHandedOverIfLeaderReleasedIt(t *testing.T) {
	v, _ := newTestView()
	v.apply(noon, change{whole: true, revision: 20, entries: []*mvccpb.KeyValue{
		memberEntry(t, "a", 5), memberEntry(t, "b", 6), termEntry(0, "a", 10, 5), termEntry(1, "b", 11, 6), termEntry(2, "c", 12, 7),
		memberEntry(t, "d", 8), termEntry(3, "d", 13, 8),
	}})
	later := noon.Add(time.Second)
	v.apply(later, change{whole: true, revision: 30, entries: []*mvccpb.KeyValue{
		released("a", 5, 28, "7@3 0@10"), memberEntry(t, "b", 25), // b lost its lease and rejoined
		released("d", 8, 8, "3@12"), // its key was deleted by hand
	}})
	wantTerms(t, v, map[int]record{
		0: {revision: 30, since: later, handedOver: true}, 1: {revision: 30, since: later}, 2: {revision: 30, since: later},
		3: {revision: 30, since: later},
	})
}

func TestView_MalformedKeysAreReportedOnce(t *testing.T) {
	v, log := newTestView()
	malformed := []*mvccpb.KeyValue{
		entry(viewKeys.terms+"seven", "a", 10, 10, 5),
		entry(viewKeys.terms+"07", "a", 10, 10, 5),
		entry(viewKeys.terms+"-1", "a", 10, 10, 5),
		entry(viewKeys.terms+"99999999999999999999", "a", 10, 10, 5),
		entry(viewKeys.terms, "a", 10, 10, 5),
		entry(viewKeys.members+"json", "{", 10, 10, 5),
		entry(viewKeys.members+"other", `{"id":"another","service":"leasesvc","cluster":"east"}`, 10, 10, 5),
		entry(viewKeys.members+"a/b", `{"id":"a/b","service":"leasesvc","cluster":"east"}`, 10, 10, 5),
		entry(viewKeys.members+"esc", `{"id":"esc","service":"leasesvc","cluster":"east","grpcAddress":"\u001b[2J:1"}`, 10, 10, 5),
	}
	for range 2 {
		v.apply(noon, change{whole: true, revision: 20, entries: malformed})
	}
	wantTerms(t, v, map[int]record{})
	if len(v.members) != 0 {
		t.Errorf("members = %v, want none", v.members)
	}
	if got := strings.Count(log.String(), "ignoring a malformed key"); got != len(malformed) {
		t.Errorf("%d reports, want %d:\n%s", got, len(malformed), log)
	}
}

// A key that exists holds the shard, whatever its value is.
func TestView_ForeignTermValueHoldsShard(t *testing.T) {
	v, _ := newTestView()
	v.apply(noon, change{whole: true, revision: 20, entries: []*mvccpb.KeyValue{termEntry(0, "", 10, 0)}})
	wantTerms(t, v, map[int]record{0: heldBy("", 10, 0, noon)})
}

func TestShardBackoff_DoublesToItsBoundAndResets(t *testing.T) {
	var b shardBackoff
	var waits []time.Duration
	for range 7 {
		b = b.after(noon, time.Second)
		waits = append(waits, b.until.Sub(noon))
	}
	want := []time.Duration{1e9, 2e9, 4e9, 8e9, 16e9, 30e9, 30e9}
	if diff := cmp.Diff(want, waits); diff != "" {
		t.Errorf("backoffs (-want +got):\n%s", diff)
	}
	if b = b.after(noon, backoffReset); b.until.Sub(noon) != minBackoff {
		t.Errorf("after a body that ran long the backoff is %v, want %v", b.until.Sub(noon), minBackoff)
	}
}
