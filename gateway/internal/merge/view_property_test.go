package merge_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// cluster is a service with shards that move between replicas. Each replica reports its items in
// order; the view gets the reports late.
type cluster struct {
	t       *rapid.T
	epoch   int64
	colors  map[string]string // of all items, by name
	removed map[string]bool   // names of items that were removed at least once
	leaders []string          // of each shard; empty if the shard has none
	epochs  []int64           // of each shard
	streams map[string]*stream
	view    *merge.View
	sink    *sink
}

// stream has the reports of a replica that the view has not applied.
type stream struct {
	open, opened bool
	reports      []func()
}

func shardOf(name string) int { return int(name[len(name)-1]-'0') % 3 }

func (c *cluster) report(replica string, apply func()) {
	if s := c.streams[replica]; s != nil && s.opened {
		s.reports = append(s.reports, apply)
	}
}

func (c *cluster) put(name string) {
	shard := shardOf(name)
	replica, put := c.leaders[shard], itemOf(int32(shard), name, c.epochs[shard], c.colors[name])
	c.report(replica, func() { c.view.Put(replica, put) })
}

// bookmark reports the shards of a replica; first ends the initial report of a stream.
func (c *cluster) bookmark(replica string, first bool) {
	source := &metav1.Source{ReplicaId: replica}
	for shard, leader := range c.leaders {
		if leader == replica {
			source.Shards = append(source.Shards, int32(shard))
			source.Epoch = max(source.Epoch, c.epochs[shard])
		}
	}
	c.report(replica, func() { c.view.Bookmark(replica, source, first) })
}

func (c *cluster) namesIn(inShard func(int) bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.colors)), func(name string) bool { return !inShard(shardOf(name)) })
}

// connect starts a stream that reports everything.
func (c *cluster) connect(replica string) {
	s := c.streams[replica]
	s.open, s.opened, s.reports = true, true, nil
	c.view.Begin(replica, false)
	for _, name := range c.namesIn(func(shard int) bool { return c.leaders[shard] == replica }) {
		c.put(name)
	}
	c.bookmark(replica, true)
}

// resume starts a stream that goes on where the last one ended.
func (c *cluster) resume(replica string) {
	if s := c.streams[replica]; s.opened && !s.open {
		s.open = true
		c.view.Begin(replica, true)
		c.bookmark(replica, true)
	}
}

func (c *cluster) disconnect(replica string) {
	c.streams[replica].open = false
	c.view.Fail(replica)
}

// move gives a shard to another replica, or to none.
func (c *cluster) move(shard int, to string) {
	from := c.leaders[shard]
	c.epoch++
	c.leaders[shard], c.epochs[shard] = to, c.epoch
	if from != "" && from != to {
		c.bookmark(from, false)
	}
	if to == "" {
		return
	}
	for _, name := range c.namesIn(func(other int) bool { return other == shard }) {
		c.put(name)
	}
	c.bookmark(to, false)
}

// leave ends a replica. A later step gives its shards to another one.
func (c *cluster) leave(replica string) {
	delete(c.streams, replica)
	for shard, leader := range c.leaders {
		if leader == replica {
			c.leaders[shard] = ""
		}
	}
	c.setSources()
}

func (c *cluster) setSources() { c.view.SetSources(slices.Sorted(maps.Keys(c.streams))) }

func (c *cluster) replica() string {
	return rapid.SampledFrom(slices.Sorted(maps.Keys(c.streams))).Draw(c.t, "replica")
}

func (c *cluster) apply(replica string) {
	if s := c.streams[replica]; s.open && len(s.reports) > 0 {
		s.reports[0]()
		s.reports = s.reports[1:]
	}
}

func (c *cluster) step() {
	t := c.t
	name := func() string { return fmt.Sprintf("n%d", rapid.IntRange(0, 8).Draw(t, "name")) }
	switch rapid.IntRange(0, 11).Draw(t, "step") {
	case 0, 1:
		name := name()
		if c.leaders[shardOf(name)] != "" { // or nothing would create it
			c.colors[name] = rapid.SampledFrom([]string{"red", "green"}).Draw(t, "color")
			c.put(name)
		}
	case 2:
		name := name()
		shard := shardOf(name)
		delete(c.colors, name)
		c.removed[name] = true
		replica, last := c.leaders[shard], itemOf(int32(shard), name, c.epochs[shard], "")
		c.report(replica, func() { c.view.Remove(replica, last) })
	case 3:
		c.move(rapid.IntRange(0, 2).Draw(t, "shard"), c.replica())
	case 4:
		c.disconnect(c.replica())
	case 5:
		c.connect(c.replica())
	case 6:
		if len(c.streams) > 1 {
			c.leave(c.replica())
		}
	case 7:
		c.streams[fmt.Sprintf("r%d", c.epoch)] = &stream{}
		c.epoch++
		c.setSources()
	case 8:
		c.resume(c.replica())
	default:
		for range rapid.IntRange(1, 5).Draw(t, "reports") {
			c.apply(c.replica())
		}
	}
	for _, change := range c.sink.changes {
		var name string
		if _, err := fmt.Sscanf(change, "delete %s", &name); err == nil && !c.removed[name] {
			t.Fatalf("%s is deleted, and it was never removed", name)
		}
	}
	c.sink.changes = nil
}

