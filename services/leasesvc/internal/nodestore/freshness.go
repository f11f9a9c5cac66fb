package nodestore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Freshness says how fresh the cache of one kind is.
type Freshness struct {
	// Kind is the kind of the objects, for example "Node".
	Kind string
	// ResourceVersion is the newest one that a list or the watch has shown; "" before the first
	// list.
	ResourceVersion string
	// Heard is when kube-apiserver last answered a list, opened the watch or sent an event. It
	// sends a bookmark about once a minute. It is zero before the first answer.
	Heard time.Time
}

// Freshness returns how fresh the caches of kinds are, ordered by kind. A kind that no Subscription
// has is missing.
func (s *Store) Freshness(kinds Kinds) []Freshness {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Freshness
	for _, k := range []struct {
		kind Kinds
		name string
	}{{Leases, "Lease"}, {Nodes, "Node"}, {Pods, "Pod"}} {
		if i := s.running[k.kind]; i != nil && kinds&k.kind != 0 {
			all = append(all, Freshness{Kind: k.name, ResourceVersion: i.LastSyncResourceVersion(), Heard: i.heard.get()})
		}
	}
	return all
}

// heardTime is when the watch of an informer was last heard. It is safe for concurrent use.
type heardTime struct{ at atomic.Pointer[time.Time] }

func (h *heardTime) set() {
	now := time.Now()
	h.at.Store(&now)
}

func (h *heardTime) get() time.Time {
	if at := h.at.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// client lists and watches objects of one kind.
type client[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// newInformer returns an informer of the selected objects; nil selects all. It sets heard with each
// answer, as the informers of client-go do not.
func newInformer[L runtime.Object](
	kube kubernetes.Interface, objects client[L], heard *heardTime, example runtime.Object, selector fields.Selector, indexers cache.Indexers,
) cache.SharedIndexInformer {
	selected := func(options metav1.ListOptions) metav1.ListOptions {
		if selector != nil {
			options.FieldSelector = selector.String()
		}
		return options
	}
	lister := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := objects.List(ctx, selected(options))
			if err != nil {
				return nil, err
			}
			heard.set()
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := objects.Watch(ctx, selected(options))
			if err != nil {
				return nil, err
			}
			heard.set()
			return newHeardWatch(events, heard), nil
		},
	}
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lister, kube), example, 0, indexers)
}

// heardWatch is a watch that sets heard with each event.
type heardWatch struct {
	incoming watch.Interface
	events   chan watch.Event
	stopped  chan struct{}
	stop     sync.Once
}

func newHeardWatch(incoming watch.Interface, heard *heardTime) *heardWatch {
	w := &heardWatch{incoming: incoming, events: make(chan watch.Event), stopped: make(chan struct{})}
	go func() {
		defer close(w.events)
		for e := range incoming.ResultChan() {
			heard.set()
			select {
			case w.events <- e:
			case <-w.stopped:
				return
			}
		}
	}()
	return w
}

// ResultChan implements watch.Interface.
func (w *heardWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop implements watch.Interface.
func (w *heardWatch) Stop() {
	w.stop.Do(func() {
		close(w.stopped)
		w.incoming.Stop()
	})
}
