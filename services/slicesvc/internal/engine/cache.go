package engine

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// cache is the index as several goroutines share it. It is written through: what
// a write of ours left is in it before the next plan is made.
type cache struct {
	mu    sync.RWMutex // guards all below
	index *index.Index
	// newest is the highest resourceVersion put in.
	newest string
}

func newCache(managedBy string, shards int) *cache {
	return &cache{index: index.New(managedBy, shards)}
}

// change gives one writer the index. version is that of the object it puts in.
func (c *cache) change(version string, apply func(*index.Index)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	apply(c.index)
	if version != "" && (c.newest == "" || index.CompareVersions(version, c.newest) > 0) {
		c.newest = version
	}
}

// keep takes in what a write of ours left; it is not news of the watch.
func (c *cache) keep(slice *discoveryv1.EndpointSlice) {
	c.change("", func(x *index.Index) { x.PutWrittenSlice(slice) })
}

func (c *cache) bury(slice *discoveryv1.EndpointSlice) {
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

func (c *cache) facts(key Key, pod string) (Facts, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	service, slices, ok := c.index.Slices(key)
	if !ok {
		return Facts{}, ErrNoService
	}
	object, ok := c.index.Pod(Key{Namespace: key.Namespace, Name: pod})
	if !ok {
		return Facts{}, ErrNoPod
	}
	facts := Facts{
		Service:   service,
		Unmanaged: index.Management(service),
		Slices:    slices,
	}
	_, facts.Selected = c.index.Candidate(key, pod)
	facts.Candidate.Pod = object
	facts.Node, facts.Candidate.NodeKnown = c.index.Node(object.Spec.NodeName)
	facts.Candidate.Zone = facts.Node.Zone
	return facts, nil
}

func (c *cache) slices(key Key) (*corev1.Service, []*discoveryv1.EndpointSlice, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.Slices(key)
}

// slice returns a slice of ours by its Service and name; nil when there is none.
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

// sliceVersion is index.SliceVersion.
func (c *cache) sliceVersion(key Key) (uid types.UID, version string, ours, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.SliceVersion(key)
}

// unlisted is index.Unlisted.
func (c *cache) unlisted(there map[Key]struct{}, version string) []*discoveryv1.EndpointSlice {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.Unlisted(there, version)
}

func (c *cache) keys(namespace string) []Key {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.Keys(namespace)
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
