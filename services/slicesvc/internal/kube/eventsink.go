package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// sink writes Events to a kube-apiserver, each in its own namespace.
type sink struct {
	rest rest.Interface
}

// NewEventSink returns where the Events of a cluster go. It contacts nobody.
func NewEventSink(cfg *rest.Config) (record.EventSink, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	client, err := newRESTClient(cfg, corev1.SchemeGroupVersion, newSerializer(scheme))
	if err != nil {
		return nil, err
	}
	return sink{rest: client}, nil
}

// Create writes a new Event.
func (s sink) Create(event *corev1.Event) (*corev1.Event, error) {
	return storedEvent(s.to(s.rest.Post(), event).Body(event))
}

// Update writes an Event anew.
func (s sink) Update(event *corev1.Event) (*corev1.Event, error) {
	return storedEvent(s.to(s.rest.Put(), event).Name(event.Name).Body(event))
}

// Patch changes an Event.
func (s sink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return storedEvent(s.to(s.rest.Patch(types.StrategicMergePatchType), event).Name(event.Name).Body(data))
}

func (s sink) to(request *rest.Request, event *corev1.Event) *rest.Request {
	return request.UseProtobufAsDefault().Namespace(event.Namespace).Resource("events")
}

// storedEvent has no caller's context to go by: an EventSink is given none.
func storedEvent(request *rest.Request) (*corev1.Event, error) {
	stored := &corev1.Event{}
	if err := request.Do(context.Background()).Into(stored); err != nil {
		return nil, err
	}
	return stored, nil
}
