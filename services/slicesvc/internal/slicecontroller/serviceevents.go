package slicecontroller

import (
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// eventComponent is upstream's name of the source of these Events, by which users filter.
const eventComponent = "endpoint-slice-controller"

// Reasons of Events. All but the last are upstream's. Upstream's FailedToListPods does not occur:
// the Pods of a Service are always in the cache.
const (
	reasonUpdateFailed  = "FailedToUpdateEndpointSlices"
	reasonListFailed    = "FailedToListEndpointSlices"
	reasonHintsEnabled  = "TopologyAwareHintsEnabled"
	reasonHintsDisabled = "TopologyAwareHintsDisabled"
	reasonContended     = "EndpointSlicesContended"
)

// maxHintStates bounds the memory of published hints. Beyond it the memory is cleared, and an Event
// may be repeated.
const maxHintStates = 10_000

// serviceEvents records Events of Services, with upstream's names. An Event is recorded only if
// something changed. Its methods do not block and are safe for concurrent use.
type serviceEvents struct {
	*EventRecorder

	hintMu sync.Mutex // guards hintStates
	// hintStates has the last published problem of each family, hintsEnabled if it has hints.
	hintStates map[serviceFamily]string
}

// serviceFamily is one address family of a Service.
type serviceFamily struct {
	service     types.UID
	addressType discoveryv1.AddressType
}

const hintsEnabled = ""

// newServiceEvents accepts a nil sink. Then Start has no effect.
func newServiceEvents(sink record.EventSink) *serviceEvents {
	return &serviceEvents{EventRecorder: NewEventRecorder(sink, eventComponent, "Service"), hintStates: map[serviceFamily]string{}}
}

// syncFinished records a failed sync, or hints that come or go. A conflict is no failure, because
// the next sync follows at once. While kube-apiserver throttles, an Event would add to its load.
func (e *serviceEvents) syncFinished(service *corev1.Service, topology []pack.FamilyHints, err error) {
	e.hintMu.Lock()
	defer e.hintMu.Unlock()
	_, throttled := kube.RetryAfter(err)
	switch {
	case !e.recording():
	case errors.Is(err, kube.ErrConflict), throttled:
	case errors.Is(err, ErrSlicesUnread):
		e.Record(service, corev1.EventTypeWarning, reasonListFailed, fmt.Sprintf("cannot read the EndpointSlices, will retry: %v", err))
	case err != nil:
		e.Record(service, corev1.EventTypeWarning, reasonUpdateFailed, fmt.Sprintf("cannot update the EndpointSlices, will retry: %v", err))
	case hints.ModeOf(service) == hints.Auto:
		for _, family := range topology {
			e.hintsPlanned(service, family)
		}
	default:
		e.hintsUnwanted(service)
	}
}

// hintsPlanned needs e.hintMu. It records a change of the hints of a family.
func (e *serviceEvents) hintsPlanned(service *corev1.Service, planned pack.FamilyHints) {
	family := serviceFamily{service: service.UID, addressType: planned.AddressType}
	before, ok := e.hintStates[family]
	if ok && before == planned.Problem {
		return
	}
	if len(e.hintStates) >= maxHintStates {
		clear(e.hintStates)
	}
	e.hintStates[family] = planned.Problem
	if planned.Problem == hintsEnabled {
		e.Record(service, corev1.EventTypeNormal, reasonHintsEnabled, fmt.Sprintf("endpoints have hints (%s)", family.addressType))
		return
	}
	e.Record(service, corev1.EventTypeWarning, reasonHintsDisabled, fmt.Sprintf("endpoints have no hints (%s): %s", family.addressType, planned.Problem))
}

// hintsUnwanted needs e.hintMu. It records that a Service with hints no longer asks for them.
func (e *serviceEvents) hintsUnwanted(service *corev1.Service) {
	for _, addressType := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		family := serviceFamily{service: service.UID, addressType: addressType}
		before, ok := e.hintStates[family]
		delete(e.hintStates, family)
		if ok && before == hintsEnabled {
			e.Record(service, corev1.EventTypeNormal, reasonHintsDisabled, fmt.Sprintf("endpoints no longer have hints (%s): the Service asks for none", addressType))
		}
	}
}

// contended records that another writer keeps reverting the slices of a Service.
func (e *serviceEvents) contended(service *corev1.Service, writer string) {
	e.Record(service, corev1.EventTypeWarning, reasonContended, fmt.Sprintf("%q keeps reverting the EndpointSlices. Changes of endpoints are still written, others wait up to a minute. "+
		"If it is kube-controller-manager, disable its endpointslice-controller", writer))
}
