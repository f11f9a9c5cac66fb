package allocation

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/internal/wording"
)

// Store is a place where allocations are stored. The values are those of the API.
type Store uint8

const (
	// IPAddresses are the IPAddress objects of networking.k8s.io.
	IPAddresses Store = iota + 1
	// NodePorts is the bitmap of node ports in etcd.
	NodePorts
	// ClusterIPs is the bitmap of addresses in etcd from which Kubernetes 1.33 and earlier
	// allocates.
	ClusterIPs
	// SecondaryClusterIPs is the bitmap of the secondary IP family.
	SecondaryClusterIPs
)

// Stores returns all stores in their order.
func Stores() []Store { return []Store{IPAddresses, NodePorts, ClusterIPs, SecondaryClusterIPs} }

// String returns the store's name in the names of findings: "ip-addresses", "node-ports",
// "cluster-ips" or "secondary-cluster-ips".
func (s Store) String() string {
	return nameAt([]string{"ip-addresses", "node-ports", "cluster-ips", "secondary-cluster-ips"}, int(s)-1)
}

// IsBitmap reports whether the store is a bitmap in etcd.
func (s Store) IsBitmap() bool {
	return s == NodePorts || s == ClusterIPs || s == SecondaryClusterIPs
}

// Key names a Service.
type Key struct{ Namespace, Name string }

// String returns "namespace/name", shortened and valid UTF-8 even for a damaged key.
func (k Key) String() string {
	return wording.Clip(k.Namespace, maxValue) + "/" + wording.Clip(k.Name, maxValue)
}

// ServiceType is a Service's spec.type.
type ServiceType string

// The types that matter for allocation. Every other value is treated as ClusterIP.
const (
	ClusterIP    ServiceType = "ClusterIP"
	ExternalName ServiceType = "ExternalName"
)

// Service holds the fields of a Service that matter for allocation. No field needs to be valid.
type Service struct {
	Key
	UID  string
	Type ServiceType
	// ClusterIPs are spec.clusterIPs as written, "None" included. If that list is empty, it holds
	// spec.clusterIP. An empty element counts as absent.
	ClusterIPs []string
	// Ports are the ports with a node port, in the order of the spec.
	Ports []Port
	// HealthCheckNodePort is 0 if the Service has none.
	HealthCheckNodePort int32
	Created             time.Time
	// Deleting reports that the Service waits for finalizers. It uses its addresses and ports until
	// it is gone.
	Deleting bool
}

// Port is a node port of a Service.
type Port struct {
	Number int32
	// Protocol is the protocol of the spec. Empty means TCP.
	Protocol string
}

// The labels that the allocator writes into its IPAddress objects.
const (
	// AllocatorName is the value of ipaddress.kubernetes.io/managed-by.
	AllocatorName = "ipallocator.k8s.io"
	// FamilyIPv4 and FamilyIPv6 are the values of ipaddress.kubernetes.io/ip-family.
	FamilyIPv4 = "IPv4"
	FamilyIPv6 = "IPv6"
)

// IPAddress holds the fields of an IPAddress object that matter for allocation.
type IPAddress struct {
	// Name is the object's name, which should be an address in canonical form.
	Name            string
	UID             string
	ResourceVersion string
	Created         time.Time
	// Deleting reports that the object waits for Finalizers.
	Deleting   bool
	Finalizers []string `json:",omitempty"`
	// Parent is spec.parentRef. It is the zero Parent if the object has none.
	Parent Parent
	// ManagedBy and Family are the values of the object's labels, empty if absent.
	ManagedBy, Family string
}

// Parent is a reference to the object for which an address is allocated.
type Parent struct{ Group, Resource, Namespace, Name string }

// IsService reports whether the parent is a Service of the core group.
func (p Parent) IsService() bool { return p.Group == "" && p.Resource == "services" && p.Name != "" }

// Key returns the key of a parent that is a Service.
func (p Parent) Key() Key { return Key{Namespace: p.Namespace, Name: p.Name} }

// String returns "service namespace/name" for a Service, and all fields, quoted, for another
// object.
func (p Parent) String() string {
	switch {
	case p == Parent{}:
		return "nothing"
	case p.IsService():
		return "service " + p.Key().String()
	default:
		return fmt.Sprintf("%q", wording.Clip(p.Resource+"."+p.Group+" "+p.Namespace+"/"+p.Name, maxValue))
	}
}

// ServiceParent returns the reference that the allocator writes for a Service.
func ServiceParent(k Key) Parent {
	return Parent{Resource: "services", Namespace: k.Namespace, Name: k.Name}
}

// CIDR holds the fields of a ServiceCIDR that matter for allocation.
type CIDR struct {
	Name string
	// Prefixes are spec.cidrs as written.
	Prefixes []string
	// Ready reports whether kube-apiserver allocates from it. Addresses of other ServiceCIDRs count
	// as in range, as upstream does.
	Ready bool
}

// Bitmap is a RangeAllocation that was read from etcd.
type Bitmap struct {
	Store Store
	// Range is the stored text: "30000-32767", or a CIDR.
	Range string
	// Data is the stored bitmap: the bytes of a big-endian number. It is neither modified nor
	// copied; the caller must not write to it afterwards.
	Data []byte
	// Revision is the modification revision of the key.
	Revision int64
	// Missing reports that the key does not exist.
	Missing bool
	// Unverified says why the range may belong to another cluster. It is empty once the range is
	// known to belong to this one. An unverified range is neither compared nor written.
	Unverified string
	// Problem says why the value cannot be read or must not be rewritten. It is empty if it can.
	Problem string
}

// parseAddress accepts what kube-apiserver accepts: it ignores leading zeros of an IPv4 address,
// and reads an IPv4-mapped IPv6 address as an IPv4 address.
func parseAddress(text string) (netip.Addr, bool) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		address, err = netip.ParseAddr(withoutLeadingZeros(text))
	}
	if err != nil || address.Zone() != "" {
		return netip.Addr{}, false
	}
	return address.Unmap(), true
}

func withoutLeadingZeros(text string) string {
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return text
	}
	for i, part := range parts {
		trimmed := strings.TrimLeft(part, "0")
		if trimmed == "" && part != "" {
			trimmed = "0"
		}
		parts[i] = trimmed
	}
	return strings.Join(parts, ".")
}

// objectAddress returns the address of an IPAddress object, whose name must be the canonical form.
func objectAddress(name string) (netip.Addr, bool) {
	address, err := netip.ParseAddr(name)
	if err != nil || address.Zone() != "" || address.Is4In6() || address.String() != name {
		return netip.Addr{}, false
	}
	return address, true
}

func familyOf(address netip.Addr) string {
	if address.Is4() {
		return FamilyIPv4
	}
	return FamilyIPv6
}

// maxValue bounds a value that may be damaged, so that it cannot fill a message.
const maxValue = 80
