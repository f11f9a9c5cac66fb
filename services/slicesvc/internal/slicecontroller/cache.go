package slicecontroller

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// cache is the index, shared by several goroutines. Results of our writes are stored in it before
// the next plan is made.
type cache struct {
	mu    sync.RWMutex // guards all below
	index *index.Index
	// newest is the highest resourceVersion of a watched object.
	newest string
}

func newCache(managedBy string, shards int) *cache {
	return &cache{index: index.New(managedBy, shards)}
}

// change locks the index for apply. version is the resourceVersion of the object that apply stores.
func (c *cache) change(version string, apply func(*index.Index)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	apply(c.index)
	if version != "" && (c.newest == "" || index.CompareVersions(version, c.newest) > 0) {
		c.newest = version
	}
}

// storeWritten stores the answer of a write of ours.
func (c *cache) storeWritten(slice *discoveryv1.EndpointSlice) {
	c.change("", func(x *index.Index) { x.PutWrittenSlice(slice) })
}

// storeDeleted stores that a slice does not exist. Older events of it are ignored.
func (c *cache) storeDeleted(slice *discoveryv1.EndpointSlice) {
	c.change("", func(x *index.Index) { x.PutTombstone(slice) })
}

func (c *cache) snapshot(key Key) (index.Snapshot, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.Snapshot(key)
}

func (c *cache) snapshotOfPods(key Key, pods map[string]struct{}) (index.Snapshot, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.SnapshotOfPods(key, pods)
}

// endpoint returns what the index knows of a Pod in a Service. It leaves Pending unset.
func (c *cache) endpoint(key Key, pod string) (EndpointFacts, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	service, slices, ok := c.index.Slices(key)
	if !ok {
		return EndpointFacts{}, ErrServiceNotFound
	}
	object, ok := c.index.Pod(keyOf(key.Namespace, pod))
	if !ok {
		return EndpointFacts{}, ErrPodNotFound
	}
	node, known := c.index.Node(object.Spec.NodeName)
	return EndpointFacts{
		Service:   service,
		Slices:    slices,
		Candidate: desired.Candidate{Pod: object, NodeKnown: known, Zone: node.Zone},
	}, nil
}

func (c *cache) slices(key Key) (*corev1.Service, []*discoveryv1.EndpointSlice, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.Slices(key)
}

// slice returns a slice of a Service, nil if there is none of that name.
func (c *cache) slice(service Key, name string) *discoveryv1.EndpointSlice {
	_, all, _ := c.slices(service)
	for _, slice := range all {
		if slice.Name == name {
			return slice
		}
	}
	return nil
}

func (c *cache) service(key Key) (*corev1.Service, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.Service(key)
}

func (c *cache) sliceVersion(key Key) (uid types.UID, version string, ours, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.SliceVersion(key)
}

func (c *cache) unlisted(listed map[Key]struct{}, version string) []*discoveryv1.EndpointSlice {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.Unlisted(listed, version)
}

func (c *cache) keysAfter(namespace string, after Key, limit int) []Key {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.KeysAfter(namespace, after, limit)
}

func (c *cache) shardKeys(shard int) []Key {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.ShardKeys(shard)
}

func (c *cache) counts(shards []int) index.Counts {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.Counts(shards)
}

func (c *cache) resourceVersion() string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.newest
}
