package nodehealthcontroller

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// minJournal is how many changes are kept at least. A Watcher that is further behind reads all
// Nodes.
const minJournal = 4096

// Publisher shows the results of passes to readers. One goroutine calls Publish and Clear; the
// other methods are safe for concurrent use and never wait for it.
//
// Each change of what readers see of a Node has a revision. A new sign of life alone is no change.
// Revisions only grow, also over Clear. A Node whose shard this replica does not hold stays in the
// snapshot as not held, so that a Watcher learns of its loss.
type Publisher struct {
	snapshot atomic.Pointer[Snapshot] // nil while the controller does not pass

	mu      sync.Mutex    // guards changed
	changed chan struct{} // closed and replaced with every change

	// What follows belongs to the goroutine that publishes. The slots are shared with readers.
	revision uint64
	nodeSet  uint64 // that of slots
	slots    []*slot
	journal  []*slot
}

// slot holds one Node as long as the Node exists.
type slot struct {
	name string
	node atomic.Pointer[Node]
}

// NewPublisher returns a Publisher without a snapshot.
func NewPublisher() *Publisher { return &Publisher{changed: make(chan struct{})} }

// Pass is the result of a pass.
type Pass struct {
	At nodehealth.Moment
	// Nodes are ordered by name.
	Nodes []nodehealth.NodeState
	// NodeSet is a different number whenever a Node was added or deleted. It is never 0.
	NodeSet uint64
	// Result returns the result for a Node. It is called once for each, before Publish returns.
	Result func(*nodehealth.NodeState) Result
	// Zones are ordered by name.
	Zones       []nodehealth.Zone
	MassSilence nodehealth.MassSilence
	// Blindness is nil if the process is not blind.
	Blindness *nodehealth.Blindness
	// Epoch is the largest epoch of the held terms, or 0.
	Epoch int64
}

// Publish shows a pass to readers. Only Nodes that changed are copied.
func (p *Publisher) Publish(pass Pass) {
	before := p.revision
	if pass.NodeSet != p.nodeSet {
		p.updateSlots(pass.Nodes)
		p.nodeSet = pass.NodeSet
	}
	for i := range pass.Nodes {
		s, slot := &pass.Nodes[i], p.slots[i]
		old := slot.node.Load()
		node := old.next(s, pass.Result(s), pass.At.Instant, p.revision+1)
		if node == old {
			continue
		}
		slot.node.Store(node)
		if old == nil || node.Revision != old.Revision {
			p.record(slot)
		}
	}
	p.snapshot.Store(&Snapshot{
		At: pass.At, Zones: pass.Zones, MassSilence: pass.MassSilence, Blindness: pass.Blindness, Epoch: pass.Epoch,
		revision: p.revision, slots: p.slots, journal: p.journal,
	})
	if p.revision != before {
		p.notify()
	}
}

// Clear removes the snapshot, because the controller has stopped.
func (p *Publisher) Clear() {
	p.snapshot.Store(nil)
	p.nodeSet, p.slots, p.journal = 0, nil, nil
	p.revision++ // no journal has it, so Watchers read all Nodes of the next snapshot
	p.notify()
}

// record adds a change to the journal. What readers have of the journal is never overwritten.
func (p *Publisher) record(s *slot) {
	p.revision++
	if limit := max(minJournal, 2*len(p.slots)); len(p.journal) >= limit {
		p.journal = slices.Clone(p.journal[len(p.journal)-limit/2:])
	}
	p.journal = append(p.journal, s)
}

// updateSlots makes the slots those of nodes. Both are ordered by name.
func (p *Publisher) updateSlots(nodes []nodehealth.NodeState) {
	slots, old := make([]*slot, 0, len(nodes)), p.slots
	for i := range nodes {
		name := nodes[i].Node.Name
		for len(old) > 0 && old[0].name < name {
			p.remove(old[0])
			old = old[1:]
		}
		if len(old) > 0 && old[0].name == name {
			slots, old = append(slots, old[0]), old[1:]
			continue
		}
		slots = append(slots, &slot{name: name})
	}
	for _, s := range old {
		p.remove(s)
	}
	p.slots = slots
}

func (p *Publisher) remove(s *slot) {
	s.node.Store(s.node.Load().deleted(p.revision + 1))
	p.record(s)
}

