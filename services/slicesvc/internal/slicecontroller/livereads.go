package slicecontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

// readPending reads slices of a Service whose state in the cache is stale. Slices that cannot be
// read stay pending.
func (c *Controller) readPending(owned *ownedShard, key Key, names map[string]struct{}) error {
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
func (c *Controller) cachedSlice(service Key, name string) *discoveryv1.EndpointSlice {
	_, all, _ := c.index.Slices(service)
	for _, slice := range all {
		if slice.Name == name {
			return slice
		}
	}
	return nil
}

// readOrphaned reads the slices whose term ended before they were read, until the queue is shut
// down. A watch does not show them again, and a read needs no term.
func (c *Controller) readOrphaned(ctx context.Context) {
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
func (c *Controller) readSlice(ctx context.Context, slice Key, cached *discoveryv1.EndpointSlice) error {
	current, err := c.deps.Reader.Get(ctx, slice)
	if err != nil {
		return fmt.Errorf("read endpointslice %s: %w", slice, err)
	}
	switch {
	case current != nil:
		c.PutSlice(current)
	case cached != nil && cached.UID != "":
		c.index.PutTombstone(cached)
	}
	return nil
}

// maxCatchUpDelay bounds the pause between two attempts to begin a term. All shards share them.
const maxCatchUpDelay = 2 * time.Second

// catchUp makes the cache show the writes of the last leader of the shard, and everything that the
// last leader may have planned them from. It retries until it succeeds, and reports errors and late
// watches meanwhile. It returns false if the term ends first.
func (c *Controller) catchUp(owned *ownedShard) bool {
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
		if pause(owned.ctx, min(retryDelay(failures), maxCatchUpDelay)); owned.ctx.Err() != nil {
			return false
		}
	}
}

// readChangedSlices compares the cache with a list of the slices. It reads the slices of the shard
// that are missing in the cache, older in the cache than in the list, or missing in the list. It
// returns the versions that the watches must show.
func (c *Controller) readChangedSlices(owned *ownedShard) (current kube.Versions, err error) {
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
	for _, service := range c.index.ShardKeys(owned.shard) {
		_, slices, _ := c.index.Slices(service)
		for _, slice := range slices {
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

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
