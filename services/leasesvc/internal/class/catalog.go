package class

import (
	"time"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// Catalog maps between the names of the API and the numbers of the session table. It is immutable
// and safe for concurrent use.
type Catalog struct {
	classes     []Class
	byName      map[string]session.ClassID
	byNamespace map[string]session.ClassID
	bindings    []Binding
	shards      int
}

// NewCatalog returns the catalog of classes, whose names and namespaces differ, in a service with a
// number of shards. The index of a class is its session.ClassID. Tokens of agents, each a
// "namespace/name" of a ServiceAccount, speak for their Nodes.
func NewCatalog(classes []Class, shards int, agents ...string) *Catalog {
	c := &Catalog{
		classes: classes, shards: shards,
		byName: map[string]session.ClassID{}, byNamespace: map[string]session.ClassID{},
	}
	for i := range classes {
		c.byName[classes[i].Name] = session.ClassID(i)
		c.byNamespace[classes[i].Namespace] = session.ClassID(i)
		c.bindings = append(c.bindings, newBinding(classes[i].HolderRule, agents))
	}
	return c
}

// Len returns the number of classes. Their IDs begin at 0.
func (c *Catalog) Len() int { return len(c.classes) }

// Get returns the class with an ID.
func (c *Catalog) Get(id session.ClassID) *Class { return &c.classes[id] }

// Binding returns the rule of a class for its holders.
func (c *Catalog) Binding(id session.ClassID) *Binding { return &c.bindings[id] }

// ByName returns the ID of the class with a name; false if it is not served.
func (c *Catalog) ByName(name string) (session.ClassID, bool) {
	id, served := c.byName[name]
	return id, served
}

// ByNamespace returns the ID of the class with a namespace; false if it is not served.
func (c *Catalog) ByNamespace(namespace string) (session.ClassID, bool) {
	id, served := c.byNamespace[namespace]
	return id, served
}

// Mark returns a set of classes, by ID, that contains the class of a namespace, or nothing.
func (c *Catalog) Mark(namespace string) []bool {
	marked := make([]bool, len(c.classes))
	if id, served := c.byNamespace[namespace]; served {
		marked[id] = true
	}
	return marked
}

// Shard returns the shard of a holder. It depends on the class name, because IDs depend on the
// order in the configuration.
func (c *Catalog) Shard(className, holder string) int { return shard.Of(className, holder, c.shards) }

// ShardOf returns the shard of a session.
func (c *Catalog) ShardOf(key session.Key) int { return c.Shard(c.classes[key.Class].Name, key.Name) }

// ShortestGrace returns the shortest grace period of all classes. There must be at least one class.
func (c *Catalog) ShortestGrace() time.Duration {
	shortest := c.classes[0].Grace
	for i := range c.classes {
		shortest = min(shortest, c.classes[i].Grace)
	}
	return shortest
}

// LongestInterval returns the longest time between two beats that a class asks for.
func (c *Catalog) LongestInterval() time.Duration {
	longest := time.Duration(0)
	for i := range c.classes {
		longest = max(longest, c.classes[i].HeartbeatInterval)
	}
	return longest
}
