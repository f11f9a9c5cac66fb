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
	// NotRoutable: an apiserver's address is a loopback, link-local, multicast or unspecified one, or the Service's own.
	// It is left out.
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
	// ServiceIP is the Service's ClusterIP, whose family the endpoints must be of. The zero Addr when nobody knows it.
	ServiceIP netip.Addr
	// Leaving, if valid, is the address of the leader's own server, which stops in good order and whose key was deleted
	// before. A key found there nevertheless is that of its next life, and then nobody leaves.
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
	if !want.ServiceIP.IsValid() {
		return Plan{Changes: append(foreign, report(FamilyUnknown,
			"the service default/kubernetes has no ClusterIP and the service range is unknown; set --service-cluster-ip-range"))}
	}
	roster := elect(want.ServiceIP, have.Servers)
	plan := Plan{Addresses: roster.addresses, Changes: roster.reports}
	switch {
	case len(roster.addresses) > 0:
		plan.Changes = append(plan.Changes, planSlice(FamilyOf(want.ServiceIP), roster, ownSlice(have.Slices))...)
		plan.Changes = append(plan.Changes, planEndpoints(roster, have.Endpoints)...)
	case want.Leaving.IsValid() && !reports(have.Servers, want.Leaving):
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

func reports(servers []Server, address netip.Addr) bool {
	return slices.ContainsFunc(servers, func(server Server) bool { return server.Address == address })
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
