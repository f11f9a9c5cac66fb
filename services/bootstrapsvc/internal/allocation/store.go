package allocation

// Store is a place where allocations are kept. The values are those of the API.
type Store uint8

const (
	// IPAddresses are the IPAddress objects of networking.k8s.io.
	IPAddresses Store = iota + 1
	// NodePorts is the bitmap of node ports in etcd.
	NodePorts
	// ClusterIPs is the bitmap of addresses in etcd that clusters up to 1.33 allocate from.
	ClusterIPs
	// SecondaryClusterIPs is the same of the secondary family.
	SecondaryClusterIPs
)

// Stores are all stores, in their order.
func Stores() []Store { return []Store{IPAddresses, NodePorts, ClusterIPs, SecondaryClusterIPs} }

// String is the store's name in the names of findings: "ip-addresses", "node-ports", "cluster-ips" or
// "secondary-cluster-ips".
func (s Store) String() string {
	switch s {
	case IPAddresses:
		return "ip-addresses"
	case NodePorts:
		return "node-ports"
	case ClusterIPs:
		return "cluster-ips"
	case SecondaryClusterIPs:
		return "secondary-cluster-ips"
	default:
		return "unknown"
	}
}

// IsBitmap tells whether the store is a bitmap.
func (s Store) IsBitmap() bool { return s == NodePorts || s == ClusterIPs || s == SecondaryClusterIPs }
