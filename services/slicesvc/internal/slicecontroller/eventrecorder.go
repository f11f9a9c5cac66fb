package slicecontroller

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// EventRecorder records Events of the objects of one kind. Its methods do not block and are safe
// for concurrent use.
type EventRecorder struct {
	sink            record.EventSink
	component, kind string

	mu sync.Mutex // guards all below
	// recorder is nil before Start and after Stop; then no Event is recorded.
	recorder record.EventRecorder
	shutdown func()
}

// NewEventRecorder returns an EventRecorder of objects of a kind of apiVersion v1. Users filter
// Events by component. It accepts a nil sink; then Start has no effect.
func NewEventRecorder(sink record.EventSink, component, kind string) *EventRecorder {
	return &EventRecorder{sink: sink, component: component, kind: kind}
}

// Start sends Events until Stop is called or ctx ends.
func (e *EventRecorder) Start(ctx context.Context) {
	if e.sink == nil {
		return
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(e.sink)
	scheme := runtime.NewScheme() // an ObjectReference has its own kind
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recorder = broadcaster.NewRecorder(scheme, corev1.EventSource{Component: e.component})
	e.shutdown = broadcaster.Shutdown
}

// Stop drops the Events that are not sent yet.
func (e *EventRecorder) Stop() {
	e.mu.Lock()
	shutdown := e.shutdown
	e.recorder, e.shutdown = nil, nil
	e.mu.Unlock()
	if shutdown != nil {
		shutdown()
	}
}

// Record records an Event of an object.
func (e *EventRecorder) Record(object metav1.Object, eventType, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorder == nil {
		return
	}
	e.recorder.Event(&corev1.ObjectReference{
		APIVersion:      "v1",
		Kind:            e.kind,
		Namespace:       object.GetNamespace(),
		Name:            object.GetName(),
		UID:             object.GetUID(),
		ResourceVersion: object.GetResourceVersion(),
	}, eventType, reason, message)
}

// recording returns whether Record has an effect.
func (e *EventRecorder) recording() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.recorder != nil
}
