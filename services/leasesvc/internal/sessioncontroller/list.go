package sessioncontroller

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// listChunk is the number of sessions that the owner copies in one call.
const listChunk = 500

// keyIndex is the sorted list of all keys at one state of the table.
type keyIndex struct {
	changes uint64
	keys    []session.Key
}

// Selection selects sessions. The zero Selection selects all.
type Selection struct {
	// Classes selects classes by session.ClassID; nil selects all.
	Classes []bool
	// States selects states; none selects all.
	States []session.State
}

func (s *Selection) class(class session.ClassID) bool {
	return s.Classes == nil || s.Classes[class]
}

func (s *Selection) state(state session.State) bool {
	return len(s.States) == 0 || slices.Contains(s.States, state)
}

// ListOptions select a page of sessions.
type ListOptions struct {
	Selection
	// After is the last key of the previous page; the zero Key for the first page.
	After session.Key
	// Limit is the maximum length of the page; positive.
	Limit int
}

// Page is a part of a list.
type Page struct {
	// Leases are in the order of their resource names.
	Leases []Lease
	// More reports whether there are further pages.
	More bool
	// Shards are those that were served while the page was made.
	Shards ServedShards
	// Position is that of a Watch that returns all changes since before the page was made.
	Position Version
}

// List returns a page of sessions.
func (c *Controller) List(ctx context.Context, o ListOptions) (Page, error) {
	var (
		page  Page
		begin []*HeldShard
	)
	err := c.do(ctx, func() { begin, page.Position = c.servedShards(), c.position() })
	if err != nil {
		return Page{}, err
	}
	keys, err := c.sortedKeys(ctx)
	if err != nil {
		return Page{}, err
	}
	if o.After != (session.Key{}) {
		keys = keys[c.indexAfter(keys, o.After):]
	}
	for len(keys) > 0 && len(page.Leases) <= o.Limit {
		chunk := keys[:min(len(keys), listChunk)]
		keys = keys[len(chunk):]
		leases, err := c.leasesOf(ctx, chunk, &o.Selection)
		if err != nil {
			return Page{}, err
		}
		page.Leases = append(page.Leases, leases...)
	}
	if page.More = len(page.Leases) > o.Limit; page.More {
		page.Leases = page.Leases[:o.Limit]
	}
	err = c.do(ctx, func() { page.Shards = c.stillServed(begin) })
	return page, err
}

// ErrNotFilled means that the shard was claimed a moment ago, so that it is not known whether there
// is the session.
var ErrNotFilled = errors.New("the replica has just claimed the shard and has not heard all its holders yet")

// Get returns one session. It fails with a NotHeldError if the shard is not held, and with
// ErrNotFilled.
func (c *Controller) Get(ctx context.Context, key session.Key, shard int) (lease Lease, found bool, err error) {
	var notHeld, filled bool
	err = c.do(ctx, func() {
		var s session.Session
		notHeld, filled = !c.accepts(shard), c.isFilled(shard)
		if s, found = c.table.Get(key); found {
			lease = c.lease(s)
		}
	})
	switch {
	case err != nil:
	case notHeld:
		err = NotHeldError{Shard: shard}
	case !found && !filled:
		err = ErrNotFilled
	}
	return lease, found, err
}

// GetAll returns the sessions that exist of those with the given keys, in no order. It does not say
// whether the shards of the others are held.
func (c *Controller) GetAll(ctx context.Context, keys []session.Key) ([]Lease, error) {
	found := make([]Lease, 0, len(keys))
	for chunk := range slices.Chunk(keys, listChunk) {
		leases, err := c.leasesOf(ctx, chunk, &Selection{})
		if err != nil {
			return nil, err
		}
		found = append(found, leases...)
	}
	return found, nil
}

func (c *Controller) leasesOf(ctx context.Context, keys []session.Key, selection *Selection) ([]Lease, error) {
	var leases []Lease
	err := c.do(ctx, func() {
		for _, key := range keys {
			if !selection.class(key.Class) {
				continue
			}
			if s, known := c.table.Get(key); known && selection.state(s.State) {
				leases = append(leases, c.lease(s))
			}
		}
	})
	return leases, err
}

// sortedKeys returns all keys. The caller's goroutine sorts them, and only after keys were added or
// removed.
func (c *Controller) sortedKeys(ctx context.Context) ([]session.Key, error) {
	last := c.keyIndex.Load()
	next := &keyIndex{}
	err := c.do(ctx, func() {
		next.changes = c.table.Changes()
		next.keys = make([]session.Key, 0, c.table.Counts().Total())
	})
	if err != nil {
		return nil, err
	}
	if last != nil && last.changes == next.changes {
		return last.keys, nil
	}
	// A session never changes its slot, so each key that exists throughout is in the list exactly
	// once.
	err = c.forEachSlotRange(ctx, func(first, end uint32) {
		next.keys = c.table.AppendKeys(next.keys, int(first), int(end))
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(next.keys, c.compareKeys)
	c.keyIndex.Store(next)
	return next.keys, nil
}

// indexAfter returns the index of the first key after the given one, which need not be in the list.
func (c *Controller) indexAfter(keys []session.Key, key session.Key) int {
	index, found := slices.BinarySearchFunc(keys, key, c.compareKeys)
	if found {
		index++
	}
	return index
}

// compareKeys orders keys as their resource names: the namespace, a slash and the name.
func (c *Controller) compareKeys(a, b session.Key) int {
	if a.Class == b.Class {
		return cmp.Compare(a.Name, b.Name)
	}
	return cmp.Compare(c.cfg.Classes[a.Class].Namespace+"/", c.cfg.Classes[b.Class].Namespace+"/")
}
