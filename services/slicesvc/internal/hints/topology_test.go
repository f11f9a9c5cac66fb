package hints_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// sharesOf returns the shares of a cluster with one Node for each zone.
func sharesOf(cpuByZone map[string]int64) hints.Shares {
	var topology hints.Topology
	for zone, cpu := range cpuByZone {
		topology.Add(hints.Node{Zone: zone, MilliCPU: cpu, Eligible: true})
	}
	return topology.Shares()
}

func TestNodeOf(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   hints.Node
	}{
		"ready":         {want: hints.Node{Zone: "zone-a", MilliCPU: 1500, Eligible: true}},
		"not ready":     {change: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, want: hints.Node{Zone: "zone-a", MilliCPU: 1500}},
		"unknown":       {change: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, want: hints.Node{Zone: "zone-a", MilliCPU: 1500}},
		"no condition":  {change: func(n *corev1.Node) { n.Status.Conditions = nil }, want: hints.Node{Zone: "zone-a", MilliCPU: 1500}},
		"control plane": {change: func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }, want: hints.Node{Zone: "zone-a", MilliCPU: 1500}},
		"master":        {change: func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/master"] = "x" }, want: hints.Node{Zone: "zone-a", MilliCPU: 1500}},
		"no zone":       {change: func(n *corev1.Node) { n.Labels = nil }, want: hints.Node{MilliCPU: 1500, Eligible: true}},
		"no CPU":        {change: func(n *corev1.Node) { n.Status.Allocatable = nil }, want: hints.Node{Zone: "zone-a", Eligible: true}},
		"negative CPU":  {change: setCPU("-3"), want: hints.Node{Zone: "zone-a", Eligible: true}},
		"absurd CPU":    {change: setCPU("9000000P"), want: hints.Node{Zone: "zone-a", MilliCPU: 100_000_000, Eligible: true}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{}
			node.Labels = map[string]string{corev1.LabelTopologyZone: "zone-a"}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			setCPU("1500m")(node)
			if c.change != nil {
				c.change(node)
			}
			if got := hints.NodeOf(node); got != c.want {
				t.Errorf("node is %+v, want %+v", got, c.want)
			}
		})
	}
}

func setCPU(quantity string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}
	}
}

// The clusters are those of upstream's tests, except for the Nodes that are left out. The verdict
// is that for eight endpoints.
func TestShares_ClustersThatCanHaveHints(t *testing.T) {
	node := func(zone string, cpu int64) hints.Node { return hints.Node{Zone: zone, MilliCPU: cpu, Eligible: true} }
	uncounted := func(zone string) hints.Node { return hints.Node{Zone: zone, MilliCPU: 1000} }
	for name, c := range map[string]struct {
		nodes []hints.Node
		want  hints.Verdict
	}{
		"no node":              {want: hints.Verdict{Problem: "no node is ready"}},
		"one node":             {nodes: []hints.Node{node("a", 1000)}, want: hints.Verdict{Problem: "nodes are ready in one zone only, a"}},
		"one zone":             {nodes: []hints.Node{node("a", 1000), node("a", 1000)}, want: hints.Verdict{Problem: "nodes are ready in one zone only, a"}},
		"two zones":            {nodes: []hints.Node{node("a", 1000), node("b", 1000)}, want: hints.Verdict{Hinted: true}},
		"the other unready":    {nodes: []hints.Node{uncounted("a"), node("b", 1000)}, want: hints.Verdict{Problem: "nodes are ready in one zone only, b"}},
		"one of three unready": {nodes: []hints.Node{node("a", 1000), node("b", 1000), uncounted("b")}, want: hints.Verdict{Hinted: true}},
		"three zones": {
			nodes: []hints.Node{node("a", 5000), node("b", 4500), node("c", 500)},
			want:  hints.Verdict{Hinted: true},
		},
		"one node without a zone is left out": {
			nodes: []hints.Node{node("a", 1000), node("b", 1000), node("", 1000)},
			want:  hints.Verdict{Hinted: true, Note: "1 of 3 ready nodes have no zone or no allocatable CPU and are not counted"},
		},
		"one node without CPU is left out": {
			nodes: []hints.Node{node("a", 1000), node("b", 1000), node("b", 0)},
			want:  hints.Verdict{Hinted: true, Note: "1 of 3 ready nodes have no zone or no allocatable CPU and are not counted"},
		},
		"no node has a zone": {
			nodes: []hints.Node{node("", 1000), node("", 1000)},
			want:  hints.Verdict{Problem: "none of the 2 ready nodes has a zone and allocatable CPU"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var topology hints.Topology
			for _, node := range c.nodes {
				topology.Add(node)
			}
			if _, got := hints.Allocate(topology.Shares(), endpointsIn("a", "a", "a", "a", "b", "b", "b", "b")); got != c.want {
				t.Errorf("verdict is %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestTopology_RemovedNodesHaveNoShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stay := rapid.SliceOfN(rapid.Custom(drawNode), 0, 10).Draw(t, "stay")
		gone := rapid.SliceOfN(rapid.Custom(drawNode), 0, 10).Draw(t, "gone")
		var want, got hints.Topology
		for _, node := range stay {
			want.Add(node)
		}
		for _, node := range rapid.Permutation(append(append([]hints.Node{}, stay...), gone...)).Draw(t, "order") {
			got.Add(node)
		}
		for _, node := range gone {
			got.Remove(node)
		}
		if !got.Shares().Equal(want.Shares()) {
			t.Fatalf("shares are %+v, want %+v", got.Shares(), want.Shares())
		}
	})
}

func drawNode(t *rapid.T) hints.Node {
	return hints.Node{
		Zone:     rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "zone"),
		MilliCPU: rapid.SampledFrom([]int64{0, 1, 500, 4000, 100_000_000}).Draw(t, "cpu"),
		Eligible: rapid.IntRange(0, 4).Draw(t, "eligible") > 0,
	}
}
