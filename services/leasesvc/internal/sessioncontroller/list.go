package sessioncontroller

import (
	"cmp"
	"context"
	"slices"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

// pageChunk is how many sessions the owner copies at a time for a page: enough to be quick, few enough to keep no beat waiting.
const listChunk = 500

// roster is the keys of all sessions in the order of their resource names, as of some state of the table.
type keyIndex struct {
	changes uint64
	keys    []session.Key
}

// Query asks for a page of sessions.
type ListOptions struct {
	// After is the last key of the page before; the zero Key for the first page.
	After session.Key
	// Limit is how many sessions the page has at most; positive.
	Limit int
	// Classes marks the classes that are wanted by their ClassID; nil means all.
	Classes []bool
	// State that is wanted; session.Gone means all.
	State session.State
}

// Page returns sessions ordered by resource name, and whether there are more.
func (k *Controller) List(ctx context.Context, q ListOptions) (page []Lease, more bool, err error) {
	keys, err := k.sortedKeys(ctx)
	if err != nil {
		return nil, false, err
	}
	if q.After != (session.Key{}) {
		keys = keys[k.indexAfter(keys, q.After):]
	}
	for len(keys) > 0 {
		chunk := keys[:min(len(keys), listChunk)]
		keys = keys[len(chunk):]
		found, err := k.leasesOf(ctx, chunk, q)
		if err != nil {
			return nil, false, err
		}
		if page = append(page, found...); len(page) > q.Limit {
			return page[:q.Limit], true, nil
		}
	}
	return page, false, nil
}

// Get returns one session of a shard, or a NotKeptError.
func (k *Controller) Get(ctx context.Context, key session.Key, shard int) (lease Lease, found bool, err error) {
	var elsewhere bool
	err = k.do(ctx, func() {
		var s session.Session
		elsewhere = !k.admits(shard)
		if s, found = k.table.Get(key); found {
			lease = k.lease(s)
		}
	})
	if err == nil && elsewhere {
		err = NotHeldError{Shard: shard}
	}
	return lease, found, err
}

func (k *Controller) leasesOf(ctx context.Context, keys []session.Key, q ListOptions) ([]Lease, error) {
	var found []Lease
	err := k.do(ctx, func() {
		for _, key := range keys {
			if q.Classes != nil && !q.Classes[key.Class] {
				continue
			}
			s, known := k.table.Get(key)
			if known && (q.State == session.Gone || s.State == q.State) {
				found = append(found, k.lease(s))
			}
		}
	})
	return found, err
}

// ordered returns all keys in order. The caller does the sorting, not the owner, and only after holders came or went.
func (k *Controller) sortedKeys(ctx context.Context) ([]session.Key, error) {
	last := k.keyIndex.Load()
	next := &keyIndex{}
	err := k.do(ctx, func() {
		next.changes = k.table.Changes()
		next.keys = make([]session.Key, 0, k.table.Counts().Total())
	})
	if err != nil {
		return nil, err
	}
	if last != nil && last.changes == next.changes {
		return last.keys, nil
	}
	// Who comes or goes meanwhile may be in the roster or not; all others are in it once, because nobody changes his slot.
	for first, slots := 0, 1; first < slots; first += slotsPerCall {
		err := k.do(ctx, func() {
			slots = k.table.Slots()
			next.keys = k.table.AppendKeys(next.keys, first, first+slotsPerCall)
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(next.keys, k.compareKeys)
	k.keyIndex.Store(next)
	return next.keys, nil
}

// after is the place of the first key behind the given one, which need not exist any more.
func (k *Controller) indexAfter(keys []session.Key, key session.Key) int {
	place, found := slices.BinarySearchFunc(keys, key, k.compareKeys)
	if found {
		place++
	}
	return place
}

// compare orders keys as their resource names are ordered: the slash behind the namespace counts.
func (k *Controller) compareKeys(a, b session.Key) int {
	if a.Class == b.Class {
		return cmp.Compare(a.Name, b.Name)
	}
	return cmp.Compare(k.cfg.Classes[a.Class].Namespace+"/", k.cfg.Classes[b.Class].Namespace+"/")
}
