package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubewatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// The kinds that are watched, as the API names them in the plural.
const (
	services       = "services"
	pods           = "pods"
	nodes          = "nodes"
	endpointSlices = "endpointslices"
)

// ObjectClient lists and watches the objects of one kind in all namespaces. It is called
// from several goroutines.
type ObjectClient interface {
	List(ctx context.Context, kind string, options metav1.ListOptions) (runtime.Object, error)
	Watch(ctx context.Context, kind string, options metav1.ListOptions) (kubewatch.Interface, error)
}

// source is one kind of object: where it comes from and where it goes.
type source struct {
	kind string
	// store makes what takes the objects in; filled is called when it has them all.
	store func(w *Watches, filled func()) cache.ReflectorStore
}

func sources() []source {
	return []source{
		{kind: services, store: serviceStore},
		{kind: pods, store: podStore},
		{kind: nodes, store: nodeStore},
		{kind: endpointSlices, store: sliceStore},
	}
}

// observed is a source whose failures are noted.
func (w *Watches) observed(source source) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := w.client.List(ctx, source.kind, options)
			if err != nil {
				w.failed(source.kind, err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (kubewatch.Interface, error) {
			events, err := w.client.Watch(ctx, source.kind, options)
			if err != nil {
				w.failed(source.kind, err)
			}
			return events, err
		},
	}, w.client)
}

func serviceStore(w *Watches, filled func()) cache.ReflectorStore {
	return &intake[*corev1.Service]{
		read:   stripped(stripService),
		last:   func(meta metav1.ObjectMeta) *corev1.Service { return &corev1.Service{ObjectMeta: meta} },
		put:    always(w.sink.PutService),
		drop:   w.sink.DeleteService,
		known:  map[types.NamespacedName]version{},
		filled: filled,
	}
}

func podStore(w *Watches, filled func()) cache.ReflectorStore {
	words := newVocabulary()
	return &intake[*corev1.Pod]{
		read: func(object any) (*corev1.Pod, bool) {
			pod, ok := podOf(object)
			if !ok {
				return nil, false
			}
			*pod = strippedPod(pod)
			words.ofPod(pod)
			return pod, true
		},
		last:   func(meta metav1.ObjectMeta) *corev1.Pod { return &corev1.Pod{ObjectMeta: meta} },
		put:    always(w.sink.PutPod),
		drop:   w.sink.DeletePod,
		known:  map[types.NamespacedName]version{},
		filled: filled,
	}
}

func nodeStore(w *Watches, filled func()) cache.ReflectorStore {
	return &intake[*corev1.Node]{
		read:   stripped(stripNode),
		last:   func(meta metav1.ObjectMeta) *corev1.Node { return &corev1.Node{ObjectMeta: meta} },
		put:    always(w.sink.PutNode),
		drop:   w.sink.DeleteNode,
		known:  map[types.NamespacedName]version{},
		filled: filled,
	}
}

func sliceStore(w *Watches, filled func()) cache.ReflectorStore {
	return &intake[*sighting]{
		read:   sightingOf,
		last:   func(meta metav1.ObjectMeta) *sighting { return &sighting{ObjectMeta: meta} },
		put:    w.putSlice,
		drop:   w.deleteSlice,
		known:  map[types.NamespacedName]version{},
		listed: w.sink.SlicesListed,
		filled: filled,
	}
}

// stripped reads objects of one kind and keeps of them what strip does.
func stripped[T any](strip func(T) T) func(any) (T, bool) {
	return func(object any) (T, bool) {
		typed, ok := object.(T)
		if !ok {
			return typed, false
		}
		return strip(typed), true
	}
}

// always is put without an error.
func always[T any](put func(T)) func(T) error {
	return func(object T) error {
		put(object)
		return nil
	}
}
