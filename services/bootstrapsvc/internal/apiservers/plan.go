package apiservers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

const (
	// NoServerReports: not one apiserver has a key. What is published stays.
	NoServerReports baseline.Reason = "NO_APISERVER_REPORTS"
	// NoServerReady: apiservers have keys, and none of them is ready and usable. What is published stays.
	NoServerReady baseline.Reason = "NO_APISERVER_READY"
	// StaticUnresolved: the name that is to be published leads to no address. What is published stays.
	StaticUnresolved baseline.Reason = "STATIC_ADDRESS_UNRESOLVED"
	// FamilyMismatch: an apiserver's address is not of the Service's family. It is left out.
	FamilyMismatch baseline.Reason = "ADDRESS_FAMILY_MISMATCH"
	// FamilyUnknown: neither the Service nor the service range says which family to use. Nothing is written.
	FamilyUnknown baseline.Reason = "ADDRESS_FAMILY_UNKNOWN"
	// NotRoutable: an apiserver's address is a loopback, link-local, multicast or unspecified one, or the Service's own.
	// It is left out.
	NotRoutable baseline.Reason = "ADDRESS_NOT_ROUTABLE"
	// PortMismatch: an apiserver serves on another port than most. It is left out.
	PortMismatch baseline.Reason = "APISERVER_PORT_MISMATCH"
	// Kept: an apiserver that is not ready stays an endpoint, because of the floor or of the count.
	Kept baseline.Reason = "APISERVER_KEPT"
	// CountExceeded: more apiservers are ready than there are to be. All are published.
	CountExceeded baseline.Reason = "APISERVER_COUNT_EXCEEDED"
	// LastServerLeft: the last apiserver stops and takes its address out.
	LastServerLeft baseline.Reason = "LAST_APISERVER_LEFT"
	// LastServerKept: the last apiserver stops, and its address stays because it was told to.
	LastServerKept baseline.Reason = "LAST_APISERVER_KEPT"
)

const (
	serviceName = "kubernetes"
	portName    = "https"
)

// Server is a kube-apiserver under one address, as its key describes it. One with an address of each family is two of them.
type Server struct {
	Address netip.Addr
	Port    int32
	Ready   bool
	// Left says that it stopped in good order. It is then not ready.
	Left bool
	// Stale says that its key may have outlived it, so that nothing shows that it lives. It is then not ready.
	Stale bool
	// Detail says for people why it is not ready.
	Detail string
}

// Port is a port that every server serves beside its own.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Port     int32
}

// Want is what a plan is to follow.
type Want struct {
	Policy
	// ServiceIP is the Service's ClusterIP, whose family the endpoints must be of. The zero Addr when nobody knows it.
	ServiceIP netip.Addr
	// DualStack asks for a second slice, of the other family.
	DualStack bool
	// ExtraPorts stand behind the servers' own, in their order.
	ExtraPorts []Port
	// Leaving are the addresses of the leader's own server, which stops in good order and whose key was deleted
	// before. A key found there nevertheless is that of its next life, and then nobody leaves.
	Leaving []netip.Addr
	// Unresolved says why a Static policy was given no server.
	Unresolved string
}

// Snapshot is what a plan is made from. All of it must have been read successfully: a failed read is not an empty one.
type Snapshot struct {
	Servers []Server
	// Endpoints is the object default/kubernetes, nil when there is none.
	Endpoints *corev1.Endpoints
	// Slices are all EndpointSlices of the Service and those that have one of SliceNames, in any order, whoever made them.
	Slices []*discoveryv1.EndpointSlice
}

// Plan is what follows from a snapshot.
type Plan struct {
	// Addresses are those that endpoints should hold, ordered; none where what is published stays as it is.
	Addresses []netip.Addr
	// Statuses has every server once, ordered by address.
	Statuses []ServerStatus
	Changes  []baseline.Change
}

