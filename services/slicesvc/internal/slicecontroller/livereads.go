package slicecontroller

import (
	"context"
	"errors"
	"fmt"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// reread caches the current state of a slice in conflict, and returns whether it could.
func (c *Controller) reread(owned *ownedShard, change pack.Change) bool {
	if c.deps.Reader == nil {
		return false
	}
	return c.readSlice(owned.ctx, keyOf(change.Slice.Namespace, change.Slice.Name), change.Slice) == nil
}

// applyObserved caches what a watch showed of a slice after our write of it.
func (c *Controller) applyObserved(owned *ownedShard, key Key, stored *discoveryv1.EndpointSlice, newer observedVersion) {
	if !newer.observed {
		return
	}
	slice := keyOf(stored.Namespace, stored.Name)
	if newer.deleted {
		c.cache.change("", func(x *index.Index) { x.DeleteSlice(stored) })
		return
	}
	if _, cached, _, ok := c.cache.sliceVersion(slice); ok && index.CompareVersions(newer.version, cached) <= 0 || c.deps.Reader == nil {
		return
	}
	if err := c.readSlice(owned.ctx, slice, nil); err != nil {
		c.logger.Debug("cannot read slice, will retry before the next plan", "slice", slice.String(), "error", err)
		owned.addUnread(key, stored.Name)
	}
}

// readPending reads slices of a Service whose state in the cache is stale. Slices that cannot be
// read stay pending.
func (c *Controller) readPending(owned *ownedShard, key Key, names map[string]struct{}) error {
	if c.deps.Reader == nil {
		return nil // the watch must show them again
	}
	var problems []error
	for name := range names {
		if err := c.readSlice(owned.ctx, keyOf(key.Namespace, name), c.cache.slice(key, name)); err != nil {
			owned.addUnread(key, name)
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// readOrphaned reads the slices whose term ended before they were read, until ctx ends. A watch
// does not show them again, and a read needs no term.
func (c *Controller) readOrphaned(ctx context.Context) {
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-c.orphanedReads.added:
		}
		var failed []Key
		for slice := range c.orphanedReads.take() {
			if err := c.readSlice(ctx, slice, nil); err != nil {
				c.logger.Debug("cannot read slice after the end of a term, will retry", "slice", slice.String(), "error", err)
				failed = append(failed, slice)
			}
		}
		if len(failed) == 0 {
			failures = 0
			continue
		}
		failures++
		pause(ctx, retryDelay(failures))
		c.orphanedReads.add(failed)
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
		c.cache.storeDeleted(cached)
	}
	return nil
}

// catchUp makes the cache show the writes of the last holder of the shard. It retries until it
// succeeds, and reports errors meanwhile. It returns false if the term ends first.
func (c *Controller) catchUp(owned *ownedShard) bool {
	if c.deps.Reader == nil {
		return true
	}
	for failures := 1; ; failures++ {
		err := c.readChangedSlices(owned)
		if owned.ctx.Err() != nil {
			return false
		}
		if err == nil {
			return true
		}
		owned.report(fmt.Errorf("read what the last holder of shard %d wrote: %w", owned.shard, err))
		if pause(owned.ctx, retryDelay(failures)); owned.ctx.Err() != nil {
			return false
		}
	}
}

// readChangedSlices compares the cache with a list of the slices. It reads the slices of the shard
// that are missing in the cache, older in the cache than in the list, or missing in the list.
func (c *Controller) readChangedSlices(owned *ownedShard) error {
	list, err := c.lists.list(owned.ctx)
	if err != nil {
		return err
	}
	listed := map[Key]struct{}{}
	for _, meta := range list.slices[owned.shard] {
		key := keyOf(meta.Namespace, meta.Name)
		listed[key] = struct{}{}
		_, cached, ours, ok := c.cache.sliceVersion(key)
		if ok && ours && index.CompareVersions(meta.ResourceVersion, cached) <= 0 {
			continue
		}
		if err := c.readSlice(owned.ctx, key, nil); err != nil {
			return err
		}
	}
	for _, service := range c.cache.shardKeys(owned.shard) {
		_, slices, _ := c.cache.slices(service)
		for _, slice := range slices {
			key := keyOf(slice.Namespace, slice.Name)
			if _, ok := listed[key]; ok || index.CompareVersions(slice.ResourceVersion, list.resourceVersion) > 0 {
				continue
			}
			if err := c.readSlice(owned.ctx, key, slice); err != nil {
				return err
			}
		}
	}
	return nil
}

// sliceLister lists the slices of the cluster for terms that begin. Terms that begin at about the
// same time share a list; each gets a list that was requested after its own beginning.
type sliceLister struct {
	reader Reader
	shards int

	turn chan struct{} // holds one value while a list runs
	mu   sync.Mutex    // guards next
	// next was requested and has not begun.
	next *sliceList
}

// sliceList is one list of slices, by the shard of the Service that a slice names.
type sliceList struct {
	done            chan struct{} // closed when the other fields are set
	slices          map[int][]metav1.ObjectMeta
	resourceVersion string
	err             error
}

func newSliceLister(reader Reader, shards int) *sliceLister {
	return &sliceLister{
		reader: reader,
		shards: shards,
		turn:   make(chan struct{}, 1),
	}
}

// list returns a list that begins after the call.
func (l *sliceLister) list(ctx context.Context) (*sliceList, error) {
	l.mu.Lock()
	requested := l.next
	first := requested == nil
	if first {
		requested = &sliceList{done: make(chan struct{})}
		l.next = requested
	}
	l.mu.Unlock()
	if first {
		l.fill(ctx, requested)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-requested.done:
		return requested, requested.err
	}
}

// fill waits for its turn and lists. If ctx ends first the list fails for all terms that share it;
// those whose terms go on request another one.
func (l *sliceLister) fill(ctx context.Context, list *sliceList) {
	defer close(list.done)
	select {
	case <-ctx.Done():
		l.begin()
		list.err = ctx.Err()
		return
	case l.turn <- struct{}{}:
	}
	defer func() { <-l.turn }()
	l.begin()
	var all []metav1.ObjectMeta
	if all, list.resourceVersion, list.err = l.reader.List(ctx); list.err != nil {
		return
	}
	list.slices = map[int][]metav1.ObjectMeta{}
	for _, meta := range all {
		number := shard.Of(meta.Namespace, meta.Labels[discoveryv1.LabelServiceName], l.shards)
		list.slices[number] = append(list.slices[number], meta)
	}
}

// begin makes later calls request another list.
func (l *sliceLister) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = nil
}

// pendingReads is a set of slices to read.
type pendingReads struct {
	mu     sync.Mutex // guards slices
	slices map[Key]struct{}
	added  chan struct{} // has a value after add
}

func newPendingReads() *pendingReads {
	return &pendingReads{slices: map[Key]struct{}{}, added: make(chan struct{}, 1)}
}

func (r *pendingReads) add(slices []Key) {
	if len(slices) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, slice := range slices {
		r.slices[slice] = struct{}{}
	}
	select {
	case r.added <- struct{}{}:
	default:
	}
}

// take empties the set and returns what was in it.
func (r *pendingReads) take() map[Key]struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.slices
	r.slices = map[Key]struct{}{}
	return taken
}
