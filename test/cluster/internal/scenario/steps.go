package scenario

import (
	"github.com/trivet-dev/trivet/test/cluster/internal/recording"
)

const app = "web"

// AtRest is a cluster of so many nodes and kube-apiservers before the first step. A kubelet creates
// its Lease some seconds after its Node is ready.
func AtRest(nodes, apiServers int) []Expectation {
	return []Expectation{
		addresses(apiServers),
		{recording.KindNode, "*", "condition Ready", "True*", nodes},
		taint("*", "node.kubernetes.io/*", 0),
		{recording.KindLease, "*", recording.FieldExists, "yes", nodes},
	}
}

// Workloads are the steps that need nodes with kubelets and change none of them. first is a worker.
func Workloads(first string) []Step {
	const gated = "web-gated"
	return []Step{
		{"at rest", Nothing{}, []Expectation{{recording.KindService, "kubernetes", recording.FieldExists, "yes", 1}}},
		{"Deployment of 2", Deploy{app, 2}, []Expectation{endpoints("ready*", 2), pods(2)}},
		{"gated Pod runs", RunGated{gated, app, first}, []Expectation{endpoints("not ready*", 1), endpoints("ready*", 2), pods(3)}},
		{"gate opens", SetGate{gated, true}, []Expectation{endpoints("ready*", 3)}},
		{"gate closes", SetGate{gated, false}, []Expectation{endpoints("not ready*", 1), endpoints("ready*", 2)}},
		{"gated Pod deleted", DeletePod{gated}, []Expectation{endpoints("*", 2), pods(2)}},
		{"Pod of the Deployment deleted", DeletePodOn{app, first}, []Expectation{endpoints("*", 2), endpoints("ready*", 2), pods(2)}},
		{"scaled to 0", Scale{app, 0}, []Expectation{endpoints("*", 0), pods(0)}},
		{"scaled to 2", Scale{app, 2}, []Expectation{endpoints("ready*", 2), pods(2)}},
	}
}

// Nodes are the steps of two workers with the Deployment of Workloads. Both lose their kubelets,
// one after the other, so each way of heartbeats is seen. The first one also loses its Node object.
func Nodes(first, second string) []Step {
	const label = "beta.kubernetes.io/os"
	return []Step{
		{first + ": label removed", RemoveLabel{first, label}, []Expectation{{recording.KindNode, first, "label " + label, "linux", 1}}},
		{first + ": drained", Drain{first}, []Expectation{
			taint(first, "node.kubernetes.io/unschedulable:NoSchedule", 1), ready(second, 2), pods(2),
		}},
		{first + ": uncordoned", Uncordon{first}, []Expectation{taint(first, "*", 0)}},
		{second + ": kubelet stopped", StopKubelet{second}, lost(second, first)},
		{second + ": kubelet back", StartKubelet{second}, []Expectation{condition(second, "True*"), taint(second, "*", 0), pods(2)}},
		{first + ": kubelet stopped", StopKubelet{first}, lost(first, second)},
		{first + ": Node deleted", DeleteNode{first}, []Expectation{
			{recording.KindNode, first, recording.FieldExists, "yes", 0},
			{recording.KindLease, first, recording.FieldExists, "yes", 0},
			pods(2),
		}},
		{first + ": kubelet back", StartKubelet{first}, []Expectation{
			condition(first, "True*"), taint(first, "*", 0), {recording.KindLease, first, "holder", first, 1},
		}},
	}
}

// APIServers are the steps of a kube-apiserver that is not the recorder's. address is that of its
// node, and count the number of all kube-apiservers.
func APIServers(node, address string, count int) []Step {
	gone := []Expectation{kubernetesAddress(address, 0), addresses(count - 1)}
	// While its kube-apiserver is away, the node's own kubelet is silent, too.
	back := []Expectation{
		kubernetesAddress(address, 1), addresses(count),
		condition(node, "True*"), taint(node, "node.kubernetes.io/*", 0),
	}
	return []Step{
		{node + ": kube-apiserver stopped", StopAPIServer{node}, gone},
		{node + ": kube-apiserver back", StartAPIServer{node}, back},
		{node + ": kube-apiserver killed", KillAPIServer{node}, gone},
		{node + ": kube-apiserver back again", StartAPIServer{node}, back},
	}
}

// lost is what a node without a kubelet leads to: its Pods run elsewhere.
func lost(node, elsewhere string) []Expectation {
	return []Expectation{
		condition(node, "Unknown*"),
		taint(node, "node.kubernetes.io/unreachable:NoExecute", 1),
		taint(node, "node.kubernetes.io/unreachable:NoSchedule", 1),
		ready(elsewhere, 2),
		{recording.KindPod, app + "-*", "deletion", "requested*", 2},
	}
}

func endpoints(state string, count int) Expectation {
	return Expectation{recording.KindEndpointSlice, app + "-*", "endpoint *", state, count}
}

func ready(node string, count int) Expectation { return endpoints("ready* on "+node, count) }

func pods(count int) Expectation {
	return Expectation{recording.KindPod, app + "-*", recording.FieldExists, "yes", count}
}

func condition(node, value string) Expectation {
	return Expectation{recording.KindNode, node, "condition Ready", value, 1}
}

func taint(node, name string, count int) Expectation {
	return Expectation{recording.KindNode, node, "taint " + name, "present", count}
}

func kubernetesAddress(address string, count int) Expectation {
	return Expectation{recording.KindEndpointSlice, "kubernetes", "endpoint " + address, "*", count}
}

func addresses(count int) Expectation {
	return Expectation{recording.KindEndpoints, "kubernetes", "address *", "*", count}
}
