package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Handler receives the watched objects. One goroutine for each kind calls it. Its methods must not
// block, and they own the objects. A deleted object has its last state, or only its names, UID and
// last known resourceVersion.
type Handler interface {
	PutService(*corev1.Service)
	DeleteService(*corev1.Service)
	PutPod(*corev1.Pod)
	DeletePod(*corev1.Pod)
	PutNode(*corev1.Node)
	DeleteNode(*corev1.Node)
	// ObserveSliceMetadata is called for every slice. It returns whether PutSlice must follow.
	ObserveSliceMetadata(*metav1.ObjectMeta) (fetch bool)
	PutSlice(*discoveryv1.EndpointSlice)
	DeleteSlice(*discoveryv1.EndpointSlice)
	// SlicesListed is called after each list, with the slices that existed at resourceVersion. An
	// older slice that the list does not have was deleted while no watch was open.
	SlicesListed(listed map[types.NamespacedName]struct{}, resourceVersion string)
}

// Watches are the watches of one process. Its methods are safe for concurrent use. Run must be
// called once.
type Watches struct {
	client  ObjectClient
	handler Handler
	logger  *slog.Logger
	synced  chan struct{} // closed by Run

	mu sync.Mutex // guards failures
	// failures has the cause of the last failed list or watch of each kind.
	failures map[string]error
}

// NewWatches returns Watches. It starts nothing.
func NewWatches(client ObjectClient, handler Handler, logger *slog.Logger) *Watches {
	return &Watches{
		client:   client,
		handler:  handler,
		logger:   logger,
		synced:   make(chan struct{}),
		failures: map[string]error{},
	}
}

// Run watches until ctx ends and all its goroutines have returned.
func (w *Watches) Run(ctx context.Context) error {
	logged := klog.NewContext(ctx, logr.FromSlogHandler(w.logger.Handler()))
	var reflectors sync.WaitGroup
	defer reflectors.Wait()
	var filling []chan struct{}
	for _, kind := range []string{services, pods, nodes, endpointSlices} {
		filled := make(chan struct{})
		filling = append(filling, filled)
		store := w.storeOf(kind, sync.OnceFunc(func() { close(filled) }))
		reflector := cache.NewReflectorWithOptions(w.listerWatcher(kind), nil, store, cache.ReflectorOptions{
			Name:            "slicesvc " + kind,
			TypeDescription: kind,
		})
		reflectors.Go(func() { reflector.RunWithContext(logged) })
	}
	for _, filled := range filling {
		select {
		case <-ctx.Done():
			return nil
		case <-filled:
		}
	}
	w.logger.Info("caches filled")
	close(w.synced)
	<-ctx.Done()
	return nil
}

// Synced is closed when the Handler has every object that the cluster had at the start.
func (w *Watches) Synced() <-chan struct{} { return w.synced }

// Check returns nil once Synced is closed, before that an error with the causes of the delay.
func (w *Watches) Check() error {
	select {
	case <-w.synced:
		return nil
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	problems := []error{errors.New("caches are being filled")}
	for _, err := range w.failures {
		problems = append(problems, err)
	}
	slices.SortFunc(problems[1:], func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

// listerWatcher lists and watches one kind, and records failures.
func (w *Watches) listerWatcher(kind string) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := w.client.List(ctx, kind, options)
			if err != nil {
				w.recordFailure(kind, err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := w.client.Watch(ctx, kind, options)
			if err != nil {
				w.recordFailure(kind, err)
			}
			return events, err
		},
	}, w.client)
}

// recordFailure logs at debug level only: once the caches are filled, interruptions are normal, and
// a watch continues where it ended.
func (w *Watches) recordFailure(kind string, cause error) {
	w.logger.Debug("watch interrupted", "kind", kind, "error", cause)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures[kind] = fmt.Errorf("list %s: %w", kind, cause)
}

// storeOf returns the store that passes the objects of a kind to the Handler.
func (w *Watches) storeOf(kind string, filled func()) cache.ReflectorStore {
	switch kind {
	case services:
		return newStore(decodeWith(stripService), withoutError(w.handler.PutService), w.handler.DeleteService, filled)
	case pods:
		return newStore(newPodDecoder(), withoutError(w.handler.PutPod), w.handler.DeletePod, filled)
	case nodes:
		return newStore(decodeWith(stripNode), withoutError(w.handler.PutNode), w.handler.DeleteNode, filled)
	default:
		slices := newStore(lazySliceOf, w.putSlice, w.deleteSlice, filled)
		slices.listed = w.handler.SlicesListed
		return slices
	}
}

// decodeWith returns a decode function for objects that a client has decoded, which strips them.
func decodeWith[T any](strip func(T) T) func(any) (T, bool) {
	return func(object any) (T, bool) {
		typed, ok := object.(T)
		if !ok {
			return typed, false
		}
		return strip(typed), true
	}
}

func newPodDecoder() func(any) (*corev1.Pod, bool) {
	shared := newInterner()
	return func(object any) (*corev1.Pod, bool) {
		pod, ok := podOf(object)
		if !ok {
			return nil, false
		}
		*pod = stripPod(pod)
		shared.internPod(pod)
		return pod, true
	}
}

func withoutError[T any](put func(T)) func(T) error {
	return func(object T) error {
		put(object)
		return nil
	}
}

// putSlice decodes a slice only if the Handler asks for it. A slice that cannot be decoded keeps
// its last known state until there is another version.
func (w *Watches) putSlice(lazy *lazySlice) error {
	if !w.handler.ObserveSliceMetadata(&lazy.ObjectMeta) {
		return nil
	}
	slice, err := lazy.decode()
	if err != nil {
		w.logger.Error("endpointslice ignored", "error", err)
		w.recordFailure(endpointSlices, err)
		return err
	}
	w.handler.PutSlice(slice)
	return nil
}

func (w *Watches) deleteSlice(lazy *lazySlice) {
	w.handler.DeleteSlice(&discoveryv1.EndpointSlice{ObjectMeta: lazy.ObjectMeta})
}
