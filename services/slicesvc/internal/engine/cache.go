package engine

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// cache is the index as several goroutines share it.
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
	if newer(version, c.newest) {
		c.newest = version
	}
}

// newer compares versions of possibly different resources, which share one
// counter in a kube-apiserver; what is no version is older than everything.
func newer(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	if err != nil {
		return than == "" && version != ""
	}
	return order > 0
}

func (c *cache) observed(key Key) (index.Observed, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.Observed(key)
}

func (c *cache) slices(key Key) (*corev1.Service, []*discoveryv1.EndpointSlice, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.Slices(key)
}

func (c *cache) service(key Key) (*corev1.Service, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.Service(key)
}

func (c *cache) hasSlice(key Key) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.HasSlice(key)
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
