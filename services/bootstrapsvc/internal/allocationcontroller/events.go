package allocationcontroller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// Upstream's names for the authors of these Events: people filter by them.
const (
	addressAuthor = "ipallocator-repair-controller"
	portAuthor    = "portallocator-repair-controller"
)

// recorders take Events while a term lasts.
type recorders struct{ addresses, ports record.EventRecorder }

// StartEvents sends Events until ctx ends or the function that it returns is called, which must be in the end.
func (h *Telemetry) StartEvents(ctx context.Context) (done func()) {
	if h.kube == nil {
		return func() {}
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: h.kube.CoreV1().Events("")})
	h.recorders.Store(&recorders{
		addresses: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: addressAuthor}),
		ports:     broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: portAuthor}),
	})
	return func() {
		h.recorders.Store(nil)
		broadcaster.Shutdown()
	}
}

// tell sends the Events of a finding: to the Services that it is about, and to the IPAddress object if that is wrong.
func (h *Telemetry) tell(finding allocation.Finding) {
	to := h.recorders.Load()
	if to == nil {
		return
	}
	recorder, reason := to.addresses, addressReason(finding.Code)
	if finding.Store == allocation.NodePorts {
		recorder, reason = to.ports, portReason(finding.Code)
	}
	if reason != "" {
		for _, owner := range concerned(finding) {
			recorder.Event(&corev1.ObjectReference{
				APIVersion: "v1", Kind: "Service", Namespace: owner.Namespace, Name: owner.Name, UID: types.UID(owner.UID),
			}, corev1.EventTypeWarning, reason, finding.Message)
		}
	}
	if reason := objectReason(finding.Code); reason != "" && finding.Store == allocation.IPAddresses {
		for _, evidence := range finding.Evidence {
			if evidence.IPAddress != nil {
				recorder.Event(addressReference(*evidence.IPAddress), corev1.EventTypeWarning, reason, finding.Message)
				return
			}
		}
	}
}

func addressReference(of allocation.IPAddressRef) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "IPAddress", Name: of.Name, UID: types.UID(of.UID),
		ResourceVersion: of.ResourceVersion,
	}
}

// concerned are the Services that have to do something, or for which something is done. Of a duplicate the rightful owner has
// nothing to do.
func concerned(finding allocation.Finding) []allocation.Owner {
	if finding.Code == allocation.DuplicateOwner && len(finding.Owners) > 0 {
		return finding.Owners[1:]
	}
	return finding.Owners
}

func addressReason(code allocation.Code) string {
	switch code {
	case allocation.NotAllocated, allocation.WrongReference:
		return "ClusterIPNotAllocated"
	case allocation.DuplicateOwner:
		return "ClusterIPAlreadyAllocated"
	case allocation.OutOfRange:
		return "ClusterIPOutOfRange"
	case allocation.Invalid:
		return "ClusterIPNotValid"
	default:
		return ""
	}
}

func portReason(code allocation.Code) string {
	switch code {
	case allocation.NotAllocated:
		return "PortNotAllocated"
	case allocation.DuplicateOwner:
		return "PortAlreadyAllocated"
	case allocation.OutOfRange:
		return "PortOutOfRange"
	default:
		return ""
	}
}

func objectReason(code allocation.Code) string {
	switch code {
	case allocation.Orphan, allocation.Leaked:
		return "IPAddressNotAllocated"
	case allocation.WrongReference:
		return "IPAddressWrongReference"
	default:
		return ""
	}
}
