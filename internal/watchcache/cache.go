package watchcache

import (
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/trivet-dev/trivet/internal/resumetoken"
)

// defaultDeletions is the number of deletions that a cache remembers by default.
const defaultDeletions = 1000

// Config configures a Cache.
type Config[T any] struct {
	// Name returns the name of an object, which identifies it. It is required.
	Name func(T) string
	// Same says whether two states of an object look the same to readers. Putting such a state is
	// no change. Nil means that every Put is a change.
	Same func(a, b T) bool
	// Deletions is how many deletions the cache remembers; 0 means 1,000. A reader that is further
	// behind cannot resume.
	Deletions int
}

// Cache has the newest state of each object and the order of changes. All methods are safe for
// concurrent use. Objects that were put must not be modified afterwards: readers share them.
type Cache[T any] struct {
	cfg      Config[T]
	instance uint64

	mu       sync.Mutex // guards all below
	revision uint64
	objects  map[string]*object[T]
	// log is ordered by revision. current counts its records that are not stale.
	log     []record[T]
	current int
	// deleted has the deletions that are remembered, oldest first. Deletions up to revision
	// forgotten are not remembered.
	deleted   []*object[T]
	forgotten uint64
	// replacements counts calls of Replace.
	replacements uint64
	changed      chan struct{} // closed and replaced at each change, if a reader waits for it
	awaited      bool
}

// object is one life of an object, from its creation to its deletion. A name that is created again
// gets another object.
type object[T any] struct {
	state    T
	created  uint64 // revision
	modified uint64 // revision of the last modification, 0 if there was none
	deleted  uint64 // revision, 0 while it exists
	// forgotten says that the deletion is not remembered any more.
	forgotten bool
	// replacement is the last call of Replace that contained the object.
	replacement uint64
}

type record[T any] struct {
	revision uint64
	object   *object[T]
}

// stale says that a later record of the object has made r superfluous.
func (r record[T]) stale() bool {
	o := r.object
	switch {
	case o.forgotten:
		return true
	case o.deleted != 0:
		return r.revision != o.created && r.revision != o.deleted
	default:
		return r.revision != o.created && r.revision != o.modified
	}
}

// New returns an empty cache.
func New[T any](cfg Config[T]) *Cache[T] {
	if cfg.Deletions <= 0 {
		cfg.Deletions = defaultDeletions
	}
	return &Cache[T]{
		cfg:      cfg,
		instance: rand.Uint64(),
		objects:  map[string]*object[T]{},
		changed:  make(chan struct{}),
	}
}

// Put adds objects or changes them.
func (c *Cache[T]) Put(items ...T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.revision
	for _, item := range items {
		c.put(item)
	}
	c.finish(before)
}

// Delete deletes the objects with the names of last. Readers get last as their last states. Names
// that the cache does not have are ignored.
func (c *Cache[T]) Delete(last ...T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.revision
	for _, item := range last {
		c.delete(c.cfg.Name(item), item)
	}
	c.finish(before)
}

// Replace makes the cache exactly items, in one step. Objects that differ by Config.Same are
// changes; objects that are not in items are deleted.
func (c *Cache[T]) Replace(items []T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.revision
	c.replacements++
	for _, item := range items {
		c.put(item).replacement = c.replacements
	}
	var missing []string
	for name, o := range c.objects {
		if o.replacement != c.replacements {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	for _, name := range missing {
		c.delete(name, c.objects[name].state)
	}
	c.finish(before)
}

// put needs c.mu and returns the object.
func (c *Cache[T]) put(item T) *object[T] {
	name := c.cfg.Name(item)
	o := c.objects[name]
	switch {
	case o == nil:
		o = &object[T]{state: item, created: c.revision + 1}
		c.objects[name] = o
		c.current++
	case c.cfg.Same != nil && c.cfg.Same(o.state, item):
		o.state = item // later readers get what Same ignores
		return o
	default:
		if o.modified == 0 {
			c.current++
		}
		o.state, o.modified = item, c.revision+1
	}
	c.append(o)
	return o
}

// delete needs c.mu.
func (c *Cache[T]) delete(name string, last T) {
	o := c.objects[name]
	if o == nil {
		return
	}
	delete(c.objects, name)
	if o.modified == 0 {
		c.current++ // else the record of the deletion replaces that of the modification
	}
	o.state, o.deleted = last, c.revision+1
	c.append(o)
	c.deleted = append(c.deleted, o)
	if len(c.deleted) > c.cfg.Deletions {
		c.forget()
	}
}

// forget needs c.mu. It forgets the oldest deletion.
func (c *Cache[T]) forget() {
	oldest := c.deleted[0]
	c.deleted[0] = nil
	c.deleted = c.deleted[1:]
	c.forgotten = oldest.deleted
	oldest.forgotten = true
	var none T
	oldest.state = none
	c.current -= 2
}

// append needs c.mu.
func (c *Cache[T]) append(o *object[T]) {
	c.revision++
	c.log = append(c.log, record[T]{revision: c.revision, object: o})
}

// minStale is the number of stale records that compaction is worth.
const minStale = 1024

// finish needs c.mu. It compacts the log when most records are stale, so that a change costs the
// same on average for any number of objects, and wakes the readers.
func (c *Cache[T]) finish(before uint64) {
	if c.revision == before {
		return
	}
	if len(c.log) > 2*c.current+minStale {
		c.log = slices.DeleteFunc(c.log, record[T].stale)
	}
	if c.awaited {
		close(c.changed)
		c.changed, c.awaited = make(chan struct{}), false
	}
}

// ResumeToken returns the token with which a watch of method with the same arguments sends the
// changes from now on. A list that is read afterwards and a watch with the token together miss
// nothing.
func (c *Cache[T]) ResumeToken(method, arguments string) string {
	newest := c.newest()
	return c.format(method, arguments).Encode(newest, newest, newest)
}

func (c *Cache[T]) format(method, arguments string) resumetoken.Format {
	return resumetoken.Format{Instance: c.instance, Method: method, Arguments: arguments}
}

func (c *Cache[T]) newest() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revision
}

// changedSince returns a channel that is closed when there are changes after revision.
func (c *Cache[T]) changedSince(revision uint64) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.revision > revision {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	c.awaited = true
	return c.changed
}