func (p *Publisher) notify() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Changed returns a channel that is closed with the next change. A reader that takes it before it
// reads misses no change.
func (p *Publisher) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Snapshot returns the last pass, or nil while the controller does not pass.
func (p *Publisher) Snapshot() *Snapshot { return p.snapshot.Load() }

// Snapshot is the result of the last pass. It is immutable, except that its Nodes are always the
// newest.
type Snapshot struct {
	At          nodehealth.Moment
	Zones       []nodehealth.Zone
	MassSilence nodehealth.MassSilence
	Blindness   *nodehealth.Blindness
	Epoch       int64

	revision uint64
	slots    []*slot // ordered by name
	journal  []*slot // one for each of the last revisions
}

// Wall converts an instant to wall-clock time.
func (s *Snapshot) Wall(instant monotonic.Instant) time.Time {
	return s.At.Wall.Add(instant.Sub(s.At.Instant))
}

// Node returns a Node, or nil.
func (s *Snapshot) Node(name string) *Node {
	i, found := s.find(name)
	if !found {
		return nil
	}
	return s.slots[i].node.Load()
}

// Page returns the wanted Nodes of held shards after the given name, in order, and whether there
// are more.
func (s *Snapshot) Page(after string, limit int, wanted func(*Node) bool) (page []*Node, more bool) {
	i, found := s.find(after)
	if found {
		i++
	}
	for _, slot := range s.slots[i:] {
		node := slot.node.Load()
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

func (s *Snapshot) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.slots, name, func(s *slot, name string) int { return cmp.Compare(s.name, name) })
}

// Zone returns a zone by its name.
func (s *Snapshot) Zone(name string) (nodehealth.Zone, bool) {
	i, found := slices.BinarySearchFunc(s.Zones, name, func(z nodehealth.Zone, name string) int { return cmp.Compare(z.Name, name) })
	if !found {
		return nodehealth.Zone{}, false
	}
	return s.Zones[i], true
}

// Node is what readers see of one Node. It is shared and immutable.
type Node struct {
	// Object is the Node as it is cached.
	Object *corev1.Node
	Zone   string
	Ready  corev1.ConditionStatus
	Shard  int
	Result
	// ChangedAt is when its health or its readiness last changed, or when this replica first judged
	// it.
	ChangedAt monotonic.Instant
	// Revision is that of its last change.
	Revision uint64
}

// Result is what a pass concluded about one Node.
type Result struct {
	// Held says that this replica holds the shard of the Node. Otherwise the other fields are zero.
	Held bool
	// Epoch is that of the term of the shard.
	Epoch int64
	// Assessment has no Heard while a session keeps the Node alive. The session table has the time
	// of the last beat.
	Assessment nodehealth.Assessment
	Session    nodehealth.Session
	// HeldBy is why the Node is silent and not marked Unknown, or "".
	HeldBy string
}

// withoutSigns returns the Result without what a sign of life changes.
func (r Result) withoutSigns() Result {
	r.Assessment = nodehealth.Assessment{Health: r.Assessment.Health}
	return r
}

// next returns the Node after another pass, or n if nothing differs. A change gets the given
// revision.
func (n *Node) next(s *nodehealth.NodeState, r Result, now monotonic.Instant, revision uint64) *Node {
	if n != nil && n.Object == s.Node && n.Shard == s.Ownership.Shard && n.Result == r {
		return n
	}
	next := &Node{Object: s.Node, Zone: s.Zone(), Ready: s.Ready(), Shard: s.Ownership.Shard, Result: r, ChangedAt: now, Revision: revision}
	if n == nil {
		return next
	}
	if n.Held && r.Held && n.Assessment.Health == r.Assessment.Health && n.Ready == next.Ready && n.Object.UID == s.Node.UID {
		next.ChangedAt = n.ChangedAt
	}
	if !n.Held && !r.Held || n.Object == s.Node && n.withoutSigns() == r.withoutSigns() {
		next.Revision = n.Revision
	}
	return next
}

// deleted returns the Node after it was deleted.
func (n *Node) deleted(revision uint64) *Node {
	return &Node{
		Object: n.Object, Zone: n.Zone, Ready: n.Ready, Shard: n.Shard, Result: Result{Epoch: n.Epoch},
		ChangedAt: n.ChangedAt, Revision: revision,
	}
}
