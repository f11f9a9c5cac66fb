package apiservers

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/baseline"
)

const (
	// NoServerReports: no apiserver has a key. The published addresses stay.
	NoServerReports baseline.Reason = "NO_APISERVER_REPORTS"
	// NoServerReady: apiservers have keys, and none of them is ready and usable. The published
	// addresses stay.
	NoServerReady baseline.Reason = "NO_APISERVER_READY"
	// StaticUnresolved: the static name does not resolve. The published addresses stay.
	StaticUnresolved baseline.Reason = "STATIC_ADDRESS_UNRESOLVED"
	// FamilyMismatch: an apiserver's address is not of the Service's family. It is left out.
	FamilyMismatch baseline.Reason = "ADDRESS_FAMILY_MISMATCH"
	// FamilyUnknown: neither the Service nor the service range gives the family. Nothing is
	// written.
	FamilyUnknown baseline.Reason = "ADDRESS_FAMILY_UNKNOWN"
	// NotRoutable: an apiserver's address is a loopback, link-local, multicast or unspecified one,
	// or the Service's own. It is left out.
	NotRoutable baseline.Reason = "ADDRESS_NOT_ROUTABLE"
	// PortMismatch: an apiserver listens on another port than most. It is left out.
	PortMismatch baseline.Reason = "APISERVER_PORT_MISMATCH"
	// Kept: an apiserver that is not ready, or whose state is unknown, stays an endpoint. The floor
	// or the count keeps it, or it has no key and its probes do not fail.
	Kept baseline.Reason = "APISERVER_KEPT"
	// CountExceeded: more apiservers are ready than the count. All are published.
	CountExceeded baseline.Reason = "APISERVER_COUNT_EXCEEDED"
	// LastServerLeft: the last apiserver stops and its address is removed.
	LastServerLeft baseline.Reason = "LAST_APISERVER_LEFT"
	// LastServerKept: the last apiserver stops and its address stays, because Policy.KeepLast is
	// set.
	LastServerKept baseline.Reason = "LAST_APISERVER_KEPT"
)

// Reasons of a [ServerStatus] beside those of reports.
const (
	// Ready: the server is ready, and an endpoint.
	Ready baseline.Reason = "READY"
	// NotReady: the server is not ready, and no endpoint.
	NotReady baseline.Reason = "NOT_READY"
	// Unmanaged: no endpoints are written.
	Unmanaged baseline.Reason = "ENDPOINTS_UNMANAGED"
)

// Kind is how the addresses are selected.
type Kind int

const (
	// Live publishes the ready servers.
	Live Kind = iota
	// Counted publishes the ready servers. Other published servers stay until there are more than
	// Policy.Count.
	Counted
	// Static publishes the given addresses.
	Static
	// Untouched writes nothing.
	Untouched
)

// String is the name of the kind in --endpoint-reconciler-type.
func (k Kind) String() string {
	switch k {
	case Live:
		return "lease"
	case Counted:
		return "count"
	case Static:
		return "static"
	case Untouched:
		return "none"
	default:
		return fmt.Sprintf("kind %d", int(k))
	}
}

// Policy says which servers are published beside the ready ones, and when.
type Policy struct {
	Kind Kind
	// Count is how many addresses Counted keeps at most. Ready servers are published even beyond
	// it.
	Count int
	// MinReady is the floor: published servers that are not ready stay up to this number of
	// addresses, first those that report. 0 and 1 are the same, because the last address always
	// stays.
	MinReady int
	// KeepLast keeps the last server's address published when the server stops in good order.
	KeepLast bool
}

// Server is a kube-apiserver under one address, as its key describes it. A server with an address
// of each family is two of them.
type Server struct {
	Address netip.Addr
	Port    int32
	Ready   bool
	// Left says that it stopped in good order. It is then not ready.
	Left bool
	// Stale says that its key may have outlived it. It is then not ready.
	Stale bool
	// Detail says for operators why it is not ready.
	Detail string
}

// Port is a port on which every server listens beside its own.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Port     int32
}

// Want is what a plan is to achieve.
type Want struct {
	Policy

	// ServiceIP is the Service's ClusterIP, which gives the family. The zero Addr means that it is
	// unknown.
	ServiceIP netip.Addr
	// DualStack asks for a second slice, of the other family.
	DualStack bool
	// ExtraPorts follow the servers' own port, in their order.
	ExtraPorts []Port
	// Leaving are the addresses of the leader's own server, which stops in good order and whose key
	// was deleted. If a key exists nevertheless, a new sidecar wrote it, and no address leaves.
	Leaving []netip.Addr
	// Unresolved says why a Static policy has no server.
	Unresolved string
}

// Snapshot is what a plan is made from. A failed read is not an empty one: nothing is planned for
// what is marked as unread.
type Snapshot struct {
	Servers []Server
	// Endpoints is the object default/kubernetes, nil if it does not exist.
	Endpoints *corev1.Endpoints
	// Slices are all EndpointSlices of the Service and those with one of SliceNames, in any order.
	Slices []*discoveryv1.EndpointSlice
	// EndpointsUnread and SlicesUnread say that the object or the slices could not be read.
	EndpointsUnread, SlicesUnread bool
	// Unreported are published addresses without a key that may be servers.
	Unreported []Unreported
}

// Unreported is a published address without a key. Its server may live: the key or its sidecar may
// be lost, or the sidecar may not be installed yet.
type Unreported struct {
	Address netip.Addr
	// Failed says that its probes failed.
	Failed bool
	// Detail says for operators what is known of it.
	Detail string
}

// Published returns the published addresses, in the Endpoints object and in managed slices,
// ordered.
func (s Snapshot) Published() []netip.Addr {
	texts := PublishedInEndpoints(s.Endpoints)
	for _, slice := range s.Slices {
		if isManaged(slice) {
			texts = append(texts, publishedIn(slice)...)
		}
	}
	var published []netip.Addr
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			published = append(published, address.Unmap())
		}
	}
	slices.SortFunc(published, netip.Addr.Compare)
	return slices.Compact(published)
}

// Plan is what follows from a snapshot.
type Plan struct {
	// Addresses are the desired endpoints, ordered; empty if the published addresses stay.
	Addresses []netip.Addr
	// Statuses has every server once, ordered by address.
	Statuses []ServerStatus
	Changes  []baseline.Change
}

// ServerStatus says whether one server is an endpoint.
type ServerStatus struct {
	Address netip.Addr
	// Wanted says that it is a desired endpoint, Published that it is an endpoint now.
	Wanted, Published bool
	// Reason is the code of why it is wanted or not: that of a report, or Ready, NotReady or
	// Unmanaged.
	Reason baseline.Reason
	// Why says the same for operators.
	Why string
}

// FamilyOf is the address type of a slice for an address.
func FamilyOf(address netip.Addr) discoveryv1.AddressType {
	if address.Unmap().Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

func otherFamily(family discoveryv1.AddressType) discoveryv1.AddressType {
	if family == discoveryv1.AddressTypeIPv4 {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

// report is about the Endpoints object: a server is no Kubernetes object.
func report(reason baseline.Reason, detail string) baseline.Change {
	return baseline.Change{
		Verb: planned.Report,
		Object: &corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: baseline.ServiceName, Namespace: metav1.NamespaceDefault},
		},
		Reason: reason,
		Detail: detail,
	}
}