// NewPlan decides what Endpoints and EndpointSlices must become.
func NewPlan(want Want, have Snapshot) Plan {
	if want.Kind == Untouched {
		return Plan{Statuses: statuses(have, "endpoints are left to others")}
	}
	foreign := reportForeign(want, have.Slices)
	if !want.ServiceIP.IsValid() {
		return Plan{
			Statuses: statuses(have, "the family of the service default/kubernetes is not known"),
			Changes: append(foreign, report(FamilyUnknown,
				"the service default/kubernetes has no ClusterIP and the service range is unknown; set --service-cluster-ip-range")),
		}
	}
	family := FamilyOf(want.ServiceIP)
	primary := elect(want, family, have)
	if len(primary.addresses) == 0 {
		return Plan{
			Statuses: primary.statuses(have, "no kube-apiserver is ready, so what is published stays"),
			Changes:  slices.Concat(primary.reports, stay(want, have), foreign),
		}
	}
	plan := Plan{Addresses: primary.addresses, Changes: primary.reports}
	plan.Changes = append(plan.Changes, planSlice(serviceName, primary, have.Slices)...)
	why := primary.why
	if want.DualStack {
		secondary := elect(want, otherThan(family), have)
		plan.Addresses = slices.Concat(plan.Addresses, secondary.addresses)
		plan.Changes = append(plan.Changes, secondary.reports...)
		plan.Changes = append(plan.Changes, planSecond(want, secondary, have)...)
		why = joined(why, secondary.why)
	}
	plan.Changes = append(plan.Changes, planUnwanted(want, have.Slices)...)
	plan.Changes = append(plan.Changes, planEndpoints(primary, have.Endpoints)...)
	plan.Changes = append(plan.Changes, foreign...)
	both := roster{addresses: plan.Addresses, why: why}
	plan.Statuses = both.statuses(have, "")
	return plan
}

// planSecond plans the slice of the second family. Where nobody of it is ready, only who leaves is taken out.
func planSecond(want Want, elected roster, have Snapshot) []baseline.Change {
	if len(elected.addresses) > 0 {
		return planSlice(want.secondSlice(), elected, have.Slices)
	}
	second := named(have.Slices, want.secondSlice())
	if second == nil {
		return nil
	}
	return part(want, Snapshot{Servers: have.Servers, Slices: []*discoveryv1.EndpointSlice{second}})
}

// part takes those who leave out of what is published, or reports that the last one stays.
func part(want Want, have Snapshot) []baseline.Change {
	parting := withdraw(leaving(want, have.Servers), have)
	if len(parting) > 0 && want.KeepLast {
		return []baseline.Change{report(LastServerKept, "the last kube-apiserver stops; its address stays, because --keep-last-address is set")}
	}
	return parting
}

// stay is what happens when nobody can be published: nothing, unless the last server stops in good order.
func stay(want Want, have Snapshot) []baseline.Change {
	parting := part(want, have)
	reporting := len(have.Servers)
	switch {
	case want.Kind == Static && reporting == 0:
		return []baseline.Change{report(StaticUnresolved, want.Unresolved+"; the published addresses stay until it does")}
	case len(parting) > 0, len(want.Leaving) > 0 && len(leaving(want, have.Servers)) > 0:
		return parting
	case reporting == 0:
		return []baseline.Change{report(NoServerReports,
			"no kube-apiserver reports; the published addresses stay until one does")}
	default:
		return []baseline.Change{report(NoServerReady, fmt.Sprintf(
			"none of %d reporting kube-apiservers can be used; the published addresses stay until one can", reporting))}
	}
}

// leaving are the addresses of servers that stopped in good order and of which nothing was heard since. A static address is
// nobody's who could.
func leaving(want Want, servers []Server) []netip.Addr {
	if want.Kind == Static {
		return nil
	}
	left := slices.Clone(want.Leaving)
	for _, server := range servers {
		if server.Left {
			left = append(left, server.Address)
		}
	}
	reports := func(address netip.Addr) bool {
		return slices.ContainsFunc(servers, func(server Server) bool { return server.Address == address && !server.Left && !server.Stale })
	}
	if slices.ContainsFunc(want.Leaving, reports) {
		return nil
	}
	left = slices.DeleteFunc(left, reports)
	slices.SortFunc(left, netip.Addr.Compare)
	return slices.Compact(left)
}

// report is about the published endpoints as a whole: a server is no Kubernetes object.
func report(reason baseline.Reason, detail string) baseline.Change {
	return baseline.Change{
		Verb: baseline.Report,
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
