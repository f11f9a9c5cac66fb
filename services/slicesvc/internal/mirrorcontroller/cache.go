package mirrorcontroller

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
)

// cache has the known Endpoints objects, by shard. It is safe for concurrent use.
type cache struct {
	mu     sync.RWMutex // guards shards
	shards []map[Key]entry
}

// entry is the newest known version of an Endpoints object. It is comparable: equal entries are one
// version.
type entry struct {
	// object is nil if there is none. Without whole it has metadata only.
	object *corev1.Endpoints
	whole  bool
}

func newCache(shards int) *cache {
	c := &cache{shards: make([]map[Key]entry, shards)}
	for i := range c.shards {
		c.shards[i] = map[Key]entry{}
	}
	return c
}

func (c *cache) shardOf(key Key) map[Key]entry {
	return c.shards[shard.Of(key.Namespace, key.Name, len(c.shards))]
}

func (c *cache) get(key Key) entry {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.shardOf(key)[key]
}

// put stores an object unless a newer version is known. A whole object replaces the metadata of the
// same version.
func (c *cache) put(object *corev1.Endpoints, whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replace(object, whole)
}

// replace needs c.mu.
func (c *cache) replace(object *corev1.Endpoints, whole bool) {
	key := keyOf(object)
	known := c.shardOf(key)[key]
	if known.object != nil {
		order := index.CompareVersions(object.ResourceVersion, known.object.ResourceVersion)
		if order < 0 || order == 0 && (known.whole || !whole) {
			return
		}
	}
	c.shardOf(key)[key] = entry{object: object, whole: whole}
}

// fill stores a whole object that was read, unless a newer version is known. An object that is not
// known was deleted during the read.
func (c *cache) fill(read *corev1.Endpoints) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if key := keyOf(read); c.shardOf(key)[key].object != nil {
		c.replace(read, true)
	}
}

// remove removes an object. A newer one of the same name stays.
func (c *cache) remove(last *metav1.ObjectMeta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := Key{Namespace: last.Namespace, Name: last.Name}
	known := c.shardOf(key)[key].object
	if known != nil && known.UID != last.UID && index.CompareVersions(known.ResourceVersion, last.ResourceVersion) > 0 {
		return
	}
	delete(c.shardOf(key), key)
}

// shrink drops the content of an object that is not mirrored.
func (c *cache) shrink(key Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.shardOf(key)[key]; known.whole {
		c.shardOf(key)[key] = entry{object: nameOnly(&known.object.ObjectMeta)}
	}
}

// keys returns all keys of a shard.
func (c *cache) keys(number int) []Key {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Keys(c.shards[number]))
}

// nameOnly returns an Endpoints object that costs little memory.
func nameOnly(meta *metav1.ObjectMeta) *corev1.Endpoints {
	return &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion,
	}}
}

func keyOf(object metav1.Object) Key {
	return Key{Namespace: object.GetNamespace(), Name: object.GetName()}
}
