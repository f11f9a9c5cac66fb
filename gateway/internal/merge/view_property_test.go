package merge_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/gateway/internal/merge"
)

// client checks the events of a reader and keeps the items.
type client struct {
	reader     *merge.Reader[item]
	wants      func(item) bool
	repeats    bool // whether an item that the client has may be reported as Added
	items      map[string]string
	bookmarked bool
}

func newClient(view *merge.View[item], wants func(item) bool) *client {
	return &client{reader: view.Join(wants), wants: wants, items: map[string]string{}}
}

// take takes some events and checks each against the client's items. It reports whether there were
// any.
func (c *client) take(t *rapid.T, limit int) bool {
	t.Helper()
	events, bookmark := c.reader.Take(limit)
	for _, event := range events {
		name := event.Item.name
		_, known := c.items[name]
		isAdded := event.Type == merge.Added
		if known == isAdded && (!isAdded || !c.repeats) {
			t.Fatalf("%s %s, which the client has: %v", kinds[event.Type], name, known)
		}
		if delete(c.items, name); event.Type != merge.Removed {
			c.items[name] = event.Item.color
		}
	}
	c.bookmarked = c.bookmarked || bookmark
	return bookmark || len(events) > 0
}

func (c *client) takeAll(t *rapid.T) {
	t.Helper()
	for more := true; more; {
		more = c.take(t, 3)
	}
}

// cluster is a service with shards that move between replicas. Each replica reports its items in
// order; the view gets the reports late.
type cluster struct {
	t       *rapid.T
	now     time.Time
	epoch   int64
	colors  map[string]string // of all items, by name
	holders []string          // of each shard; empty if the shard has none
	epochs  []int64           // of each shard
	streams map[string]*stream
	view    *merge.View[item]
	clients []*client
}

// stream has the reports of a replica that the view has not applied.
type stream struct {
	open    bool
	reports []func()
}

func shardOf(name string) int { return int(name[len(name)-1]-'0') % 3 }

func (c *cluster) report(replica string, apply func()) {
	if s := c.streams[replica]; s != nil && s.open {
		s.reports = append(s.reports, apply)
	}
}

func (c *cluster) put(name string) {
	shard := shardOf(name)
	replica, put := c.holders[shard], item{name: name, epoch: c.epochs[shard], color: c.colors[name]}
	c.report(replica, func() { c.view.Put(replica, put) })
}

func (c *cluster) remove(replica, name string, epoch int64) {
	c.report(replica, func() { c.view.Remove(c.now, replica, item{name: name, epoch: epoch}) })
}

func (c *cluster) namesIn(inShard func(int) bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.colors)), func(name string) bool { return !inShard(shardOf(name)) })
}

// connect starts a stream that reports everything.
func (c *cluster) connect(replica string) {
	s := c.streams[replica]
	s.open, s.reports = true, nil
	c.view.Begin(replica, false)
	for _, name := range c.namesIn(func(shard int) bool { return c.holders[shard] == replica }) {
		c.put(name)
	}
	c.report(replica, func() { c.view.Bookmark(c.now, replica) })
}

func (c *cluster) disconnect(replica string) {
	c.streams[replica].open, c.streams[replica].reports = false, nil
	c.view.Fail(replica)
}

// move gives a shard to another replica, or to none.
func (c *cluster) move(shard int, to string) {
	from, last := c.holders[shard], c.epochs[shard]
	names := c.namesIn(func(other int) bool { return other == shard })
	c.epoch++
	c.holders[shard], c.epochs[shard] = to, c.epoch
	for _, name := range names {
		c.remove(from, name, last)
		c.put(name)
	}
}

// leave ends a replica. A later step gives its shards to another one.
func (c *cluster) leave(replica string) {
	delete(c.streams, replica)
	for shard, holder := range c.holders {
		if holder == replica {
			c.holders[shard] = ""
		}
	}
	c.setSources()
}

func (c *cluster) setSources() { c.view.SetSources(c.now, slices.Sorted(maps.Keys(c.streams))) }

func (c *cluster) replica() string {
	return rapid.SampledFrom(slices.Sorted(maps.Keys(c.streams))).Draw(c.t, "replica")
}

func (c *cluster) apply(replica string) {
	if s := c.streams[replica]; len(s.reports) > 0 {
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
		c.colors[name] = rapid.SampledFrom([]string{"red", "green"}).Draw(t, "color")
		c.put(name)
	case 2:
		name := name()
		delete(c.colors, name)
		c.remove(c.holders[shardOf(name)], name, c.epochs[shardOf(name)])
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
		c.now = c.now.Add(time.Duration(rapid.IntRange(1, 15).Draw(t, "seconds")) * time.Second)
		c.view.Advance(c.now)
	case 9:
		if len(c.clients) > 3 {
			c.view.Leave(c.clients[0].reader)
			c.clients = c.clients[1:]
		}
		color := rapid.SampledFrom([]string{"", "red"}).Draw(t, "wanted")
		c.clients = append(c.clients, newClient(c.view, func(i item) bool { return color == "" || i.color == color }))
	default:
		for range rapid.IntRange(1, 5).Draw(t, "reports") {
			c.apply(c.replica())
		}
	}
	for _, client := range c.clients {
		if rapid.Bool().Draw(t, "reads") {
			client.take(t, rapid.IntRange(1, 4).Draw(t, "limit"))
		}
	}
}

// settle gives each shard a holder, lets each replica report everything, and lets Hold pass.
func (c *cluster) settle() {
	for shard, holder := range c.holders {
		if holder == "" {
			c.move(shard, c.replica())
		}
	}
	for _, replica := range slices.Sorted(maps.Keys(c.streams)) {
		c.connect(replica)
		for len(c.streams[replica].reports) > 0 {
			c.apply(replica)
		}
	}
	c.now = c.now.Add(merge.Hold)
	c.view.Advance(c.now)
}

