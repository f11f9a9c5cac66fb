package nodestore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
)

// Subscription is one user of a Store. Its methods are safe for concurrent use.
type Subscription struct {
	store          *Store
	kinds, noticed Kinds
	synced         chan struct{} // closed by Run
	generation     atomic.Pointer[generation]

	mu      sync.Mutex // guards changed
	changed map[string]struct{}
}

// Subscribe returns a Subscription to kinds, which include Nodes. Changed tells the changes of
// noticed kinds.
func (s *Store) Subscribe(kinds, noticed Kinds) *Subscription {
	return &Subscription{store: s, kinds: kinds, noticed: noticed, synced: make(chan struct{}), changed: map[string]struct{}{}}
}

// Run keeps the kinds cached until ctx ends. It is called once.
func (s *Subscription) Run(ctx context.Context) error {
	var old *generation
	defer func() { old.close() }()
	for ctx.Err() == nil {
		next, err := s.open(ctx)
		if err != nil {
			return err
		}
		if next == nil {
			continue // ctx has ended, or the informers were stopped before they had listed
		}
		s.generation.Store(next)
		if old == nil {
			close(s.synced)
		} else {
			s.noticeAll(old, next)
			old.close()
		}
		old = next
		select {
		case <-ctx.Done():
		case <-next.stopped():
		}
	}
	return nil
}

// Synced is closed when all kinds have been listed.
func (s *Subscription) Synced() <-chan struct{} { return s.synced }

// Relist lists everything again, for all Subscriptions of the Store, because a watch is behind.
func (s *Subscription) Relist() { s.store.relist() }

// Changed returns the names of the Nodes that changed since the last call, or whose Lease or Pods
// did.
func (s *Subscription) Changed() map[string]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.changed
	s.changed = map[string]struct{}{}
	return changed
}

// Node returns a Node, or nil. Before Synced it returns nil.
func (s *Subscription) Node(name string) *corev1.Node { return nodeOf(s.informer(Nodes), name) }

// Lease returns what the Lease of a Node says, or the zero Lease.
func (s *Subscription) Lease(node string) nodehealth.Lease {
	return leaseOf(s.informer(Leases), s.store.cfg.Namespace, node)
}

// Pods returns the Pods on a Node, in no order.
func (s *Subscription) Pods(node string) []*corev1.Pod { return podsOf(s.informer(Pods), node) }

// informer returns the informer that answers for a kind; nil before Synced, and for kinds without a
// Subscription.
func (s *Subscription) informer(kind Kinds) *informer {
	if current := s.generation.Load(); current != nil {
		return current.informers[kind]
	}
	return nil
}

// generation is the informers of one Subscription, until the Store lists everything again.
type generation struct {
	store     *Store
	informers map[Kinds]*informer
	handlers  map[Kinds]cache.ResourceEventHandlerRegistration
}

// stopped is closed when the Store lists everything again, which stops all informers.
func (g *generation) stopped() <-chan struct{} { return g.informers[Nodes].stopped }

func (g *generation) close() {
	if g == nil {
		return
	}
	for kind, handler := range g.handlers {
		_ = g.informers[kind].RemoveEventHandler(handler) // it fails for handlers of another informer only
	}
	g.store.release(g.informers)
}

// open returns a generation that has listed its kinds. It returns nil if ctx ends, or the informers
// are stopped, before that.
func (s *Subscription) open(ctx context.Context) (*generation, error) {
	acquired, err := s.store.acquire(s.kinds)
	g := &generation{store: s.store, informers: acquired, handlers: map[Kinds]cache.ResourceEventHandlerRegistration{}}
	if err == nil {
		err = s.handle(g)
	}
	if err == nil && g.awaitSynced(ctx) {
		return g, nil
	}
	if i := acquired[Nodes]; i != nil && i.IsStopped() {
		err = nil // a stopped informer takes no handler
	}
	g.close()
	return nil, err
}

// handle notices the changes of the kinds that the Subscription wants to know of.
func (s *Subscription) handle(g *generation) error {
	for kind, i := range g.informers {
		if s.noticed&kind == 0 {
			continue
		}
		handler, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    s.notice,
			UpdateFunc: func(_, object any) { s.notice(object) },
			DeleteFunc: func(object any) {
				if deleted, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = deleted.Obj
				}
				if lease, is := object.(*cachedLease); is {
					s.store.slimmer.forgetLease(lease.Name)
				}
				s.notice(object)
			},
		})
		if err != nil {
			return fmt.Errorf("handle changes: %w", err)
		}
		g.handlers[kind] = handler
	}
	return nil
}

// awaitSynced waits until all kinds are listed, and handlers have been called for each object.
func (g *generation) awaitSynced(ctx context.Context) bool {
	for kind, i := range g.informers {
		synced := i.HasSyncedChecker().Done()
		if handler := g.handlers[kind]; handler != nil {
			synced = handler.HasSyncedChecker().Done()
		}
		select {
		case <-ctx.Done():
			return false
		case <-g.stopped():
			return false
		case <-synced:
		}
	}
	return true
}

func (s *Subscription) notice(object any) {
	var name string
	switch typed := object.(type) {
	case *corev1.Node:
		name = typed.Name
	case *cachedLease:
		name = typed.Name
	case *cachedPod:
		name = typed.node
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed[name] = struct{}{}
}

// noticeAll notices all Nodes, because any may differ between two generations.
func (s *Subscription) noticeAll(generations ...*generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range generations {
		for _, name := range g.informers[Nodes].GetStore().ListKeys() {
			s.changed[name] = struct{}{}
		}
	}
}
