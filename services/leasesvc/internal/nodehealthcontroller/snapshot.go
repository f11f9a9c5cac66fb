package nodehealthcontroller

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// journalLength is how many changes are remembered at least: a watcher that is further behind looks at all Nodes.
const journalLength = 4096

// Census is published by one goroutine; every other method is safe for concurrent use.
type Publisher struct {
	snapshot atomic.Pointer[Snapshot] // nil while nobody watches over the Nodes

	mu      sync.Mutex    // guards changed
	changed chan struct{} // closed and replaced with every change

	// What follows belongs to the goroutine that publishes. The entries of roster and journal are shared with readers.
	revision uint64
	members  uint64 // that of roster
	roster   []*entry
	journal  []*entry
}

// entry is the place of one Node, as long as it exists.
type entry struct {
	name string
	node atomic.Pointer[Node]
}

// NewCensus returns a Census that has not been published.
func NewPublisher() *Publisher { return &Publisher{changed: make(chan struct{})} }

// Pass is what is published after a pass.
type Pass struct {
	// At is the time of the pass.
	At nodehealth.Moment
	// Subjects are all Nodes, ordered by name.
	Nodes []nodehealth.NodeState
	// Members numbers the sets of Nodes: it is another one whenever a Node was added or is gone, and never 0.
	NodeSet uint64
	// View tells how one of them stands; it is called for each, before Publish returns.
	Result func(*nodehealth.NodeState) Result
	// Zones are ordered by name.
	Zones []nodehealth.Zone
	// Doubted are zones and shards in which nothing is declared before a self-check.
	MassSilence nodehealth.MassSilence
	// Blindness is why nothing is declared anywhere; nil when it is.
	Blindness *nodehealth.Blindness
	// Epoch is that of the newest term held here, 0 without one.
	Epoch int64
}

// Edition is what was last published. It is immutable but for the Nodes, which are those of the moment.
type Snapshot struct {
	At          nodehealth.Moment
	Zones       []nodehealth.Zone
	MassSilence nodehealth.MassSilence
	Blindness   *nodehealth.Blindness
	Epoch       int64

	revision uint64
	roster   []*entry // ordered by name
	journal  []*entry // one for each of the last revisions; an entry that changed again is in it again
}

// Publish makes a pass known to readers.
func (c *Publisher) Publish(p Pass) {
	before := c.revision
	if p.NodeSet != c.members {
		c.keepUp(p.Nodes)
		c.members = p.NodeSet
	}
	for i := range p.Nodes {
		s, e := &p.Nodes[i], c.roster[i]
		was := e.node.Load()
		is := was.next(s, p.Result(s), p.At.Instant, c.revision+1)
		if is == was {
			continue
		}
		e.node.Store(is)
		if was == nil || is.Revision != was.Revision {
			c.note(e)
		}
	}
	c.snapshot.Store(&Snapshot{
		At: p.At, Zones: p.Zones, MassSilence: p.MassSilence, Blindness: p.Blindness, Epoch: p.Epoch,
		revision: c.revision, roster: c.roster, journal: c.journal,
	})
	if c.revision != before {
		c.tell()
	}
}

// Clear withdraws what was published: nobody watches over the Nodes any more. Watchers learn of it.
func (c *Publisher) Clear() {
	c.snapshot.Store(nil)
	c.members, c.roster, c.journal = 0, nil, nil
	c.revision++ // which no journal has, so watchers look at all Nodes of the next edition
	c.tell()
}

// note enters the newest change into the journal. What readers have of the journal is never written to again.
func (c *Publisher) note(e *entry) {
	c.revision++
	if limit := max(journalLength, 2*len(c.roster)); len(c.journal) >= limit {
		c.journal = slices.Clone(c.journal[len(c.journal)-limit/2:])
	}
	c.journal = append(c.journal, e)
}

// keepUp brings the roster in line with the subjects. Both are ordered by name.
func (c *Publisher) keepUp(subjects []nodehealth.NodeState) {
	roster, old := make([]*entry, 0, len(subjects)), c.roster
	for i := range subjects {
		name := subjects[i].Node.Name
		for len(old) > 0 && old[0].name < name {
			c.drop(old[0])
			old = old[1:]
		}
		if len(old) > 0 && old[0].name == name {
			roster, old = append(roster, old[0]), old[1:]
			continue
		}
		roster = append(roster, &entry{name: name})
	}
	for _, e := range old {
		c.drop(e)
	}
	c.roster = roster
}

// drop notes the end of a Node.
func (c *Publisher) drop(e *entry) {
	e.node.Store(e.node.Load().gone(c.revision + 1))
	c.note(e)
}

func (c *Publisher) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Changed returns a channel that is closed with the next change. Who takes it before reading misses none.
func (c *Publisher) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Edition is what was published last; nil while nobody watches over the Nodes.
func (c *Publisher) Snapshot() *Snapshot { return c.snapshot.Load() }

// Wall says when by the wall clock an instant was or will be.
func (e *Snapshot) Wall(instant monotonic.Instant) time.Time {
	return e.At.Wall.Add(instant.Sub(e.At.Instant))
}

// Node returns a Node; nil when there is none of that name.
func (e *Snapshot) Node(name string) *Node {
	i, found := e.search(name)
	if !found {
		return nil
	}
	return e.roster[i].node.Load()
}

func (e *Snapshot) search(name string) (int, bool) {
	return slices.BinarySearchFunc(e.roster, name, func(e *entry, name string) int { return cmp.Compare(e.name, name) })
}

// Page returns the Nodes judged here that are wanted, ordered by name, beginning behind after; and whether there are more.
func (e *Snapshot) Page(after string, limit int, wanted func(*Node) bool) (page []*Node, more bool) {
	i, found := e.search(after)
	if found {
		i++
	}
	for _, entry := range e.roster[i:] {
		node := entry.node.Load()
		switch {
		case !node.Held || !wanted(node):
		case len(page) == limit:
			return page, true
		default:
			page = append(page, node)
		}
	}
	return page, false
}

// Zone returns a zone by its name.
func (e *Snapshot) Zone(name string) (nodehealth.Zone, bool) {
	i, found := slices.BinarySearchFunc(e.Zones, name, func(z nodehealth.Zone, name string) int { return cmp.Compare(z.Name, name) })
	if !found {
		return nodehealth.Zone{}, false
	}
	return e.Zones[i], true
}