// Reports interleave, get lost and are repeated; still no client gets a contradiction, and each
// ends with the true items.
func TestPartitioned_ClientsEndWithTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &cluster{
			t: t, now: noon, epoch: 9, colors: map[string]string{}, holders: []string{"a", "a", "b"}, epochs: []int64{1, 2, 3},
			streams: map[string]*stream{"a": {}, "b": {}, "c": {}}, view: newView(merge.Partitioned),
		}
		c.setSources()
		c.clients = append(c.clients, newClient(c.view, all))
		for range rapid.IntRange(10, 120).Draw(t, "steps") {
			c.step()
		}
		c.settle()

		if missing := c.view.Missing(); len(missing) > 0 || !c.view.Settled() {
			t.Fatalf("missing %v, settled %v at the end", missing, c.view.Settled())
		}
		for _, client := range c.clients {
			client.takeAll(t)
			want := map[string]string{}
			for name, color := range c.colors {
				if client.wants(item{name: name, color: color}) {
					want[name] = color
				}
			}
			if diff := cmp.Diff(want, client.items); diff != "" {
				t.Fatalf("items of a client (-want +got):\n%s", diff)
			}
			if !client.bookmarked || client.reader.Pending() {
				t.Fatalf("bookmark taken: %v, something pending: %v", client.bookmarked, client.reader.Pending())
			}
		}
	})
}

// Once each source has reported the truth in full, a client that kept up has it.
func TestReplicated_ClientsEndWithTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, replicas := newView(merge.Replicated), []string{"a", "b", "c"}
		names := []string{"n1", "n2", "n3", "n4"}
		present, truth := slices.Clone(replicas), map[string]string{}
		v.SetSources(noon, present)
		now, epoch := noon, int64(1)
		client := newClient(v, all)
		take := func() {
			for more := true; more && client.reader.Pending(); {
				more = client.take(t, 2)
			}
		}
		for step := range rapid.IntRange(0, 60).Draw(t, "steps") {
			replica := rapid.SampledFrom(replicas).Draw(t, "replica")
			name := rapid.SampledFrom(names).Draw(t, "name")
			held := rapid.SampledFrom([]int64{0, epoch}).Draw(t, "epoch")
			now = now.Add(time.Second)
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0, 1:
				truth[name] = fmt.Sprint(step)
				v.Put(replica, item{name: name, color: truth[name], epoch: held})
			case 2:
				delete(truth, name)
				v.Remove(now, replica, item{name: name, epoch: held})
			case 3:
				epoch++
			case 4:
				v.Begin(replica, false)
			case 5:
				v.Fail(replica)
			case 6:
				present = slices.DeleteFunc(slices.Clone(present), func(id string) bool { return id == replica })
				v.SetSources(now, present)
			case 7:
				if !slices.Contains(present, replica) {
					present = append(present, replica)
				}
				v.SetSources(now, present)
				take()
			}
			v.Advance(now)
		}
		v.SetSources(now, replicas)
		epoch++
		for i, replica := range replicas {
			v.Begin(replica, false)
			for name, color := range truth {
				v.Put(replica, item{name: name, color: color, epoch: []int64{0, epoch, 0}[i]})
			}
			v.Bookmark(now, replica)
		}
		v.Advance(now.Add(merge.Hold))
		take()
		if diff := cmp.Diff(truth, client.items); diff != "" {
			t.Fatalf("items (-want +got):\n%s", diff)
		}
	})
}

// Streams of different replicas follow each other and may end early. What a client takes adds up,
// and after the bookmark of the current stream it ends with the items of that stream.
func TestExclusive_ClientsEndWithTheCurrentStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := newView(merge.Exclusive)
		v.SetSources(noon, []string{""})
		truth := map[string]string{} // of the current stream
		var clients []*client
		revision, names := 0, []string{"a", "b", "c", "d"}
		put := func(name string) {
			revision++
			truth[name] = fmt.Sprint(revision)
			v.Put("", item{name: name, color: truth[name]})
		}
		name, index := rapid.SampledFrom(names), rapid.IntRange(0, 3)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) { put(name.Draw(t, "name")) },
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				delete(truth, n)
				v.Remove(noon, "", item{name: n})
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
					v.Bookmark(noon, "")
				}
			},
			"fail": func(*rapid.T) { v.Fail("") },
			"join": func(*rapid.T) {
				if len(clients) < 4 {
					client := newClient(v, all)
					client.repeats = true
					clients = append(clients, client)
				}
			},
			"leave": func(t *rapid.T) {
				if i := index.Draw(t, "client"); i < len(clients) {
					v.Leave(clients[i].reader)
					clients = slices.Delete(clients, i, i+1)
				}
			},
			"take": func(t *rapid.T) {
				if i := index.Draw(t, "client"); i < len(clients) {
					clients[i].take(t, rapid.IntRange(1, 4).Draw(t, "limit"))
				}
			},
			"check": func(t *rapid.T) {
				if !v.Synced() {
					return
				}
				for i, client := range clients {
					client.takeAll(t)
					if diff := cmp.Diff(truth, client.items); diff != "" {
						t.Fatalf("items of client %d (-want +got):\n%s", i, diff)
					}
				}
			},
			"": func(t *rapid.T) {
				if len(clients) == 0 && v.Entries() > len(names) {
					t.Fatalf("%d entries for %d names without a reader", v.Entries(), len(names))
				}
			},
		})
	})
}
