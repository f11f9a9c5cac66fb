package eviction_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
)

// taintedNodes returns tainted Nodes with 110 Pods each, which are due in 300 s.
func taintedNodes(nodes int) map[string]eviction.NodeEvictions {
	states := map[string]eviction.NodeEvictions{}
	node := newNode(noExecute("a"))
	for i := range nodes {
		var all []*corev1.Pod
		for j := range 110 {
			all = append(all, newPod(fmt.Sprintf("p%d-%d", i, j), tolerates("a", 300)))
		}
		states[fmt.Sprintf("n%d", i)] = eviction.NodeEvictions{}.Observe(0, wall(0), node, all)
	}
	return states
}

// A pass while 110,000 pods wait, none of which is due.
func BenchmarkPlan_ThousandTaintedNodes(b *testing.B) {
	state := eviction.State{Nodes: taintedNodes(1000)}
	b.ReportAllocs()
	for b.Loop() {
		if plan := (eviction.Rules{}).Plan(seconds, state, 64); plan.Waiting != 110_000 {
			b.Fatalf("%d wait", plan.Waiting)
		}
	}
}

// A pass while 110,000 Pods are due and few may leave.
func BenchmarkPlan_AllAreDue(b *testing.B) {
	state := eviction.State{Nodes: taintedNodes(1000)}
	b.ReportAllocs()
	for b.Loop() {
		if plan := (eviction.Rules{}).Plan(400*seconds, state, 64); len(plan.Evictions) != 64 {
			b.Fatalf("%d leave", len(plan.Evictions))
		}
	}
}

// One of 110 pods of a tainted Node changes.
func BenchmarkObserve(b *testing.B) {
	var all []*corev1.Pod
	for j := range 110 {
		all = append(all, newPod(fmt.Sprintf("p%d", j), tolerates("a", 300)))
	}
	node := newNode(noExecute("a"))
	w := eviction.NodeEvictions{}.Observe(0, wall(0), node, all)
	b.ReportAllocs()
	for b.Loop() {
		w = w.Observe(seconds, wall(seconds), node, all)
	}
}
