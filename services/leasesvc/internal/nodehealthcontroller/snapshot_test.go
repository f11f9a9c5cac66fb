package nodehealthcontroller_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
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

func events(w *nodehealthcontroller.Watcher) (all []string) {
	events, _ := w.Next()
	for _, e := range events {
		all = append(all, fmt.Sprintf("%s %s", []string{"added", "modified", "deleted"}[e.Type], e.Node.Object.Name))
	}
	slices.Sort(all)
	return all
}

func expect(t *testing.T, w *nodehealthcontroller.Watcher, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, events(w)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestWatcher_ReturnsChangesButNoSignsOfLife(t *testing.T) {
	o := newPublisherFixture("a", "b", "c")
	w := o.Watch(allNodes)
	if _, published := w.Next(); published {
		t.Error("something is published before the first pass")
	}
	o.publish()
	expect(t, w, "added a", "added b", "added c")
	o.publish()
	expect(t, w)
	v := o.results["a"]
	v.Assessment.Heard, v.Assessment.Deadline, v.Assessment.By = 5, 9, nodehealth.LeaseRenewal
	o.results["a"] = v
	o.publish()
	expect(t, w)
	if got := o.Snapshot().Node("a").Assessment; got != v.Assessment {
		t.Errorf("a reader sees %v, want the sign of life %v", got, v.Assessment)
	}
	o.set("a", nodehealth.Suspect)
	o.touch("b")
	delete(o.nodes, "c")
	o.add("d")
	o.publish()
	expect(t, w, "added d", "deleted c", "modified a", "modified b")
}

func TestWatcher_SlowReaderGetsTheLastState(t *testing.T) {
	o := newPublisherFixture("a", "b")
	w := o.Watch(allNodes)
	o.publish()
	expect(t, w, "added a", "added b")
	for range 20_000 { // far beyond what is remembered
		o.touch("a")
		o.publish()
	}
	delete(o.nodes, "b")
	o.publish()
	expect(t, w, "deleted b", "modified a")
	o.touch("a")
	o.publish()
	o.set("a", nodehealth.Dead)
	o.publish()
	events, _ := w.Next()
	if len(events) != 1 || events[0].Node.Assessment.Health != nodehealth.Dead {
		t.Errorf("events %v, want the last state of a once", events)
	}
}

func TestWatcher_GainedAndLostShards(t *testing.T) {
	o := newPublisherFixture("a", "b")
	o.results["b"] = nodehealthcontroller.Result{}
	w := o.Watch(allNodes)
	o.publish()
	expect(t, w, "added a")
	o.results["a"], o.results["b"] = nodehealthcontroller.Result{}, alive()
	o.publish()
	expect(t, w, "added b", "deleted a")
	o.touch("a")
	o.publish()
	expect(t, w) // its shard is not held
}

func TestWatcher_ContinuesAfterClear(t *testing.T) {
	o := newPublisherFixture("a", "b")
	w := o.Watch(allNodes)
	o.publish()
	expect(t, w, "added a", "added b")
	changed := o.Changed()
	o.Clear()
	<-changed
	delete(o.nodes, "b")
	o.publish() // the watcher did not look in between
	expect(t, w, "deleted b", "modified a")
}

func TestSnapshot_Page(t *testing.T) {
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

// Readers that run beside Publish see each Node whole, and end with the same state.
func TestWatcher_ConcurrentReaders(t *testing.T) {
	o := newPublisherFixture("a", "b", "c", "d")
	o.publish()
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			w, last := o.Watch(allNodes), map[string]string{}
			for over := false; !over; {
				changed := o.Changed()
				select {
				case <-done:
					over = true
				default:
				}
				events, _ := w.Next()
				for _, e := range events {
					last[e.Node.Object.Name] = e.Node.Object.ResourceVersion
				}
				if !over && len(events) == 0 {
					select {
					case <-changed:
					case <-done:
					}
				}
			}
			want := map[string]string{}
			for name, node := range o.nodes {
				want[name] = node.ResourceVersion
			}
			if diff := cmp.Diff(want, last); diff != "" {
				t.Errorf("last versions (-want +got):\n%s", diff)
			}
		})
	}
	for i := range 5000 {
		o.touch([]string{"a", "b", "c", "d"}[i%4])
		o.publish()
	}
	close(done)
	readers.Wait()
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
