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

// The sources of the Events, as kube-apiserver names them: people filter by them.
const (
	addressSource = "ipallocator-repair-controller"
	portSource    = "portallocator-repair-controller"
)

// recorders send Events while a term lasts.
type recorders struct{ addresses, ports record.EventRecorder }

// StartEvents sends Events until ctx ends or the caller calls stop, which it must do once.
func (t *Telemetry) StartEvents(ctx context.Context) (stop func()) {
	if t.kube == nil {
		return func() {}
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: t.kube.CoreV1().Events("")})
	t.recorders.Store(&recorders{
		addresses: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: addressSource}),
		ports:     broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: portSource}),
	})
	return func() {
		t.recorders.Store(nil)
		broadcaster.Shutdown()
	}
}

// sendEvents sends the Events of a finding, about its Services, and about the IPAddress object if
// that is wrong.
func (t *Telemetry) sendEvents(finding allocation.Finding) {
	to := t.recorders.Load()
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

// concerned returns the Services that the finding affects. The rightful owner of a duplicate is not
// affected.
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
