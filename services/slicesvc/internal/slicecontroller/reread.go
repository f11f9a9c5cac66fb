package slicecontroller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// reread brings into the cache what is there instead of the slice that a change
// was planned from. It reports whether that is known now.
func (e *Engine) reread(h *holding, change pack.Change) bool {
	if e.deps.Reader == nil {
		return false
	}
	return e.fetch(h.ctx, keyOf(change.Slice.Namespace, change.Slice.Name), change.Slice) == nil
}

// overtaken sees to it that the cache shows what a watch has shown of a slice
// since our write of it, rather than that write.
func (e *Engine) overtaken(h *holding, key Key, stored *discoveryv1.EndpointSlice, newer sighting) {
	if !newer.seen {
		return
	}
	slice := keyOf(stored.Namespace, stored.Name)
	if newer.gone {
		e.cache.change("", func(x *index.Index) { x.DeleteSlice(stored) })
		return
	}
	if _, has, _, ok := e.cache.sliceVersion(slice); ok && index.CompareVersions(newer.version, has) <= 0 || e.deps.Reader == nil {
		return
	}
	if err := e.fetch(h.ctx, slice, nil); err != nil {
		e.logger.Debug("slice not read, will be before the next plan", "slice", slice.String(), "error", err)
		h.leaveUnread(key, stored.Name, time.Now())
	}
}

// readUp brings slices of a Service into the cache of which it is known that they
// are not there as they are. Those that cannot be read stay to be read.
func (e *Engine) readUp(h *holding, key Key, names map[string]struct{}) error {
	if e.deps.Reader == nil {
		return nil // the watch must show them once more
	}
	var problems []error
	for name := range names {
		slice := keyOf(key.Namespace, name)
		known := e.cache.slice(key, name)
		if err := e.fetch(h.ctx, slice, known); err != nil {
			h.leaveUnread(key, name, time.Now())
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// fetch reads a slice and brings it into the cache. If there is none, known, which
// may be nil, is taken to be gone.
func (e *Engine) fetch(ctx context.Context, slice Key, known *discoveryv1.EndpointSlice) error {
	live, err := e.deps.Reader.Get(ctx, slice)
	if err != nil {
		return fmt.Errorf("read endpointslice %s: %w", slice, err)
	}
	switch {
	case live != nil:
		e.PutSlice(live)
	case known != nil && known.UID != "":
		e.cache.bury(known)
	}
	return nil
}

// catchUp sees to it that the cache shows what the last holder of the shard left,
// however late the watch is, and reports meanwhile what is in the way. It returns
// false when the term ends first.
func (e *Engine) catchUp(h *holding) bool {
	if e.deps.Reader == nil {
		return true
	}
	for failures := 1; ; failures++ {
		err := e.compare(h)
		if h.ctx.Err() != nil {
			return false
		}
		if err == nil {
			return true
		}
		h.tell(fmt.Errorf("read what the last holder of shard %d left: %w", h.shard, err))
		select {
		case <-h.ctx.Done():
			return false
		case <-time.After(retryPause(failures)):
		}
	}
}

// compare holds the cache against a list of the slices there are, and fetches
// those of the shard that it does not show as new.
func (e *Engine) compare(h *holding) error {
	listed, err := e.roll.call(h.ctx)
	if err != nil {
		return err
	}
	there := map[Key]struct{}{}
	for _, meta := range listed.slices[h.shard] {
		key := keyOf(meta.Namespace, meta.Name)
		there[key] = struct{}{}
		_, has, ours, ok := e.cache.sliceVersion(key)
		if ok && ours && index.CompareVersions(meta.ResourceVersion, has) <= 0 {
			continue
		}
		if err := e.fetch(h.ctx, key, nil); err != nil {
			return err
		}
	}
	for _, service := range e.cache.shardKeys(h.shard) {
		_, slices, _ := e.cache.slices(service)
		for _, slice := range slices {
			key := keyOf(slice.Namespace, slice.Name)
			if _, ok := there[key]; ok || index.CompareVersions(slice.ResourceVersion, listed.version) > 0 {
				continue
			}
			if err := e.fetch(h.ctx, key, slice); err != nil {
				return err
			}
		}
	}
	return nil
}

// roll lists the slices of the cluster for terms that begin. Those that begin at
// about the same time share a list, of which each is sure that it was made after
// its own term began.
type roll struct {
	reader Reader
	shards int

	turn chan struct{} // has a place for whoever lists
	mu   sync.Mutex    // guards next
	// next is the list that was asked for and has not begun.
	next *listing
}

// listing is one list, by shard of the Service that the slices name.
type listing struct {
	done    chan struct{} // closed when the rest is there
	slices  map[int][]metav1.ObjectMeta
	version string
	err     error
}

func newRoll(reader Reader, shards int) *roll {
	return &roll{
		reader: reader,
		shards: shards,
		turn:   make(chan struct{}, 1),
	}
}

// call returns a list that was begun after it was called.
func (r *roll) call(ctx context.Context) (*listing, error) {
	r.mu.Lock()
	asked := r.next
	mine := asked == nil
	if mine {
		asked = &listing{done: make(chan struct{})}
		r.next = asked
	}
	r.mu.Unlock()
	if mine {
		r.list(ctx, asked)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-asked.done:
		return asked, asked.err
	}
}

// begin lets nobody join the next list any more.
func (r *roll) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = nil
}

// list makes the list that others may wait for, too, when its turn has come. It
// fails for all of them when ctx ends first; those whose terms go on ask again.
func (r *roll) list(ctx context.Context, into *listing) {
	defer close(into.done)
	select {
	case <-ctx.Done():
		r.begin()
		into.err = ctx.Err()
		return
	case r.turn <- struct{}{}:
	}
	defer func() { <-r.turn }()
	r.begin()
	var all []metav1.ObjectMeta
	if all, into.version, into.err = r.reader.List(ctx); into.err != nil {
		return
	}
	into.slices = map[int][]metav1.ObjectMeta{}
	for _, meta := range all {
		service := keyOf(meta.Namespace, meta.Labels[discoveryv1.LabelServiceName])
		into.slices[shard.Of(service.Namespace, service.Name, r.shards)] = append(into.slices[shard.Of(service.Namespace, service.Name, r.shards)], meta)
	}
}
