package mirrorcontroller

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/trivet-dev/trivet/internal/wording"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/mirror"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// eventComponent is upstream's name of the source of these Events, by which users filter.
const eventComponent = "endpoint-slice-mirroring-controller"

// Reasons of Events. The first two are upstream's.
const (
	reasonInvalid      = "InvalidIPAddress"
	reasonTooMany      = "TooManyAddressesToMirror"
	reasonUpdateFailed = "FailedToUpdateEndpointSlices"
	reasonContended    = "EndpointSlicesContended"
	reasonMirrored     = "EndpointsMirrored"
)

// endpointsEvents records warnings about Endpoints objects. Its methods do not block and are safe
// for concurrent use.
type endpointsEvents struct{ *slicecontroller.EventRecorder }

// newEndpointsEvents accepts a nil sink. Then Start has no effect.
func newEndpointsEvents(sink record.EventSink) endpointsEvents {
	return endpointsEvents{slicecontroller.NewEventRecorder(sink, eventComponent, "Endpoints")}
}

func (e endpointsEvents) invalid(of *corev1.Endpoints, resolved mirror.Resolved) {
	e.record(of, reasonInvalid, fmt.Sprintf("%d addresses are no IP addresses and are not mirrored to EndpointSlices: %s",
		resolved.InvalidCount, wording.Clip(strings.Join(resolved.Invalid, ", "), maxQuoted)))
}

func (e endpointsEvents) tooMany(of *corev1.Endpoints, limit, dropped int) {
	e.record(of, reasonTooMany, fmt.Sprintf("%d addresses are not mirrored to EndpointSlices: at most %d addresses of a subset are, "+
		"unless slicesvc runs with --mirroring-spill", dropped, limit))
}

func (e endpointsEvents) mirrored(of *corev1.Endpoints, writer string) {
	e.record(of, reasonMirrored, fmt.Sprintf("Endpoints are deprecated and mirrored to EndpointSlices. "+
		"%q writes this object; it should write EndpointSlices", wording.Clip(writer, maxQuoted)))
}

func (e endpointsEvents) failed(of *corev1.Endpoints, cause error) {
	e.record(of, reasonUpdateFailed, "cannot update the EndpointSlices, will retry: "+wording.Clip(cause.Error(), maxQuoted))
}

func (e endpointsEvents) contended(of *corev1.Endpoints, writer string) {
	e.record(of, reasonContended, fmt.Sprintf("%q keeps reverting the mirrored EndpointSlices. Changes of endpoints are still written, others wait up to a minute. "+
		"If it is kube-controller-manager, disable its endpointslice-mirroring-controller", wording.Clip(writer, maxQuoted)))
}

// record records a warning.
func (e endpointsEvents) record(of *corev1.Endpoints, reason, message string) {
	e.Record(of, corev1.EventTypeWarning, reason, wording.Valid(message))
}

// maxQuoted bounds a text that comes from an object: kube-apiserver refuses longer Events.
const maxQuoted = 700
