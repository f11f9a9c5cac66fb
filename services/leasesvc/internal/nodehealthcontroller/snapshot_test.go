package nodehealthcontroller_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"unique"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/watchcache"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// publisherFixture publishes Nodes with the results that a test sets.
type publisherFixture struct {
	*nodehealthcontroller.Publisher
	now     monotonic.Instant
	version int
	results map[string]nodehealthcontroller.Result
	nodes   map[string]*corev1.Node
}

func newPublisherFixture(names ...string) *publisherFixture {
	o := &publisherFixture{Publisher: nodehealthcontroller.NewPublisher(), results: map[string]nodehealthcontroller.Result{}, nodes: map[string]*corev1.Node{}}
	for _, name := range names {
		o.add(name)
	}
	return o
}

func (o *publisherFixture) add(name string) {
	o.touch(name)
	o.results[name] = alive()
}

// touch makes a new version of a Node.
func (o *publisherFixture) touch(name string) {
	o.version++
	o.nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: strconv.Itoa(o.version)}}
}

func alive() nodehealthcontroller.Result {
	return nodehealthcontroller.Result{Held: true, Epoch: 7, Assessment: nodehealth.Assessment{Health: nodehealth.Alive}}
}

func (o *publisherFixture) set(name string, health nodehealth.Health) {
	v := o.results[name]
	v.Assessment.Health = health
	o.results[name] = v
}

func (o *publisherFixture) publish() {
	o.now++
	var subjects []nodehealth.NodeState
	for _, name := range slices.Sorted(maps.Keys(o.nodes)) {
		subjects = append(subjects, nodehealth.DefaultRules().Observe(o.now, nodehealth.NodeState{}, nodehealth.Observation{Node: o.nodes[name]}))
	}
	o.Publish(nodehealthcontroller.Snapshot{At: nodehealth.Moment{Instant: o.now}}, subjects, func(s *nodehealth.NodeState) nodehealthcontroller.Result {
		return o.results[s.Node.Name]
	})
}

func allNodes(*nodehealthcontroller.Node) bool { return true }

// follower is a watch of a Feed.
type follower struct {
	t      *testing.T
	mu     sync.Mutex // guards events
	events []string
}

// follow starts a watch of all Nodes. It needs a synctest bubble.
func follow(t *testing.T, feed *nodehealthcontroller.Feed) *follower {
	f := &follower{t: t}
	go func() {
		err := feed.Nodes.Serve(t.Context(), watchcache.Request[*nodehealthcontroller.Node]{Method: "test"}, f.note)
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("serve: %v", err)
		}
	}()
	f.expect()
	return f
}

func (f *follower) note(e watchcache.Event[*nodehealthcontroller.Node]) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	what := strings.ToLower(strings.TrimPrefix(e.Type.String(), "EVENT_TYPE_"))
	switch node := e.Item; {
	case what == "bookmark":
	case what == "deleted" && node.Held:
		f.events = append(f.events, "deleted "+node.Object.Name)
	case what == "deleted":
		f.events = append(f.events, "lost "+node.Object.Name)
	default:
		f.events = append(f.events, fmt.Sprintf("%s %s %s", what, node.Object.Name, node.Assessment.Health))
	}
	return nil
}

// expect compares the events since the last call.
func (f *follower) expect(want ...string) {
	f.t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.events)
	if diff := cmp.Diff(want, f.events); diff != "" {
		f.t.Errorf("events (-want +got):\n%s", diff)
	}
	f.events = nil
}

func TestPublish_ShowsChangesButNoSignsOfLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newPublisherFixture("a", "b", "c")
		w := follow(t, o.Feed())
		o.publish()
		w.expect("added a alive", "added b alive", "added c alive")
		o.publish()
		w.expect()
		v := o.results["a"]
		v.Assessment.Heard, v.Assessment.Deadline, v.Assessment.By = 5, 9, nodehealth.LeaseRenewal
		v.LeaseRenewed, v.StatusUpdated = 5, 4
		o.results["a"] = v
		o.publish()
		w.expect()
		if got := o.Snapshot().Node("a").Result; got != v {
			t.Errorf("a reader sees %v, want the sign of life %v", got, v)
		}
		v.Agent = unique.Make(session.Agent{Name: "trivet-agent", Mode: "probe"})
		o.results["a"] = v
		o.publish()
		w.expect("modified a alive")
		o.set("a", nodehealth.Suspect)
		o.touch("b")
		o.nodes["b"].Spec.Taints = []corev1.Taint{{Key: "t", Effect: corev1.TaintEffectNoExecute}}
		delete(o.nodes, "c")
		o.add("d")
		o.publish()
		w.expect("added d alive", "deleted c", "modified a suspect", "modified b alive")
		o.nodes["b"] = o.nodes["b"].DeepCopy()
		o.nodes["b"].ResourceVersion = "1000" // a version alone is no change
		o.publish()
		w.expect()
		if got := o.Snapshot().Node("b").Object.ResourceVersion; got != "1000" {
			t.Errorf("a reader sees version %s, want 1000", got)
		}
	})
}

func TestPublish_GainedAndLostShards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newPublisherFixture("a", "b")
		o.results["b"] = nodehealthcontroller.Result{}
		w := follow(t, o.Feed())
		o.publish()
		w.expect("added a alive")
		o.results["a"], o.results["b"] = nodehealthcontroller.Result{}, alive()
		o.publish()
		w.expect("added b alive", "lost a")
		o.touch("a")
		o.publish()
		w.expect() // its shard is not held
	})
}