// settle gives each shard a leader and lets each replica report everything.
func (c *cluster) settle() {
	for shard, leader := range c.leaders {
		if leader == "" {
			c.move(shard, c.replica())
		}
	}
	for _, replica := range slices.Sorted(maps.Keys(c.streams)) {
		c.connect(replica)
		for len(c.streams[replica].reports) > 0 {
			c.apply(replica)
		}
	}
}

// Reports interleave, get lost and are repeated; still no item is deleted that exists, and the view
// ends with the true items.
func TestPartitioned_EndsWithTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		view, changes := newView(merge.Partitioned)
		c := &cluster{
			t: t, epoch: 9, colors: map[string]string{}, removed: map[string]bool{}, leaders: []string{"a", "a", "b"}, epochs: []int64{1, 2, 3},
			streams: map[string]*stream{"a": {}, "b": {}, "c": {}}, view: view, sink: changes,
		}
		c.setSources()
		for range rapid.IntRange(10, 120).Draw(t, "steps") {
			c.step()
		}
		c.settle()

		if missing := view.Unsynced(); len(missing) > 0 || !view.Settled() {
			t.Fatalf("missing %v, settled %v at the end", missing, view.Settled())
		}
		items, bytes := 0, 0
		for id := range c.streams {
			itemsOf, bytesOf := view.SizeOf(id)
			items, bytes = items+itemsOf, bytes+bytesOf
		}
		if diff := cmp.Diff(c.colors, changes.items); diff != "" || view.Len() != len(c.colors) || items != len(c.colors) || (bytes == 0) != (items == 0) {
			t.Fatalf("%d items of %d bytes (-want +got):\n%s", items, bytes, diff)
		}
	})
}

// Once each source has reported the truth in full, the view has it.
func TestReplicated_EndsWithTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, changes := newView(merge.Replicated)
		replicas, names := []string{"a", "b", "c"}, []string{"n1", "n2", "n3", "n4"}
		present, truth := slices.Clone(replicas), map[string]string{}
		v.SetSources(present)
		epoch := int64(1)
		mark := func(replica string) { v.Bookmark(replica, &metav1.Source{ReplicaId: replica, Epoch: epoch}, true) }
		for step := range rapid.IntRange(0, 60).Draw(t, "steps") {
			replica := rapid.SampledFrom(replicas).Draw(t, "replica")
			name := rapid.SampledFrom(names).Draw(t, "name")
			led := rapid.SampledFrom([]int64{0, epoch}).Draw(t, "epoch")
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0, 1:
				truth[name] = fmt.Sprint(step)
				v.Put(replica, item(name, led, truth[name]))
			case 2:
				delete(truth, name)
				v.Remove(replica, item(name, led, ""))
			case 3:
				epoch++
			case 4:
				v.Begin(replica, false)
			case 5:
				v.Fail(replica)
			case 6:
				present = slices.DeleteFunc(slices.Clone(present), func(id string) bool { return id == replica })
				v.SetSources(present)
			case 7:
				if !slices.Contains(present, replica) {
					present = append(present, replica)
				}
				v.SetSources(present)
				mark(replica)
			}
		}
		v.SetSources(replicas)
		epoch++
		for i, replica := range replicas {
			v.Begin(replica, false)
			for name, color := range truth {
				v.Put(replica, item(name, []int64{0, epoch, 0}[i], color))
			}
			mark(replica)
		}
		if diff := cmp.Diff(truth, changes.items); diff != "" {
			t.Fatalf("items (-want +got):\n%s", diff)
		}
	})
}

// Streams of different replicas follow each other and may end early. After the bookmark of a stream
// the view has the items of that stream.
func TestExclusive_EndsWithTheCurrentStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, changes := newView(merge.Exclusive)
		v.SetSources([]string{""})
		truth := map[string]string{} // of the current stream
		names, revision := []string{"a", "b", "c", "d"}, int64(0)
		put := func(name string) {
			revision++
			truth[name] = fmt.Sprint(revision)
			v.Put("", item(name, revision%3, truth[name]))
		}
		name := rapid.SampledFrom(names)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) { put(name.Draw(t, "name")) },
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				delete(truth, n)
				v.Remove("", item(n, 0, ""))
			},
			"next stream": func(t *rapid.T) {
				v.Begin("", false)
				for _, n := range names {
					delete(truth, n)
					if rapid.Bool().Draw(t, "it contains "+n) {
						put(n)
					}
				}
				if rapid.Bool().Draw(t, "it reports everything") {
					v.Bookmark("", &metav1.Source{ReplicaId: "r"}, true)
				}
			},
			"fail": func(*rapid.T) { v.Fail("") },
			"": func(t *rapid.T) {
				if !v.Synced() {
					return
				}
				if diff := cmp.Diff(truth, changes.items); diff != "" {
					t.Fatalf("items (-want +got):\n%s", diff)
				}
			},
		})
	})
}
