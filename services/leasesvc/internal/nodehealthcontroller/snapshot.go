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
type Census struct {
	edition atomic.Pointer[Edition] // nil while nobody watches over the Nodes

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
func NewCensus() *Census { return &Census{changed: make(chan struct{})} }

// Pass is what is published after a pass.
type Pass struct {
	// At is the time of the pass.
	At nodehealth.Moment
	// Subjects are all Nodes, ordered by name.
	Subjects []nodehealth.Subject
	// Members numbers the sets of Nodes: it is another one whenever a Node was added or is gone, and never 0.
	Members uint64
	// View tells how one of them stands; it is called for each, before Publish returns.
	View func(*nodehealth.Subject) View
	// Zones are ordered by name.
	Zones []nodehealth.Zone
	// Doubted are zones and shards in which nothing is declared before a self-check.
	Doubted nodehealth.Doubt
	// Blindness is why nothing is declared anywhere; nil when it is.
	Blindness *nodehealth.Blindness
	// Epoch is that of the newest term held here, 0 without one.
	Epoch int64
}

// Edition is what was last published. It is immutable but for the Nodes, which are those of the moment.
type Edition struct {
	At        nodehealth.Moment
	Zones     []nodehealth.Zone
	Doubted   nodehealth.Doubt
	Blindness *nodehealth.Blindness
	Epoch     int64

	revision uint64
	roster   []*entry // ordered by name
	journal  []*entry // one for each of the last revisions; an entry that changed again is in it again
}

// Publish makes a pass known to readers.
func (c *Census) Publish(p Pass) {
	before := c.revision
	if p.Members != c.members {
		c.keepUp(p.Subjects)
		c.members = p.Members
	}
	for i := range p.Subjects {
		s, e := &p.Subjects[i], c.roster[i]
		was := e.node.Load()
		is := was.next(s, p.View(s), p.At.Instant, c.revision+1)
		if is == was {
			continue
		}
		e.node.Store(is)
		if was == nil || is.Revision != was.Revision {
			c.note(e)
		}
	}
	c.edition.Store(&Edition{
		At: p.At, Zones: p.Zones, Doubted: p.Doubted, Blindness: p.Blindness, Epoch: p.Epoch,
		revision: c.revision, roster: c.roster, journal: c.journal,
	})
	if c.revision != before {
		c.tell()
	}
}

// Clear withdraws what was published: nobody watches over the Nodes any more. Watchers learn of it.
func (c *Census) Clear() {
	c.edition.Store(nil)
	c.members, c.roster, c.journal = 0, nil, nil
	c.revision++ // which no journal has, so watchers look at all Nodes of the next edition
	c.tell()
}

// note enters the newest change into the journal. What readers have of the journal is never written to again.
func (c *Census) note(e *entry) {
	c.revision++
	if limit := max(journalLength, 2*len(c.roster)); len(c.journal) >= limit {
		c.journal = slices.Clone(c.journal[len(c.journal)-limit/2:])
	}
	c.journal = append(c.journal, e)
}

// keepUp brings the roster in line with the subjects. Both are ordered by name.
func (c *Census) keepUp(subjects []nodehealth.Subject) {
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
func (c *Census) drop(e *entry) {
	e.node.Store(e.node.Load().gone(c.revision + 1))
	c.note(e)
}

func (c *Census) tell() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Changed returns a channel that is closed with the next change. Who takes it before reading misses none.
func (c *Census) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Edition is what was published last; nil while nobody watches over the Nodes.
func (c *Census) Edition() *Edition { return c.edition.Load() }

// Wall says when by the wall clock an instant was or will be.
func (e *Edition) Wall(instant monotonic.Instant) time.Time {
	return e.At.Wall.Add(instant.Sub(e.At.Instant))
}

// Node returns a Node; nil when there is none of that name.
func (e *Edition) Node(name string) *Node {
	i, found := e.search(name)
	if !found {
		return nil
	}
	return e.roster[i].node.Load()
}

func (e *Edition) search(name string) (int, bool) {
	return slices.BinarySearchFunc(e.roster, name, func(e *entry, name string) int { return cmp.Compare(e.name, name) })
}

// Page returns the Nodes judged here that are wanted, ordered by name, beginning behind after; and whether there are more.
func (e *Edition) Page(after string, limit int, wanted func(*Node) bool) (page []*Node, more bool) {
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
func (e *Edition) Zone(name string) (nodehealth.Zone, bool) {
	i, found := slices.BinarySearchFunc(e.Zones, name, func(z nodehealth.Zone, name string) int { return cmp.Compare(z.Name, name) })
	if !found {
		return nodehealth.Zone{}, false
	}
	return e.Zones[i], true
}
