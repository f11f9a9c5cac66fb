package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// Clients are the clients of one kube-apiserver.
type Clients struct {
	Objects ObjectClient
	Slices  SliceRequests
	Events  record.EventSink
}

// Connect returns clients that contact nothing until they are used. Requests for slices use
// sliceConfig. Its transport must refuse writes outside of a held term, and its client must not
// retry: a throttled write must fail at once.
func Connect(cfg, sliceConfig *rest.Config) (Clients, error) {
	objects, err := NewObjectClient(cfg)
	if err != nil {
		return Clients{}, err
	}
	slices, err := NewSliceRequests(sliceConfig)
	if err != nil {
		return Clients{}, err
	}
	events, err := newEventSink(cfg)
	return Clients{Objects: objects, Slices: slices, Events: events}, err
}

// eventSink writes each Event to its own namespace.
type eventSink struct {
	rest rest.Interface
}

var _ record.EventSink = eventSink{}

func newEventSink(cfg *rest.Config) (record.EventSink, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	client, err := newRESTClient(cfg, corev1.SchemeGroupVersion, newSerializer(scheme))
	if err != nil {
		return nil, err
	}
	return eventSink{rest: client}, nil
}

func (s eventSink) Create(event *corev1.Event) (*corev1.Event, error) {
	return s.send(s.rest.Post(), event, event)
}

func (s eventSink) Update(event *corev1.Event) (*corev1.Event, error) {
	return s.send(s.rest.Put().Name(event.Name), event, event)
}

func (s eventSink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.send(s.rest.Patch(types.StrategicMergePatchType).Name(event.Name), event, data)
}

func (s eventSink) send(request *rest.Request, event *corev1.Event, body any) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout) // record.EventSink passes no context
	defer cancel()
	stored := &corev1.Event{}
	err := request.UseProtobufAsDefault().
		Namespace(event.Namespace).
		Resource("events").
		Body(body).
		Do(ctx).
		Into(stored)
	if err != nil {
		return nil, err
	}
	return stored, nil
}

// newScheme returns a scheme of the kinds that slicesvc uses, and of the options of their requests.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register the kinds of Kubernetes: %w", err)
		}
	}
	return scheme, nil
}

// newSerializer returns codecs that do not convert between versions.
func newSerializer(scheme *runtime.Scheme) runtime.NegotiatedSerializer {
	codecs := serializer.NewCodecFactory(scheme)
	return rest.CodecFactoryForGeneratedClient(scheme, codecs).WithoutConversion()
}

// newRESTClient returns a client of one API group.
func newRESTClient(cfg *rest.Config, group schema.GroupVersion, serializer runtime.NegotiatedSerializer) (rest.Interface, error) {
	own := rest.CopyConfig(cfg)
	own.APIPath = "/apis"
	if group.Group == "" {
		own.APIPath = "/api"
	}
	own.GroupVersion = &group
	own.DisableCompression = true
	own.NegotiatedSerializer = serializer
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("client of the kube-apiserver for %s: %w", group, err)
	}
	return client, nil
}
