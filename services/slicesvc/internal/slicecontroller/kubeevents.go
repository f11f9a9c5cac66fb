package slicecontroller

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

// component is upstream's name for the author of these Events: people filter by it.
const component = "endpoint-slice-controller"

// The reasons of Events; but for the last they are upstream's. Its FailedToListPods
// has no counterpart: what pods a Service has is always known.
const (
	updateFailed  = "FailedToUpdateEndpointSlices"
	listFailed    = "FailedToListEndpointSlices"
	hintsEnabled  = "TopologyAwareHintsEnabled"
	hintsDisabled = "TopologyAwareHintsDisabled"
	// Contended tells of a second controller at work on the same slices.
	eventContended = "EndpointSlicesContended"
)

// remembered bounds what is known of Services' hints; beyond it, it is forgotten,
// and an Event may come twice.
const remembered = 10_000

// Events tells people what happens to the slices of their Services.
type Events struct {
	sink record.EventSink

	mu sync.Mutex // guards all below
	// recorder takes Events while Run is running; nil otherwise, when there are none.
	recorder record.EventRecorder
	told     map[family]string
}

// family is one address family of one Service.
type family struct {
	service     types.UID
	addressType discoveryv1.AddressType
}

// enabled is what is remembered of a family with hints; of one without, it is the problem.
const enabled = ""

// NewEvents returns Events that Run sends to sink; it starts nothing.
func NewEvents(sink record.EventSink) *Events {
	return &Events{sink: sink, told: map[family]string{}}
}

// Run sends Events until ctx ends; what is not sent by then is lost.
func (e *Events) Run(ctx context.Context) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(e.sink)
	defer broadcaster.Shutdown()
	kinds := runtime.NewScheme() // an ObjectReference, which is all that is told of, says its kind itself
	e.use(broadcaster.NewRecorder(kinds, corev1.EventSource{Component: component}))
	<-ctx.Done()
	e.use(nil)
	return nil
}

func (e *Events) use(recorder record.EventRecorder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recorder = recorder
}

// Passed tells of a pass that failed and of hints that come and go. A slice that
// was not as planned from is no failure: the next pass, at once, knows better. Nor
// is a kube-apiserver that has too much to do one of the Service, and an Event
// would be one thing more.
func (e *Events) Passed(pass Pass) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.recorder == nil:
	case errors.Is(pass.Err, kube.ErrConflict), throttled(pass.Err):
	case errors.Is(pass.Err, ErrUnread):
		e.send(pass.Service, corev1.EventTypeWarning, listFailed, fmt.Sprintf("cannot read the EndpointSlices, will be tried again: %v", pass.Err))
	case pass.Err != nil:
		e.send(pass.Service, corev1.EventTypeWarning, updateFailed, fmt.Sprintf("cannot update the EndpointSlices, will be tried again: %v", pass.Err))
	case hints.ModeOf(pass.Service) == hints.Auto:
		for _, verdict := range pass.Topology {
			e.hinted(pass.Service, verdict.AddressType, verdict.Verdict)
		}
	default:
		e.unwanted(pass.Service)
	}
}

func throttled(err error) bool {
	_, asked := kube.RetryAfter(err)
	return asked
}

// hinted tells what became of the hints of a family, if it was told otherwise
// before. It needs e.mu.
func (e *Events) hinted(service *corev1.Service, addressType discoveryv1.AddressType, verdict hints.Verdict) {
	key := family{service: service.UID, addressType: addressType}
	before, ok := e.told[key]
	if ok && before == verdict.Problem {
		return
	}
	if len(e.told) >= remembered {
		clear(e.told)
	}
	e.told[key] = verdict.Problem
	if verdict.Problem == enabled {
		e.send(service, corev1.EventTypeNormal, hintsEnabled, fmt.Sprintf("endpoints have hints (%s)", addressType))
		return
	}
	e.send(service, corev1.EventTypeWarning, hintsDisabled, fmt.Sprintf("endpoints have no hints (%s): %s", addressType, verdict.Problem))
}

// unwanted tells that a Service which had hints does not want them any more. It needs e.mu.
func (e *Events) unwanted(service *corev1.Service) {
	for _, addressType := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		key := family{service: service.UID, addressType: addressType}
		before, ok := e.told[key]
		delete(e.told, key)
		if ok && before == enabled {
			e.send(service, corev1.EventTypeNormal, hintsDisabled, fmt.Sprintf("endpoints have no hints any more (%s): the Service asks for none", addressType))
		}
	}
}

// Contended tells that somebody else keeps undoing our writes.
func (e *Events) Contended(service *corev1.Service, by string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorder != nil {
		e.send(service, corev1.EventTypeWarning, eventContended, fmt.Sprintf("%q keeps changing the EndpointSlices back; but for missing endpoints they are left alone for a while. "+
			"If it is kube-controller-manager, switch its endpointslice-controller off", by))
	}
}

// send needs e.mu and a recorder.
func (e *Events) send(service *corev1.Service, kind, reason, text string) {
	e.recorder.Event(&corev1.ObjectReference{
		APIVersion:      "v1",
		Kind:            "Service",
		Namespace:       service.Namespace,
		Name:            service.Name,
		UID:             service.UID,
		ResourceVersion: service.ResourceVersion,
	}, kind, reason, text)
}
