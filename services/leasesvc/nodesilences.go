package leasesvc

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealthcontroller"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// maxNodeSilencesAge is how long one look at all Nodes is shared. The shards of a replica ask at
// about the same time, once a second.
const maxNodeSilencesAge = 250 * time.Millisecond

// nodeSilences are the silent Nodes without a session, as node health has judged them last. It is
// safe for concurrent use.
type nodeSilences struct {
	publisher *nodehealthcontroller.Publisher

	mu      sync.Mutex // guards the fields below
	taken   time.Time
	judged  []int // shards, ordered
	byShard map[int][]sessioncontroller.NodeSilence
}

// of returns the silent Nodes of a shard; false while node health does not judge it.
func (n *nodeSilences) of(shard int) ([]sessioncontroller.NodeSilence, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Since(n.taken) > maxNodeSilencesAge {
		n.taken = time.Now()
		n.read(n.publisher.Snapshot())
	}
	_, judged := slices.BinarySearch(n.judged, shard)
	return n.byShard[shard], judged
}

// read takes a snapshot, which is nil while node health does not pass.
func (n *nodeSilences) read(snapshot *nodehealthcontroller.Snapshot) {
	n.judged, n.byShard = nil, map[int][]sessioncontroller.NodeSilence{}
	if snapshot == nil {
		return
	}
	n.judged = snapshot.Shards.IDs
	silent, _ := snapshot.Page("", math.MaxInt, func(node *nodehealthcontroller.Node) bool {
		health := node.Assessment.Health
		return node.Session == session.Gone && (health == nodehealth.Suspect || health == nodehealth.Silent)
	})
	for _, node := range silent {
		n.byShard[node.Shard] = append(n.byShard[node.Shard], sessioncontroller.NodeSilence{
			Name: node.Object.Name, UID: node.Object.UID, For: snapshot.At.Instant.Sub(node.Assessment.Heard),
		})
	}
}
