package nodehealthcontroller

import (
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/watchcache"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// maxDeletions is how many deleted Nodes a watch may be behind. The Nodes of a lost shard count.
const maxDeletions = 1 << 17

// Publisher shows the results of passes to readers. One goroutine calls Publish and Clear; the
// other methods are safe for concurrent use and never wait for it.
type Publisher struct {
	feed  atomic.Pointer[Feed]
	nodes []*Node // as last published; belongs to the goroutine that publishes
}

// NewPublisher returns a Publisher without a snapshot.
func NewPublisher() *Publisher {
	p := &Publisher{}
	p.feed.Store(newFeed())
	return p
}

// Feed is what the controller publishes from its start to its end.
type Feed struct {
	// Nodes are those of held shards. A Node whose shard was lost is deleted with a last state that
	// is not Held.
	Nodes *watchcache.Cache[*Node]
	Zones *watchcache.Cache[Zone]

	snapshot atomic.Pointer[Snapshot] // nil before the first pass
	ended    chan struct{}

	mu      sync.Mutex // guards shards and changed
	shards  sessioncontroller.ServedShards
	changed chan struct{} // closed and replaced when shards change
}

func newFeed() *Feed {
	return &Feed{
		Nodes: watchcache.New(watchcache.Config[*Node]{
			Name: func(n *Node) string { return n.Object.Name }, Same: (*Node).looksLike, Deletions: maxDeletions,
		}),
		Zones: watchcache.New(watchcache.Config[Zone]{
			Name: func(z Zone) string { return z.Name }, Same: func(a, b Zone) bool { return a == b },
		}),
		ended: make(chan struct{}), changed: make(chan struct{}),
	}
}

// Snapshot returns the last pass, or nil before the first one. A change that is in Nodes or Zones
// is in a later call's Snapshot.
func (f *Feed) Snapshot() *Snapshot { return f.snapshot.Load() }

// Ended is closed when the controller ends.
func (f *Feed) Ended() <-chan struct{} { return f.ended }

// Shards returns the held shards whose Nodes are all in Nodes.
func (f *Feed) Shards() sessioncontroller.ServedShards {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shards
}

// ShardsChanged returns a channel that is closed when Shards changes.
func (f *Feed) ShardsChanged() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Served reports whether the Nodes of a shard are all in Nodes. It is false before the first of
// them is deleted because the shard was lost.
func (f *Feed) Served(shard int) bool {
	_, served := slices.BinarySearch(f.Shards().IDs, shard)
	return served
}

// loseShards leaves the shards out that are not among the next ones.
func (f *Feed) loseShards(next sessioncontroller.ServedShards) {
	kept := f.Shards()
	kept.IDs = slices.DeleteFunc(slices.Clone(kept.IDs), func(id int) bool { return !slices.Contains(next.IDs, id) })
	f.setShards(kept)
}

func (f *Feed) setShards(shards sessioncontroller.ServedShards) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shards.Equal(shards) {
		return
	}
	f.shards = shards
	close(f.changed)
	f.changed = make(chan struct{})
}

// Publish shows a pass to readers: the exported fields of the snapshot, and the Nodes, which are
// ordered by name. result is called once for each Node, before Publish returns. Only Nodes that
// changed are copied, and only they cost readers anything.
func (p *Publisher) Publish(snapshot Snapshot, nodes []nodehealth.NodeState, result func(*nodehealth.NodeState) Result) {
	var (
		feed         = p.feed.Load()
		old          = p.nodes
		put, deleted []*Node
	)
	p.nodes = make([]*Node, len(nodes))
	for i := range nodes {
		s := &nodes[i]
		for len(old) > 0 && old[0].Object != s.Node && old[0].Object.Name < s.Node.Name {
			deleted = appendDeleted(deleted, old[0], old[0].Held)
			old = old[1:]
		}
		var known *Node
		if len(old) > 0 && (old[0].Object == s.Node || old[0].Object.Name == s.Node.Name) {
			known, old = old[0], old[1:]
		}
		node := known.next(s, result(s), snapshot.At.Instant)
		p.nodes[i] = node
		snapshot.count(node)
		switch {
		case node == known:
		case node.Held:
			put = append(put, node)
		case known != nil:
			deleted = appendDeleted(deleted, known, false)
		}
	}
	for _, node := range old {
		deleted = appendDeleted(deleted, node, node.Held)
	}
	snapshot.nodes = p.nodes
	feed.publish(&snapshot, put, deleted)
}

// appendDeleted appends the last state of a Node, if readers may have it. gone is false for a Node
// whose shard was lost.
func appendDeleted(deleted []*Node, node *Node, gone bool) []*Node {
	if !node.Held {
		return deleted
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Object.Name, UID: node.Object.UID}}
	return append(deleted, &Node{Object: object, Shard: node.Shard, Result: Result{Held: gone, Epoch: node.Epoch}})
}

// publish stores the snapshot before the changes, so that a list that is read after the token of a
// watch has all changes before the token. Before the first snapshot there is no list, and no watch
// may begin until everything is there.
func (f *Feed) publish(snapshot *Snapshot, put, deleted []*Node) {
	if f.Snapshot() != nil {
		f.snapshot.Store(snapshot)
	}
	f.loseShards(snapshot.Shards)
	f.Nodes.Put(put...)
	f.Nodes.Delete(deleted...)
	f.Zones.Replace(snapshot.AllZones())
	f.snapshot.Store(snapshot)
	f.setShards(snapshot.Shards)
}

func (s *Snapshot) count(node *Node) {
	switch {
	case node.Assessment.CutOff:
		s.kubeletsCutOff.add(node.Object.Name)
	case node.Held && node.Session == session.Expired && node.Assessment.LivesBesideSession():
		s.agentsCutOff.add(node.Object.Name)
	}
	switch {
	case !node.Held:
	case node.Assessment.Health == nodehealth.Dead:
		s.unknown.add(node.Object.Name)
	case node.MarkingHold().Active():
		s.held.add(node.Object.Name)
	case node.Assessment.Health == nodehealth.Alive && node.Ready != "" && node.Ready != corev1.ConditionTrue:
		s.notReady.add(node.Object.Name)
	}
}

// Clear removes the snapshot, because the controller has stopped.
func (p *Publisher) Clear() {
	p.nodes = nil
	close(p.feed.Swap(newFeed()).ended)
}

// Feed returns what the running controller publishes, or the next one.
func (p *Publisher) Feed() *Feed { return p.feed.Load() }

// Snapshot returns the last pass, or nil while the controller does not pass.
func (p *Publisher) Snapshot() *Snapshot { return p.Feed().Snapshot() }

// TaintHold returns why NoExecute taints must not evict Pods now. What suspends marks is no reason:
// the Nodes were marked before, and each is read past the cache before one of its Pods is evicted.
func (p *Publisher) TaintHold() nodehealth.Delay {
	snapshot := p.Snapshot()
	switch {
	case snapshot == nil:
		return nodehealth.NotSyncedDelay()
	case nodehealth.AllZonesDown(snapshot.Zones):
		return nodehealth.NoZoneReadyDelay()
	}
	return nodehealth.Delay{}
}
