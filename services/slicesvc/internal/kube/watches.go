package kube

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/trivet-dev/trivet/internal/kubewatch"
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
	client       ObjectClient
	logger       *slog.Logger
	silenceLimit time.Duration
	synced       chan struct{} // closed by Run

	kinds []*kindStatus // ordered by Kind
	// endpoints is nil unless WatchEndpoints was called.
	endpoints *endpointsWatch
}

// NewWatches returns Watches. It starts nothing. A watch of which nothing is heard for silenceLimit
// is reopened; 0 means 90 s, which is longer than the minute between two bookmarks.
func NewWatches(client ObjectClient, silenceLimit time.Duration, logger *slog.Logger) *Watches {
	w := &Watches{
		client:       client,
		logger:       logger,
		silenceLimit: cmp.Or(silenceLimit, defaultSilenceLimit),
		synced:       make(chan struct{}),
	}
	for _, kind := range []string{"EndpointSlice", "Node", "Pod", "Service"} {
		w.kinds = append(w.kinds, newKindStatus(kind, strings.ToLower(kind)+"s"))
	}
	return w
}

// Run watches until ctx ends and all its goroutines have returned. It passes the objects to the
// Handler.
func (w *Watches) Run(ctx context.Context, handler Handler) error {
	logged := klog.NewContext(ctx, logr.FromSlogHandler(w.logger.Handler()))
	var reflectors sync.WaitGroup
	defer reflectors.Wait()
	var filling []chan struct{}
	var servicesFilled chan struct{}
	for _, status := range w.kinds {
		if status.resource == endpoints {
			continue
		}
		filled := make(chan struct{})
		filling = append(filling, filled)
		if status.resource == services {
			servicesFilled = filled
		}
		reflector := newReflector(w, status, w.storeOf(status, handler, sync.OnceFunc(func() { close(filled) })))
		reflectors.Go(func() { reflector.RunWithContext(logged) })
	}
	if w.endpoints != nil {
		reflectors.Go(func() { w.endpoints.run(logged, w, servicesFilled) })
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

func newReflector(w *Watches, status *kindStatus, store cache.ReflectorStore) *cache.Reflector {
	return cache.NewReflectorWithOptions(w.listerWatcher(status), nil, store, cache.ReflectorOptions{
		Name:            "slicesvc " + status.resource,
		TypeDescription: status.resource,
	})
}

// Synced is closed when the Handler has every object that the cluster had at the start. Endpoints
// do not count.
func (w *Watches) Synced() <-chan struct{} { return w.synced }

// Check returns nil once the handlers have every object that the cluster had at the start, before
// that an error with the causes of the delay.
func (w *Watches) Check() error {
	synced := w.synced
	if w.endpoints != nil {
		synced = w.endpoints.synced
	}
	return w.check(synced, func(*kindStatus) bool { return true })
}

// check returns nil if synced is closed, else the causes of the delay.
func (w *Watches) check(synced <-chan struct{}, concerns func(*kindStatus) bool) error {
	select {
	case <-synced:
		return nil
	default:
	}
	problems := []error{errors.New("caches are being filled")}
	for _, status := range w.kinds {
		if failure := status.snapshot().Failure; failure != nil && concerns(status) {
			problems = append(problems, failure)
		}
	}
	return errors.Join(problems...)
}

// Status returns how fresh the cache of each kind is, ordered by Kind. It reads memory only. A
// caller that takes it before it reads the cache never claims too much.
func (w *Watches) Status() []KindStatus {
	all := make([]KindStatus, 0, len(w.kinds))
	for _, status := range w.kinds {
		all = append(all, status.snapshot())
	}
	return all
}

// listerWatcher lists and watches one kind, and records failures. A request that gets no answer
// fails after the silence limit.
func (w *Watches) listerWatcher(status *kindStatus) cache.ListerWatcher {
	open := func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		events, err := w.client.Watch(ctx, status.resource, options)
		w.recordAnswer(status, err)
		return events, err
	}
	return cache.ToListWatcherWithWatchListSemantics(kubewatch.Persistent(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			ctx, cancel := context.WithTimeout(ctx, w.silenceLimit)
			defer cancel()
			list, err := w.client.List(ctx, status.resource, options)
			w.recordAnswer(status, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := newStream(ctx, open, options, status, w.silenceLimit)
			if err != nil {
				return nil, err
			}
			return events, nil
		},
	}), w.client)
}

// recordAnswer records whether kube-apiserver answered a list or opened a watch. It logs at debug
// level only: once the caches are filled, interruptions are normal, and a watch continues where it
// ended.
func (w *Watches) recordAnswer(status *kindStatus, err error) {
	if err == nil {
		status.answered()
		return
	}
	w.logger.Debug("watch interrupted", "kind", status.resource, "error", err)
	status.fail(err)
}

// storeOf returns the store that passes the objects of a kind to the Handler.
func (w *Watches) storeOf(status *kindStatus, handler Handler, filled func()) cache.ReflectorStore {
	switch status.resource {
	case services:
		return newStore(decodeWith(stripService), withoutError(handler.PutService), handler.DeleteService, status, filled)
	case pods:
		return newStore(newPodDecoder(), withoutError(handler.PutPod), handler.DeletePod, status, filled)
	case nodes:
		return newStore(decodeWith(stripNode), withoutError(handler.PutNode), handler.DeleteNode, status, filled)
	default:
		slices := newStore(lazySliceOf, func(lazy *lazySlice) error { return w.putSlice(status, handler, lazy) }, func(lazy *lazySlice) { deleteSlice(handler, lazy) }, status, filled)
		slices.listed = handler.SlicesListed
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
func (w *Watches) putSlice(status *kindStatus, handler Handler, lazy *lazySlice) error {
	if !handler.ObserveSliceMetadata(&lazy.ObjectMeta) {
		return nil
	}
	slice, err := lazy.decode()
	if err != nil {
		w.logger.Error("endpointslice ignored", "error", err)
		status.fail(err)
		return err
	}
	handler.PutSlice(slice)
	return nil
}

func deleteSlice(handler Handler, lazy *lazySlice) {
	handler.DeleteSlice(&discoveryv1.EndpointSlice{ObjectMeta: lazy.ObjectMeta})
}
