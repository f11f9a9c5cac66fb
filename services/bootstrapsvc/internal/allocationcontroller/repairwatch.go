package allocationcontroller

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/trivet-dev/trivet/internal/watchcache"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/repairstore"
)

// RepairWatch follows the stored repairs on every replica, and serves watches of them. Its methods
// are safe for concurrent use.
type RepairWatch struct {
	store RepairStore
	cache *watchcache.Cache[repairstore.Repair]

	mu sync.Mutex // guards the fields below
	// problem says why the cache may be outdated, nil if it is not.
	problem error
	// listed reports that the cache had all repairs once.
	listed bool
	// changed is closed and replaced when problem changes between nil and an error.
	changed chan struct{}
}

var errNotListed = errors.New("the repairs have not been read yet")

func newRepairWatch(store RepairStore) *RepairWatch {
	return &RepairWatch{
		store: store, problem: errNotListed, changed: make(chan struct{}),
		cache: watchcache.New(watchcache.Config[repairstore.Repair]{
			Name: func(r repairstore.Repair) string { return r.ID },
			Same: func(a, b repairstore.Repair) bool { return a.Etag() == b.Etag() },
		}),
	}
}

// Run follows the repairs until ctx ends.
func (w *RepairWatch) Run(ctx context.Context) { w.store.WatchRepairs(ctx, w) }

// Cache serves watches. Before the first list it is empty; see Ready.
func (w *RepairWatch) Cache() *watchcache.Cache[repairstore.Repair] { return w.cache }

// Ready blocks until the cache has had all repairs once. If ctx ends before, its error wraps
// repairstore.ErrUnavailable.
func (w *RepairWatch) Ready(ctx context.Context) error {
	for {
		w.mu.Lock()
		listed, problem, changed := w.listed, w.problem, w.changed
		w.mu.Unlock()
		if listed {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", repairstore.ErrUnavailable, problem)
		}
	}
}

// Problem returns why the cache may be outdated now, nil if it is not.
func (w *RepairWatch) Problem() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.problem
}

// Changed returns a channel that is closed when Problem changes between nil and an error.
func (w *RepairWatch) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// OnList is called by the store.
func (w *RepairWatch) OnList(repairs []repairstore.Repair) {
	w.cache.Replace(repairs)
	w.set(nil)
}

// OnChange is called by the store.
func (w *RepairWatch) OnChange(changed, deleted []repairstore.Repair) {
	w.cache.Put(changed...)
	w.cache.Delete(deleted...)
}

// OnError is called by the store.
func (w *RepairWatch) OnError(err error) { w.set(err) }

func (w *RepairWatch) set(problem error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := (problem == nil) != (w.problem == nil)
	w.problem = problem
	w.listed = w.listed || problem == nil
	if changed {
		close(w.changed)
		w.changed = make(chan struct{})
	}
}
