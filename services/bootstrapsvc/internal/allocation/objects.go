package allocation

import (
	"fmt"
	"time"
)

// Key names a Service.
type Key struct{ Namespace, Name string }

// String is "namespace/name", fit to be shown even if it was damaged.
func (k Key) String() string { return clip(k.Namespace) + "/" + clip(k.Name) }

// ServiceType is a Service's spec.type.
type ServiceType string

// The types that matter here; every other value is treated as ClusterIP.
const (
	ClusterIP    ServiceType = "ClusterIP"
	ExternalName ServiceType = "ExternalName"
)

// Service is what matters of a Service, as it was read: nothing of it need be valid.
type Service struct {
	Key
	UID  string
	Type ServiceType
	// ClusterIPs are spec.clusterIPs as written, "None" included; where that list is empty, spec.clusterIP alone. An
	// empty text counts as absent.
	ClusterIPs []string
	// Ports are those with a node port, in the order of the spec.
	Ports []Port
	// HealthCheckNodePort is 0 where there is none.
	HealthCheckNodePort int32
	Created             time.Time
	// Deleting tells that it waits for finalizers. It uses what it has until it is gone.
	Deleting bool
}

// Port is a node port of a Service.
type Port struct {
	Number int32
	// Protocol is that of the spec; empty means TCP.
	Protocol string
}

// What the allocator writes into the labels of its IPAddress objects.
const (
	// AllocatorName is the value of ipaddress.kubernetes.io/managed-by.
	AllocatorName = "ipallocator.k8s.io"
	// FamilyIPv4 and FamilyIPv6 are the values of ipaddress.kubernetes.io/ip-family.
	FamilyIPv4 = "IPv4"
	FamilyIPv6 = "IPv6"
)

// IPAddress is what matters of an IPAddress object.
type IPAddress struct {
	// Name is the object's name, which should be an address in canonical form.
	Name            string
	UID             string
	ResourceVersion string
	Created         time.Time
	// Deleting tells that it waits for finalizers.
	Deleting bool
	// Parent is spec.parentRef; the zero Parent where there is none.
	Parent Parent
	// ManagedBy and Family are the values of its labels; empty where they are missing.
	ManagedBy, Family string
}

// Parent is a reference to the object in whose name an address is allocated.
type Parent struct{ Group, Resource, Namespace, Name string }

// IsService tells whether the parent is a Service of the core group.
func (p Parent) IsService() bool { return p.Group == "" && p.Resource == "services" && p.Name != "" }

// Key names the parent, if it is a Service.
func (p Parent) Key() Key { return Key{Namespace: p.Namespace, Name: p.Name} }

// String is "service namespace/name" of a Service, and names everything of something else.
func (p Parent) String() string {
	switch {
	case p == Parent{}:
		return "nobody"
	case p.IsService():
		return "service " + p.Key().String()
	default:
		return fmt.Sprintf("%q", clip(p.Resource+"."+p.Group+" "+p.Namespace+"/"+p.Name))
	}
}

// ServiceParent is the reference to a Service that the allocator writes.
func ServiceParent(k Key) Parent {
	return Parent{Resource: "services", Namespace: k.Namespace, Name: k.Name}
}

// CIDR is what matters of a ServiceCIDR.
type CIDR struct {
	Name string
	// Prefixes are spec.cidrs as written.
	Prefixes []string
	// Ready is the condition of that name. Addresses are given out of ready ones only; those of others still count as in
	// range, as upstream has it.
	Ready    bool
	Deleting bool
}

// Bitmap is a RangeAllocation as it was read from etcd.
type Bitmap struct {
	Store Store
	// Range is the stored text: "30000-32767", or a CIDR.
	Range string
	// Data is the stored value: bit i is Data[len-1-i/8]>>(i%8)&1. It is neither changed nor copied: do not write to it
	// afterwards.
	Data []byte
	// Revision is the modification revision of the key.
	Revision int64
	// Missing tells that there is no such key.
	Missing bool
	// Unverified says why it may be the range of another cluster; empty when it is this one's. Nothing is said of one in doubt, and
	// nothing is written.
	Unverified string
	// Problem says why the value cannot be read, or may not be rewritten; empty when it can.
	Problem string
}
