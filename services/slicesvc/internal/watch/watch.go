package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Sink takes in what is watched. Its methods are called from one goroutine for
// each kind and must return soon; objects are given away.
type Sink interface {
	PutService(*corev1.Service)
	DeleteService(*corev1.Service)
	PutPod(*corev1.Pod)
	DeletePod(*corev1.Pod)
	PutNode(*corev1.Node)
	DeleteNode(*corev1.Node)
	PutSlice(*discoveryv1.EndpointSlice)
	DeleteSlice(*discoveryv1.EndpointSlice)
}

// Watch is the informers of one process. Its methods are safe for concurrent
// use; Run is called once.
type Watch struct {
	kube   kubernetes.Interface
	sink   Sink
	logger *slog.Logger
	synced chan struct{} // closed by Run

	mu sync.Mutex // guards trouble
	// trouble is, by kind, why the last attempt to list or watch failed; it goes
	// when everything has been put.
	trouble map[string]error
}

// New returns a Watch; it starts nothing.
func New(kube kubernetes.Interface, sink Sink, logger *slog.Logger) *Watch {
	return &Watch{
		kube:    kube,
		sink:    sink,
		logger:  logger,
		synced:  make(chan struct{}),
		trouble: map[string]error{},
	}
}

// Run watches until ctx ends and all its goroutines have returned.
func (w *Watch) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(w.kube, 0)
	var synced []cache.DoneChecker
	for kind, source := range w.sources(factory) {
		checker, err := w.install(kind, source)
		if err != nil {
			return fmt.Errorf("watch %s: %w", kind, err)
		}
		synced = append(synced, checker)
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	for _, checker := range synced {
		select {
		case <-ctx.Done():
			return nil
		case <-checker.Done():
		}
	}
	w.logger.Info("caches filled")
	close(w.synced)
	<-ctx.Done()
	return nil
}

// Synced is closed once everything the cluster had at the start has been put.
func (w *Watch) Synced() <-chan struct{} { return w.synced }

// Check returns nil once everything has been put; until then an error that says
// what is in the way.
func (w *Watch) Check() error {
	select {
	case <-w.synced:
		return nil
	default:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	problems := []error{errors.New("caches are being filled")}
	for _, err := range w.trouble {
		problems = append(problems, err)
	}
	slices.SortFunc(problems[1:], func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

// source is one kind of object: where it comes from, what is kept of it and
// where it goes.
type source struct {
	informer cache.SharedIndexInformer
	strip    cache.TransformFunc
	handler  cache.ResourceEventHandler
}

func (w *Watch) sources(factory informers.SharedInformerFactory) map[string]source {
	return map[string]source{
		"services": {
			informer: factory.Core().V1().Services().Informer(),
			strip:    transform(stripService),
			handler:  handler(w.sink.PutService, w.sink.DeleteService),
		},
		"pods": {
			informer: factory.Core().V1().Pods().Informer(),
			strip:    transform(stripPod),
			handler:  handler(w.sink.PutPod, w.sink.DeletePod),
		},
		"nodes": {
			informer: factory.Core().V1().Nodes().Informer(),
			strip:    transform(stripNode),
			handler:  handler(w.sink.PutNode, w.sink.DeleteNode),
		},
		"endpointslices": {
			informer: factory.Discovery().V1().EndpointSlices().Informer(),
			strip:    transform(stripSlice),
			handler:  handler(w.sink.PutSlice, w.sink.DeleteSlice),
		},
	}
}

func (w *Watch) install(kind string, from source) (cache.DoneChecker, error) {
	if err := from.informer.SetTransform(from.strip); err != nil {
		return nil, err
	}
	err := from.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, cause error) {
		w.failed(kind, cause)
	})
	if err != nil {
		return nil, err
	}
	registration, err := from.informer.AddEventHandler(from.handler)
	if err != nil {
		return nil, err
	}
	return registration.HasSyncedChecker(), nil
}

// failed takes note of an interrupted list or watch. Once the caches are
// filled, an interruption is everyday life: watches end, and are begun anew
// where they ended.
func (w *Watch) failed(kind string, cause error) {
	w.logger.Debug("watch interrupted", "kind", kind, "error", cause)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trouble[kind] = fmt.Errorf("list %s: %w", kind, cause)
}

// transform makes a TransformFunc of a function for one kind. What is not of
// the kind, such as the marker of a deletion that was missed, passes unchanged.
func transform[T any](strip func(T) T) cache.TransformFunc {
	return func(object any) (any, error) {
		if typed, ok := object.(T); ok {
			return strip(typed), nil
		}
		return object, nil
	}
}

// handler sends the objects of one kind to put and remove.
func handler[T any](put, remove func(T)) cache.ResourceEventHandler {
	send := func(object any, to func(T)) {
		if typed, ok := object.(T); ok {
			to(typed)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { send(object, put) },
		UpdateFunc: func(_, object any) { send(object, put) },
		DeleteFunc: func(object any) {
			if missed, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = missed.Obj
			}
			send(object, remove)
		},
	}
}
