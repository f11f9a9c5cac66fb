package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
)

// EndpointsHandler receives the watched Endpoints. One goroutine calls it. Its methods must not
// block, and they own the objects.
type EndpointsHandler interface {
	// ObserveEndpoints is called for every new or changed object, with its metadata. It returns
	// whether PutEndpoints must follow.
	ObserveEndpoints(*metav1.ObjectMeta) (fetch bool)
	PutEndpoints(*corev1.Endpoints)
	// DeleteEndpoints gets at least the names, the UID and the last known resourceVersion.
	DeleteEndpoints(*metav1.ObjectMeta)
}

// endpointsWatch is the optional watch of Endpoints.
type endpointsWatch struct {
	status  *kindStatus
	handler EndpointsHandler
	synced  chan struct{} // closed by Run
}

// WatchEndpoints makes Run watch Endpoints too, which needs another right of the replica. It must
// be called before Run. The list of Endpoints begins when the Handler has every Service, so that
// the handler knows which Endpoints it needs as a whole.
func (w *Watches) WatchEndpoints(handler EndpointsHandler) {
	w.endpoints = &endpointsWatch{
		status:  newKindStatus("Endpoints", endpoints),
		handler: handler,
		synced:  make(chan struct{}),
	}
	w.kinds = append(w.kinds, w.endpoints.status)
	slices.SortFunc(w.kinds, func(a, b *kindStatus) int { return strings.Compare(a.status.Kind, b.status.Kind) })
}

// EndpointsSynced is closed when the handlers have every object that the cluster had at the start.
// It must be called after WatchEndpoints.
func (w *Watches) EndpointsSynced() <-chan struct{} { return w.endpoints.synced }

// CheckSlices is Check without the watch of Endpoints.
func (w *Watches) CheckSlices() error {
	return w.check(w.synced, func(status *kindStatus) bool { return status.resource != endpoints })
}

// Endpoints reads the current state of an object; nil if there is none.
func (w *Watches) Endpoints(ctx context.Context, key types.NamespacedName) (*corev1.Endpoints, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	found, err := w.client.List(ctx, endpoints, metav1.ListOptions{FieldSelector: fields.Set{
		"metadata.namespace": key.Namespace,
		"metadata.name":      key.Name,
	}.String()})
	if err != nil {
		return nil, fmt.Errorf("read endpoints %s: %w", key, err)
	}
	list, ok := found.(*corev1.EndpointsList)
	if !ok {
		return nil, errKind
	}
	for i := range list.Items {
		if keyOf(&list.Items[i]) == key {
			return stripEndpoints(&list.Items[i]), nil
		}
	}
	return nil, nil
}

// run watches Endpoints until ctx ends, once the Handler has every Service.
func (e *endpointsWatch) run(ctx context.Context, w *Watches, servicesFilled <-chan struct{}) {
	select {
	case <-ctx.Done():
		return
	case <-servicesFilled:
	}
	filled := make(chan struct{})
	store := newStore(lazyEndpointsOf, func(lazy *lazyEndpoints) error { return e.put(w, lazy) }, e.remove,
		e.status, sync.OnceFunc(func() { close(filled) }))
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-filled:
		}
		select {
		case <-ctx.Done():
		case <-w.synced:
			close(e.synced)
		}
	}()
	newReflector(w, e.status, store).RunWithContext(ctx)
}

func (e *endpointsWatch) put(w *Watches, lazy *lazyEndpoints) error {
	meta := stripEndpointsMeta(&lazy.ObjectMeta)
	if !e.handler.ObserveEndpoints(&meta) {
		return nil
	}
	decoded, err := lazy.decode()
	if err != nil {
		w.logger.Error("endpoints ignored", "error", err)
		e.status.fail(err)
		return err
	}
	e.handler.PutEndpoints(decoded)
	return nil
}

func (e *endpointsWatch) remove(lazy *lazyEndpoints) { e.handler.DeleteEndpoints(&lazy.ObjectMeta) }
