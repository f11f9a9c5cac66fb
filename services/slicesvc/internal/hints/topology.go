package hints

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Node has what mode Auto needs of a Node. Equal Nodes are ==.
type Node struct {
	// Zone is the topology.kubernetes.io/zone label; empty for none.
	Zone string
	// MilliCPU is the allocatable CPU in thousandths of a core.
	MilliCPU int64
	// Eligible tells that the Node is Ready and no control plane Node. Other Nodes are ignored.
	Eligible bool
}

// maxCPU is the upper bound of a Node's CPU, in cores.
const maxCPU = 100_000

// NodeOf returns what mode Auto needs of a Node.
func NodeOf(node *corev1.Node) Node {
	return Node{
		Zone:     node.Labels[corev1.LabelTopologyZone],
		MilliCPU: milliCPU(node.Status.Allocatable.Cpu()),
		Eligible: ready(node) && !controlPlane(node.Labels),
	}
}

func milliCPU(allocatable *resource.Quantity) int64 {
	if allocatable.CmpInt64(maxCPU) > 0 { // MilliValue may overflow
		return maxCPU * 1000
	}
	return max(allocatable.MilliValue(), 0)
}

func ready(node *corev1.Node) bool {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeReady {
			return node.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// controlPlane reports whether the labels are those of a control plane Node.
func controlPlane(labels map[string]string) bool {
	_, current := labels["node-role.kubernetes.io/control-plane"]
	_, former := labels["node-role.kubernetes.io/master"]
	return current || former
}

// Topology is the cluster's CPU by zone. The zero value is a cluster without Nodes. A Topology is
// not safe for concurrent use.
type Topology struct {
	zones map[string]capacity
	// nodes counts all eligible Nodes; leftOut counts those without a zone or CPU.
	nodes, leftOut int
}

type capacity struct {
	milliCPU int64
	nodes    int
}

// Add adds a Node.
func (t *Topology) Add(node Node) { t.count(node, 1) }

// Remove removes a Node, which must equal the added one.
func (t *Topology) Remove(node Node) { t.count(node, -1) }

func (t *Topology) count(node Node, n int) {
	if !node.Eligible {
		return
	}
	t.nodes += n
	if node.Zone == "" || node.MilliCPU <= 0 {
		t.leftOut += n
		return
	}
	if t.zones == nil {
		t.zones = map[string]capacity{}
	}
	zone := t.zones[node.Zone]
	zone.nodes += n
	zone.milliCPU += int64(n) * node.MilliCPU
	if zone.nodes == 0 {
		delete(t.zones, node.Zone)
		return
	}
	t.zones[node.Zone] = zone
}

// Shares are the zones' parts of the cluster's CPU at one moment. They never change. The zero value
// is a cluster without Nodes.
type Shares struct {
	// zones are ordered by name.
	zones []share
	total int64
	// nodes and leftOut are those of the Topology.
	nodes, leftOut int
}

type share struct {
	zone string
	cpu  int64
}

// maxTotal bounds the sum of all shares, so that no product overflows for ten million endpoints.
const maxTotal = 1 << 33

// Shares returns the current shares.
func (t *Topology) Shares() Shares {
	shares := Shares{leftOut: t.leftOut, nodes: t.nodes}
	var sum int64
	for zone, capacity := range t.zones {
		shares.zones = append(shares.zones, share{zone: zone, cpu: capacity.milliCPU})
		sum += capacity.milliCPU
	}
	slices.SortFunc(shares.zones, func(a, b share) int { return cmp.Compare(a.zone, b.zone) })
	scale := 1 + sum/maxTotal
	for i := range shares.zones {
		shares.zones[i].cpu = max(shares.zones[i].cpu/scale, 1)
		shares.total += shares.zones[i].cpu
	}
	return shares
}

// Equal reports whether Allocate returns the same for both.
func (s Shares) Equal(other Shares) bool {
	return s.leftOut == other.leftOut && s.nodes == other.nodes && slices.Equal(s.zones, other.zones)
}

// find returns the index of a zone; -1 for a zone without a share.
func (s Shares) find(zone string) int {
	i, ok := slices.BinarySearchFunc(s.zones, zone, func(s share, zone string) int { return cmp.Compare(s.zone, zone) })
	if !ok {
		return -1
	}
	return i
}

// minima returns for each zone how many of n endpoints it needs so that none of them is meant for
// more than percent of its even share; ok is false when the zones need more than n.
func (s Shares) minima(n int, percent int64) (minima []int, ok bool) {
	minima = make([]int, len(s.zones))
	sum := 0
	for i, zone := range s.zones {
		whole := percent * s.total
		minima[i] = int((100*zone.cpu*int64(n) + whole - 1) / whole)
		sum += minima[i]
	}
	return minima, sum <= n
}
