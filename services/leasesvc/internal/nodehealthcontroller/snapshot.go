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
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// minChanges is how many changes are kept at least. A Watcher that is further behind reads all
// Nodes.
const minChanges = 4096

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

	// The next fields belong to the goroutine that publishes. What they contain is in snapshots, so
	// it is replaced and never overwritten.
	revision uint64
	nodes    []*Node
	changes  []change
}

// change is the change of one revision.
type change struct {
	name string
	// deleted is the Node as it was last; nil if it exists.
	deleted *Node
}

// NewPublisher returns a Publisher without a snapshot.
func NewPublisher() *Publisher { return &Publisher{changed: make(chan struct{})} }

// Publish shows a pass to readers: the exported fields of the snapshot, and the Nodes, which are
// ordered by name. result is called once for each Node, before Publish returns. Only Nodes that
// changed are copied.
func (p *Publisher) Publish(snapshot Snapshot, nodes []nodehealth.NodeState, result func(*nodehealth.NodeState) Result) {
	before, old := p.revision, p.nodes
	p.nodes = make([]*Node, len(nodes))
	for i := range nodes {
		s := &nodes[i]
		for len(old) > 0 && old[0].Object != s.Node && old[0].Object.Name < s.Node.Name {
			p.record(change{name: old[0].Object.Name, deleted: old[0]})
			old = old[1:]
		}
		var known *Node
		if len(old) > 0 && (old[0].Object == s.Node || old[0].Object.Name == s.Node.Name) {
			known, old = old[0], old[1:]
		}
		p.nodes[i] = known.next(s, result(s), snapshot.At.Instant, p.revision+1)
		if known == nil || p.nodes[i].Revision != known.Revision {
			p.record(change{name: s.Node.Name})
		}
	}
	for _, node := range old {
		p.record(change{name: node.Object.Name, deleted: node})
	}
	snapshot.revision, snapshot.nodes, snapshot.changes = p.revision, p.nodes, p.changes
	p.snapshot.Store(&snapshot)
	if p.revision != before {
		p.notify()
	}
}

// Clear removes the snapshot, because the controller has stopped.
func (p *Publisher) Clear() {
	p.snapshot.Store(nil)
	p.nodes, p.changes = nil, nil
	p.revision++ // no list of changes has it, so Watchers read all Nodes of the next snapshot
	p.notify()
}

// record adds a change. What readers have of the changes is never overwritten.
func (p *Publisher) record(c change) {
	p.revision++
	if limit := max(minChanges, 2*len(p.nodes)); len(p.changes) >= limit {
		p.changes = slices.Clone(p.changes[len(p.changes)-limit/2:])
	}
	p.changes = append(p.changes, c)
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

// TaintsHeldBy returns why the NoExecute taints of a zone's Nodes must not evict Pods now, or "".
func (p *Publisher) TaintsHeldBy(zone string) string {
	snapshot := p.Snapshot()
	switch {
	case snapshot == nil:
		return "node health has not seen the cluster yet"
	case snapshot.HeldBy(zone) != "":
		return snapshot.HeldBy(zone)
	case nodehealth.AllZonesDown(snapshot.Zones):
		return "no zone has a ready node"
	}
	return ""
}

// Snapshot is the result of the last pass. It is immutable.
type Snapshot struct {
	At nodehealth.Moment
	// Zones are ordered by name.
	Zones       []nodehealth.Zone
	MassSilence nodehealth.MassSilence
	// Blindness is nil if the process is not blind.
	Blindness *nodehealth.Blindness
	// Epoch is the largest epoch of the held terms, or 0.
	Epoch int64

	revision uint64
	nodes    []*Node  // ordered by name
	changes  []change // of the last revisions, one each
}

// Wall converts an instant to wall-clock time.
func (s *Snapshot) Wall(instant monotonic.Instant) time.Time {
	return s.At.Wall.Add(instant.Sub(s.At.Instant))
}

// Node returns a Node, or nil.
func (s *Snapshot) Node(name string) *Node {
	if i, found := s.find(name); found {
		return s.nodes[i]
	}
	return nil
}

// Page returns the wanted Nodes of held shards after the given name, in order, and whether there
// are more.
func (s *Snapshot) Page(after string, limit int, wanted func(*Node) bool) (page []*Node, more bool) {
	i, found := s.find(after)
	if found {
		i++
	}
	for _, node := range s.nodes[i:] {
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
	return slices.BinarySearchFunc(s.nodes, name, func(n *Node, name string) int { return cmp.Compare(n.Object.Name, name) })
}

// HeldBy returns why a silent Node of a zone may not be marked Unknown now, or "".
func (s *Snapshot) HeldBy(zone string) string {
	switch {
	case s.Blindness != nil:
		return s.Blindness.String()
	case s.MassSilence.Zone(zone):
		return nodehealth.MassSilenceReason
	}
	return ""
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
	Session    session.State
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
