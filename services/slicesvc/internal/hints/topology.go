package hints

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Node is what of a node counts for Auto. Equal nodes are ==.
type Node struct {
	// Zone is the topology.kubernetes.io/zone label; empty for none.
	Zone string
	// MilliCPU is the allocatable CPU in thousandths of a core.
	MilliCPU int64
	// Counts says that the node is Ready and no control plane node; the others are not looked at.
	Counts bool
}

// maxCPU, in cores, is more than any node has. A node that says more is taken to have that much.
const maxCPU = 100_000

// NodeOf reads a node.
func NodeOf(node *corev1.Node) Node {
	return Node{
		Zone:     node.Labels[corev1.LabelTopologyZone],
		MilliCPU: milliCPU(node.Status.Allocatable.Cpu()),
		Counts:   ready(node) && !controlPlane(node.Labels),
	}
}

func milliCPU(allocatable *resource.Quantity) int64 {
	if allocatable.CmpInt64(maxCPU) > 0 { // thousandths of it may be more than an int64 can say
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

// controlPlane reports whether the node is one that serves no workload.
func controlPlane(labels map[string]string) bool {
	_, current := labels["node-role.kubernetes.io/control-plane"]
	_, former := labels["node-role.kubernetes.io/master"]
	return current || former
}

// Topology is the cluster's capacity by zone, kept up to date node by node. The
// zero value is a cluster without nodes. It is not safe for concurrent use;
// what Shares returns is.
type Topology struct {
	zones map[string]capacity
	// silent counts nodes that have no zone or no CPU; nodes counts all of them.
	silent, nodes int
}

type capacity struct {
	milliCPU int64
	nodes    int
}

// Add takes a node in.
func (t *Topology) Add(node Node) { t.count(node, 1) }

// Remove takes out a node exactly as it was added.
func (t *Topology) Remove(node Node) { t.count(node, -1) }

func (t *Topology) count(node Node, n int) {
	if !node.Counts {
		return
	}
	t.nodes += n
	if node.Zone == "" || node.MilliCPU <= 0 {
		t.silent += n
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

// Shares are the zones' parts of the cluster's CPU at one moment. They are never
// changed. The zero value is a cluster of which nothing is known.
type Shares struct {
	// zones are ordered by name.
	zones         []share
	total         int64
	silent, nodes int
}

type share struct {
	zone string
	cpu  int64
}

// maxTotal keeps every product of the allocation within 63 bits, for up to ten million endpoints.
const maxTotal = 1 << 33

// Shares returns the parts as they are now.
func (t *Topology) Shares() Shares {
	shares := Shares{silent: t.silent, nodes: t.nodes}
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

// Equal reports whether no Service can be told anything else by other than by s.
func (s Shares) Equal(other Shares) bool {
	return s.silent == other.silent && s.nodes == other.nodes && slices.Equal(s.zones, other.zones)
}

// find gives the index of a zone; -1 for one without a share.
func (s Shares) find(zone string) int {
	i, ok := slices.BinarySearchFunc(s.zones, zone, func(s share, zone string) int { return cmp.Compare(s.zone, zone) })
	if !ok {
		return -1
	}
	return i
}

// minima gives for each zone how many of n endpoints it needs so that none of
// them is meant for more than percent of its even share; ok is false when that
// is more than there are.
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