func TestPublish_NamesTheFirstUnknownAndHeldNodes(t *testing.T) {
	t.Parallel()
	o := newPublisherFixture()
	for i := range 7 {
		o.add(fmt.Sprint("dead-", i))
		o.set(fmt.Sprint("dead-", i), nodehealth.Dead)
	}
	o.add("held")
	held := alive()
	held.Assessment.Health, held.Assessment.Delay = nodehealth.Silent, nodehealth.NoZoneReadyDelay()
	o.results["held"] = held
	o.publish()
	want := nodehealthcontroller.NamedNodes{Count: 7, First: []string{"dead-0", "dead-1", "dead-2", "dead-3", "dead-4"}}
	if diff := cmp.Diff(want, o.Snapshot().Unknown()); diff != "" {
		t.Errorf("unknown (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(nodehealthcontroller.NamedNodes{Count: 1, First: []string{"held"}}, o.Snapshot().Held()); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

func TestClear_EndsTheFeed(t *testing.T) {
	t.Parallel()
	o := newPublisherFixture("a")
	o.publish()
	first := o.Feed()
	o.Clear()
	<-first.Ended()
	if o.Snapshot() != nil || o.Feed() == first {
		t.Error("what was published is shown after the end")
	}
	if hold := o.TaintHold(); hold != nodehealth.NotSyncedDelay() {
		t.Errorf("taints are held for %+v, want until node health runs", hold)
	}
}

func TestSnapshot_Page(t *testing.T) {
	t.Parallel()
	o := newPublisherFixture("a", "b", "c", "d", "e")
	o.results["c"] = nodehealthcontroller.Result{}
	o.set("d", nodehealth.Dead)
	o.publish()
	names := func(after string, limit int, wanted func(*nodehealthcontroller.Node) bool) (page []string) {
		nodes, more := o.Snapshot().Page(after, limit, wanted)
		for _, n := range nodes {
			page = append(page, n.Object.Name)
		}
		if more {
			page = append(page, "…")
		}
		return page
	}
	for _, c := range []struct {
		after  string
		limit  int
		wanted func(*nodehealthcontroller.Node) bool
		want   []string
	}{
		{limit: 10, wanted: allNodes, want: []string{"a", "b", "d", "e"}},
		{limit: 2, wanted: allNodes, want: []string{"a", "b", "…"}},
		{after: "b", limit: 2, wanted: allNodes, want: []string{"d", "e"}},
		{after: "bb", limit: 1, wanted: allNodes, want: []string{"d", "…"}},
		{after: "z", limit: 1, wanted: allNodes},
		{limit: 1, wanted: func(n *nodehealthcontroller.Node) bool { return n.Assessment.Health == nodehealth.Dead }, want: []string{"d"}},
	} {
		if diff := cmp.Diff(c.want, names(c.after, c.limit, c.wanted)); diff != "" {
			t.Errorf("after %q, %d (-want +got):\n%s", c.after, c.limit, diff)
		}
	}
}

// A pass without changes must be cheap.
func BenchmarkPublish(b *testing.B) {
	for _, renewals := range []int{0, 1000} {
		b.Run(fmt.Sprintf("nodes=100000/renewals=%d", renewals), func(b *testing.B) {
			var subjects []nodehealth.NodeState
			rules := nodehealth.DefaultRules()
			for i := range 100_000 {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%06d", i)}}
				subjects = append(subjects, rules.Observe(0, nodehealth.NodeState{}, nodehealth.Observation{Node: node}))
			}
			c, pass := nodehealthcontroller.NewPublisher(), 0
			views := make([]nodehealthcontroller.Result, len(subjects))
			publish := func() {
				pass++
				for i := range renewals {
					views[i].Assessment.Heard = monotonic.Instant(pass)
				}
				next := 0
				c.Publish(nodehealthcontroller.Snapshot{}, subjects, func(*nodehealth.NodeState) nodehealthcontroller.Result {
					next++
					return views[next-1]
				})
			}
			publish()
			b.ReportAllocs()
			for b.Loop() {
				publish()
			}
		})
	}
}

// A Node of a lost shard is deleted after the shard has left Served. Once the shard is back, a
// watch that resumes learns that the Node is gone, unless it follows as added.
func TestFeed_ServesAShardAgainOnlyWithItsNodes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newPublisherFixture("a", "b")
		served := sessioncontroller.ServedShards{IDs: []int{0}, Epoch: 7}
		publish := func() {
			o.now++
			var subjects []nodehealth.NodeState
			for _, name := range slices.Sorted(maps.Keys(o.nodes)) {
				subjects = append(subjects, nodehealth.DefaultRules().Observe(o.now, nodehealth.NodeState{}, nodehealth.Observation{Node: o.nodes[name]}))
			}
			o.Publish(nodehealthcontroller.Snapshot{At: nodehealth.Moment{Instant: o.now}, Shards: served}, subjects,
				func(s *nodehealth.NodeState) nodehealthcontroller.Result { return o.results[s.Node.Name] })
		}
		publish()
		feed := o.Feed()
		token := feed.Nodes.ResumeToken("test", "")
		watch := func() (got []string) {
			done := errors.New("done")
			_ = feed.Nodes.Serve(t.Context(), watchcache.Request[*nodehealthcontroller.Node]{Method: "test", ResumeToken: token}, func(e watchcache.Event[*nodehealthcontroller.Node]) error {
				if e.Bookmark != nil {
					return done
				}
				got = append(got, fmt.Sprintf("%s %s served=%v", strings.TrimPrefix(e.Type.String(), "EVENT_TYPE_"), e.Item.Object.Name, feed.Served(e.Item.Shard)))
				return nil
			})
			return got
		}
		served = sessioncontroller.ServedShards{}
		o.results["a"], o.results["b"] = nodehealthcontroller.Result{}, nodehealthcontroller.Result{}
		publish()
		if diff := cmp.Diff([]string{"DELETED a served=false", "DELETED b served=false"}, watch()); diff != "" {
			t.Errorf("while the shard is lost (-want +got):\n%s", diff)
		}
		delete(o.nodes, "a")
		served = sessioncontroller.ServedShards{IDs: []int{0}, Epoch: 9}
		back := alive()
		back.Epoch = 9
		o.results["b"] = back
		publish()
		if diff := cmp.Diff([]string{"DELETED a served=true", "DELETED b served=true", "ADDED b served=true"}, watch()); diff != "" {
			t.Errorf("after the shard came back (-want +got):\n%s", diff)
		}
	})
}
