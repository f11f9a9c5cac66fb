package slicecontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

// readPending reads slices of a Service whose state in the cache is stale. Slices that cannot be
// read stay pending.
func (c *Syncer) readPending(owned *ownedShard, key Key, names map[string]struct{}) error {
	if c.deps.Reader == nil {
		return nil // the watch must show them again
	}
	var problems []error
	for name := range names {
		if err := c.readSlice(owned.ctx, keyOf(key.Namespace, name), c.cachedSlice(key, name)); err != nil {
			owned.addUnread(key, name)
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// cachedSlice returns a slice of a Service, nil if there is none of that name.
func (c *Syncer) cachedSlice(service Key, name string) *discoveryv1.EndpointSlice {
	for _, slice := range c.index.SlicesOf(service) {
		if slice.Name == name {
			return slice
		}
	}
	return nil
}

// readOrphaned reads the slices whose term ended before they were read, until the queue is shut
// down. A watch does not show them again, and a read needs no term.
func (c *Syncer) readOrphaned(ctx context.Context) {
	for {
		slice, shutDown := c.orphans.Get()
		if shutDown {
			return
		}
		if err := c.readSlice(ctx, slice, nil); err != nil {
			c.logger.Debug("cannot read slice after the end of a term, will retry", "slice", slice.String(), "error", err)
			c.orphans.AddRateLimited(slice)
		} else {
			c.orphans.Forget(slice)
		}
		c.orphans.Done(slice)
	}
}

// readSlice caches the current state of a slice. If there is none, cached is recorded as deleted;
// cached may be nil.
func (c *Syncer) readSlice(ctx context.Context, slice Key, cached *discoveryv1.EndpointSlice) error {
	read := c.reads.begin(slice)
	defer c.reads.end(slice, read)
	current, err := c.deps.Reader.Get(ctx, slice)
	switch {
	case err != nil:
		return fmt.Errorf("read endpointslice %s: %w", slice, err)
	case current == nil && (cached == nil || cached.UID == ""):
	case current == nil:
		c.index.PutTombstone(cached)
	case !c.reads.deletedDuring(read, current.UID):
		c.PutSlice(current)
		if c.reads.deletedDuring(read, current.UID) { // the deletion came before PutSlice
			c.DeleteSlice(current)
		}
	}
	return nil
}

// liveReads knows which slices are being read, so that an answer does not bring back a slice whose
// deletion a watch has shown meanwhile. It is safe for concurrent use.
type liveReads struct {
	mu      sync.Mutex // guards all below
	running map[Key]map[*liveRead]struct{}
}

// liveRead has the UIDs of the slices that were deleted during the read.
type liveRead struct{ deleted []types.UID }

func (r *liveReads) begin(slice Key) *liveRead {
	r.mu.Lock()
	defer r.mu.Unlock()
	read := &liveRead{}
	if r.running == nil {
		r.running = map[Key]map[*liveRead]struct{}{}
	}
	if r.running[slice] == nil {
		r.running[slice] = map[*liveRead]struct{}{}
	}
	r.running[slice][read] = struct{}{}
	return read
}

func (r *liveReads) end(slice Key, read *liveRead) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running[slice], read)
	if len(r.running[slice]) == 0 {
		delete(r.running, slice)
	}
}

// recordDeletion must be called before the cache drops a slice.
func (r *liveReads) recordDeletion(slice *discoveryv1.EndpointSlice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for read := range r.running[keyOf(slice.Namespace, slice.Name)] {
		read.deleted = append(read.deleted, slice.UID)
	}
}

func (r *liveReads) deletedDuring(read *liveRead, uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(read.deleted, uid)
}

// maxCatchUpDelay bounds the pause between two attempts to begin a term. All shards share them.
const maxCatchUpDelay = 2 * time.Second

// catchUp makes the cache show the writes of the last leader of the shard, and everything that the
// last leader may have planned them from. It retries until it succeeds, and reports errors and late
// watches meanwhile. It returns false if the term ends first.
func (c *Syncer) catchUp(owned *ownedShard) bool {
	if c.deps.Reader == nil {
		return true
	}
	for failures := 1; ; failures++ {
		current, err := c.readChangedSlices(owned)
		if owned.ctx.Err() != nil {
			return false
		}
		if err == nil {
			return c.deps.Watches == nil || c.deps.Watches.Await(owned.ctx, current, func(late error) { owned.block(late, time.Now()) })
		}
		owned.block(fmt.Errorf("read what the last leader of shard %d wrote: %w", owned.shard, err), time.Now())
		if backoff.Sleep(owned.ctx, min(retryDelay(failures), maxCatchUpDelay)); owned.ctx.Err() != nil {
			return false
		}
	}
}

// readChangedSlices compares the cache with a list of the slices. It reads the slices of the shard
// that are missing in the cache, older in the cache than in the list, or missing in the list. It
// returns the versions that the watches must show.
func (c *Syncer) readChangedSlices(owned *ownedShard) (current kube.Versions, err error) {
	list, err := c.lists.list(owned.ctx)
	if err != nil {
		return nil, err
	}
	listed := map[Key]struct{}{}
	for _, meta := range list.slices[owned.shard] {
		key := keyOf(meta.Namespace, meta.Name)
		listed[key] = struct{}{}
		_, cached, ours, ok := c.index.SliceVersion(key)
		if ok && ours && index.CompareVersions(meta.ResourceVersion, cached) <= 0 {
			continue
		}
		if err := c.readSlice(owned.ctx, key, nil); err != nil {
			return nil, err
		}
	}
	for _, service := range c.source.shardKeys(owned.shard) {
		for _, slice := range c.index.SlicesOf(service) {
			key := keyOf(slice.Namespace, slice.Name)
			if _, ok := listed[key]; ok || index.CompareVersions(slice.ResourceVersion, list.resourceVersion) > 0 {
				continue
			}
			if err := c.readSlice(owned.ctx, key, slice); err != nil {
				return nil, err
			}
		}
	}
	return list.current, nil
}
