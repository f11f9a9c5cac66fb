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

// world is a service with shards that move between replicas, each of which tells a gateway what it has, in order and late.
type world struct {
	t       *rapid.T
	now     time.Time
	epoch   int64
	things  map[string]string // what there is: color by name
	holders []string          // of each shard; empty while nobody holds it
	epochs  []int64           // of each shard
	lines   map[string]*line  // of each replica
	state   *merge.State[thing]
	readers []*client
}

// line is what a replica has said and the gateway has not heard.
type line struct {
	up   bool
	said []func()
}

// client believes what a reader is told, and finds contradictions.
type client struct {
	reader *merge.Reader[thing]
	wants  func(thing) bool
	seen   map[string]string
	marked bool
}

func shardOf(name string) int { return int(name[len(name)-1]-'0') % 3 }

func (w *world) say(replica string, what func()) {
	if l := w.lines[replica]; l != nil && l.up {
		l.said = append(l.said, what)
	}
}

func (w *world) put(name string) {
	shard := shardOf(name)
	replica, item := w.holders[shard], thing{name: name, epoch: w.epochs[shard], color: w.things[name]}
	w.say(replica, func() { w.state.Put(replica, item) })
}

func (w *world) remove(replica, name string, epoch int64) {
	w.say(replica, func() { w.state.Remove(w.now, replica, thing{name: name, epoch: epoch}) })
}

func (w *world) heldBy(replica string) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(w.things)), func(name string) bool { return w.holders[shardOf(name)] != replica })
}

// connect begins to tell everything anew.
func (w *world) connect(replica string) {
	l := w.lines[replica]
	l.up, l.said = true, nil
	w.state.Begin(replica, false)
	for _, name := range w.heldBy(replica) {
		w.put(name)
	}
	w.say(replica, func() { w.state.Bookmark(w.now, replica) })
}

func (w *world) disconnect(replica string) {
	w.lines[replica].up, w.lines[replica].said = false, nil
	w.state.Fail(replica)
}

// move gives a shard to another replica, or to nobody.
func (w *world) move(shard int, to string) {
	from, last := w.holders[shard], w.epochs[shard]
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(w.things)), func(name string) bool { return shardOf(name) != shard })
	w.epoch++
	w.holders[shard], w.epochs[shard] = to, w.epoch
	for _, name := range names {
		w.remove(from, name, last)
		w.put(name)
	}
}

// leave ends a replica for good; who holds its shards then is for a later step.
func (w *world) leave(replica string) {
	delete(w.lines, replica)
	for shard, holder := range w.holders {
		if holder == replica {
			w.holders[shard] = ""
		}
	}
	w.expect()
}

func (w *world) expect() { w.state.Expect(w.now, slices.Sorted(maps.Keys(w.lines))) }

func (w *world) replica() string {
	return rapid.SampledFrom(slices.Sorted(maps.Keys(w.lines))).Draw(w.t, "replica")
}

func (w *world) hear(replica string) {
	if l := w.lines[replica]; len(l.said) > 0 {
		l.said[0]()
		l.said = l.said[1:]
	}
}

func (w *world) join(wants func(thing) bool) {
	w.readers = append(w.readers, &client{reader: w.state.Join(wants), wants: wants, seen: map[string]string{}})
}

// read takes some changes and checks each against what the client believes.
func (c *client) read(t *rapid.T, limit int) (told bool) {
	events, bookmark := c.reader.Take(limit)
	for _, event := range events {
		name := event.Item.GetName()
		_, known := c.seen[name]
		if known != (event.Kind != merge.Added) {
			t.Fatalf("event %d for %s, which the reader knows: %v", event.Kind, name, known)
		}
		if delete(c.seen, name); event.Kind != merge.Removed {
			c.seen[name] = event.Item.color
		}
	}
	c.marked = c.marked || bookmark
	return bookmark || len(events) > 0
}

func (w *world) step() {
	t := w.t
	name := func() string { return fmt.Sprintf("n%d", rapid.IntRange(0, 8).Draw(t, "name")) }
	switch rapid.IntRange(0, 11).Draw(t, "step") {
	case 0, 1:
		thing := name()
		w.things[thing] = rapid.SampledFrom([]string{"red", "green"}).Draw(t, "color")
		w.put(thing)
	case 2:
		thing := name()
		delete(w.things, thing)
		w.remove(w.holders[shardOf(thing)], thing, w.epochs[shardOf(thing)])
	case 3:
		w.move(rapid.IntRange(0, 2).Draw(t, "shard"), w.replica())
	case 4:
		w.disconnect(w.replica())
	case 5:
		w.connect(w.replica())
	case 6:
		if len(w.lines) > 1 {
			w.leave(w.replica())
		}
	case 7:
		w.lines[fmt.Sprintf("r%d", w.epoch)] = &line{}
		w.epoch++
		w.expect()
	case 8:
		w.now = w.now.Add(time.Duration(rapid.IntRange(1, 15).Draw(t, "seconds")) * time.Second)
		w.state.Advance(w.now)
	case 9:
		if len(w.readers) > 3 {
			w.state.Leave(w.readers[0].reader)
			w.readers = w.readers[1:]
		}
		color := rapid.SampledFrom([]string{"", "red"}).Draw(t, "wanted")
		w.join(func(item thing) bool { return color == "" || item.color == color })
	default:
		for range rapid.IntRange(1, 5).Draw(t, "messages") {
			w.hear(w.replica())
		}
	}
	for _, c := range w.readers {
		if rapid.Bool().Draw(t, "reads") {
			c.read(t, rapid.IntRange(1, 4).Draw(t, "limit"))
		}
	}
}

// settle lets every shard be held, every replica tell everything, and what is doubted be believed.
func (w *world) settle() {
	for shard, holder := range w.holders {
		if holder == "" {
			w.move(shard, w.replica())
		}
	}
	for _, replica := range slices.Sorted(maps.Keys(w.lines)) {
		w.connect(replica)
		for len(w.lines[replica].said) > 0 {
			w.hear(replica)
		}
	}
	w.now = w.now.Add(merge.Hold)
	w.state.Advance(w.now)
}

// However the words of replicas interleave, get lost and are said anew: no reader is ever told a contradiction, and in the end
// each believes what is so.
func TestState_EveryReaderEndsWithTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, now: noon, epoch: 9, things: map[string]string{}, holders: []string{"a", "a", "b"}, epochs: []int64{1, 2, 3},
			lines: map[string]*line{"a": {}, "b": {}, "c": {}}, state: merge.New(same),
		}
		w.expect()
		w.join(func(thing) bool { return true })
		for range rapid.IntRange(10, 120).Draw(t, "steps") {
			w.step()
		}
		w.settle()

		if missing := w.state.Missing(); len(missing) > 0 || !w.state.Settled() {
			t.Fatalf("missing %v, settled %v at the end", missing, w.state.Settled())
		}
		for _, c := range w.readers {
			for c.read(t, 3) {
			}
			want := map[string]string{}
			for name, color := range w.things {
				if c.wants(thing{name: name, color: color}) {
					want[name] = color
				}
			}
			if diff := cmp.Diff(want, c.seen); diff != "" {
				t.Fatalf("a reader's view (-want +got):\n%s", diff)
			}
			if !c.marked || c.reader.Pending() {
				t.Fatalf("bookmark seen: %v, something pending: %v", c.marked, c.reader.Pending())
			}
		}
	})
}
