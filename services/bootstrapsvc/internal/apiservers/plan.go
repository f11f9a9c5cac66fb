package apiservers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/change"
)

const (
	// NoServerReports: not one apiserver has a key. What is published stays.
	NoServerReports change.Reason = "NO_APISERVER_REPORTS"
	// NoServerReady: apiservers have keys, and none of them is ready and usable. What is published stays.
	NoServerReady change.Reason = "NO_APISERVER_READY"
	// FamilyMismatch: an apiserver's address is not of the Service's family. It is left out.
	FamilyMismatch change.Reason = "ADDRESS_FAMILY_MISMATCH"
	// FamilyUnknown: neither the Service nor the service range says which family to use. Nothing is written.
	FamilyUnknown change.Reason = "ADDRESS_FAMILY_UNKNOWN"
	// NotRoutable: an apiserver's address is a loopback, link-local, multicast or unspecified one. It is left out.
	NotRoutable change.Reason = "ADDRESS_NOT_ROUTABLE"
	// PortMismatch: an apiserver serves on another port than most. It is left out.
	PortMismatch change.Reason = "APISERVER_PORT_MISMATCH"
	// LastServerLeft: the last apiserver stops and takes its address out.
	LastServerLeft change.Reason = "LAST_APISERVER_LEFT"
)

const (
	serviceName = "kubernetes"
	portName    = "https"
)

// Server is a kube-apiserver as its key describes it.
type Server struct {
	Address netip.Addr
	Port    int32
	Ready   bool
}

// Want is what a plan is to follow.
type Want struct {
	// Family is the address type of the Service's ClusterIP; empty when nobody knows it.
	Family discoveryv1.AddressType
	// Leaving, if valid, is the address of the server that stops in good order and whose leader asks.
	Leaving netip.Addr
}

// Snapshot is what a plan is made from. All of it must have been read successfully: a failed read is not an empty one.
type Snapshot struct {
	Servers []Server
	// Endpoints is the object default/kubernetes, nil when there is none.
	Endpoints *corev1.Endpoints
	// Slices are all EndpointSlices of the Service in any order, whoever made them.
	Slices []*discoveryv1.EndpointSlice
}

// Plan is what follows from a snapshot.
type Plan struct {
	// Addresses are those of the usable ready servers, ordered.
	Addresses []netip.Addr
	Changes   []change.Change
}

// NewPlan decides what Endpoints and EndpointSlice must become.
func NewPlan(want Want, have Snapshot) Plan {
	foreign := reportForeign(have.Slices)
	if want.Family == "" {
		return Plan{Changes: append(foreign, report(FamilyUnknown,
			"the service default/kubernetes has no ClusterIP and the service range is unknown; set --service-cluster-ip-range"))}
	}
	roster := elect(want, have.Servers)
	plan := Plan{Addresses: roster.addresses, Changes: roster.reports}
	switch {
	case len(roster.addresses) > 0:
		plan.Changes = append(plan.Changes, planSlice(want.Family, roster, ownSlice(have.Slices))...)
		plan.Changes = append(plan.Changes, planEndpoints(roster, have.Endpoints)...)
	case want.Leaving.IsValid():
		plan.Changes = append(plan.Changes, withdraw(want.Leaving, have)...)
	case len(have.Servers) == 0:
		plan.Changes = append(plan.Changes, report(NoServerReports,
			"no kube-apiserver reports; the published addresses stay until one does"))
	default:
		plan.Changes = append(plan.Changes, report(NoServerReady, fmt.Sprintf(
			"none of %d reporting kube-apiservers can be used; the published addresses stay until one can", len(have.Servers))))
	}
	plan.Changes = append(plan.Changes, foreign...)
	return plan
}

// report is about the published endpoints as a whole: a server is no Kubernetes object.
func report(reason change.Reason, detail string) change.Change {
	return change.Change{
		Verb: change.Report,
		Object: &corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: serviceName, Namespace: metav1.NamespaceDefault},
		},
		Reason: reason,
		Detail: detail,
	}
}

func addressesText(addresses []string) string {
	if len(addresses) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(slices.Values(addresses)), ", ")
}
