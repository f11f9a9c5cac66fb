package cluster

import (
	"time"

	"github.com/trivet-dev/trivet/test/cluster/internal/recording"
)

// rules are how far two runs may differ by chance, and which differences are intended. The first
// allowance that covers a difference gives its reason.
func rules() recording.Rules {
	const lives = "The kubelet of cp2 cannot reach its kube-apiserver, and writes nothing. The Node is marked if it is away for 50 s, " +
		"which is chance: leasesvc gives it 50 s from when it could see that, kube-controller-manager from its last sign."
	return recording.Rules{
		Tolerance: recording.Tolerance{Ratio: 1.5, Absolute: 3 * time.Second},
		Allowances: append([]recording.Allowance{
			{
				Step: "w1: kubelet stopped", Difference: kinds(recording.Faster),
				Because: "The agent of w1 is in endpoint mode: leasesvc learns within the grace period of 20 s that the kubelet is silent. " +
					"kube-controller-manager waits for 50 s after the last sign of life. All that follows comes earlier, too.",
			},
			{
				Step: "w2: kubelet stopped", Difference: kinds(recording.Faster),
				Because: "The agent of w2 is in probe mode, and lives: it says within the grace period of 20 s that the kubelet does not answer. " +
					"kube-controller-manager waits for 50 s after the last sign of life. All that follows comes earlier, too.",
			},
			{
				Step: "cp2: kube-apiserver back", Kind: recording.KindNode, Object: "cp2", Difference: kinds(recording.Missing), Because: lives, Sometimes: true,
			},
			{
				Step: "cp2: kube-apiserver back", Kind: recording.KindEvent, Field: "NodeNotReady", Upstream: "* from node-controller: *",
				Difference: kinds(recording.Missing), Because: lives, Sometimes: true,
			},
			{
				Step: "cp2: kube-apiserver killed", Difference: kinds(recording.Faster), Object: "kubernetes",
				Because: "bootstrapsvc probes its kube-apiserver each second. Upstream removes the address when its lease in etcd ends, and at the next turn of another kube-apiserver.",
			},
			{
				Step: "cp2: kube-apiserver back*", Difference: kinds(recording.Faster), Object: "kubernetes", Sometimes: true,
				Because: "bootstrapsvc publishes the address when /readyz is ok. How long the kube-apiserver takes to start is chance.",
			},
			{
				Kind: recording.KindEvent, Field: "BaselineRepaired", Difference: kinds(recording.Added),
				Because: "bootstrapsvc says as an event what it changes at the Service \"kubernetes\". Upstream changes it without an event.",
			},
			{
				Kind: recording.KindEvent, Difference: kinds(recording.OtherValue), Upstream: "* from node-controller: *", Ours: "* from node-controller: *",
				Because: "The messages of events of node health are Trivet's own. Reason, type, source and object are upstream's.",
			},
			{
				Kind: recording.KindEvent, Difference: kinds(recording.OtherValue), Upstream: "* from taint-eviction-controller: *", Ours: "* from taint-eviction-controller: *",
				Because: "The messages of events of taint eviction are Trivet's own, and name the taint. Reason, type, source and object are upstream's.",
			},
			{
				Kind: recording.KindPod, Field: "condition DisruptionTarget", Difference: kinds(recording.OtherValue),
				Upstream: "True DeletionByTaintManager: *", Ours: "True DeletionByTaintManager: *",
				Because: "The message of the condition is Trivet's own, and names the taint. Status and reason are upstream's.",
			},
			{
				Kind: recording.KindLease, Object: "w1", Field: "renewals", Difference: kinds(recording.Slower),
				Because: "In endpoint mode only leasesvc writes the Lease, and with --write-policy=on-change only when something changes.",
			},
			{
				Kind: recording.KindLease, Object: "w1", Field: "duration", Difference: kinds(recording.Added),
				Because: "With --write-policy=on-change a Lease says for how long it holds without a renewal. That is 500 s while the session lives, and 20 s when leasesvc writes its end.",
			},
			{
				Step: "w1: Node deleted", Kind: recording.KindEvent, Field: "RemovingNode", Difference: kinds(recording.Faster), Sometimes: true,
				Because: "leasesvc sees the deletion on its watch. Upstream looks each 5 s.",
			},
			{
				Step: "w2: kubelet back", Kind: recording.KindNode, Field: "taint node.kubernetes.io/unreachable:NoExecute", Difference: kinds(recording.Faster), Sometimes: true,
				Because: "leasesvc removes the taint when the Node is ready. Upstream does so at its next turn, each 5 s.",
			},
			{
				Step: "w1: kubelet back", Kind: recording.KindNode, Field: "taint node.kubernetes.io/not-ready:NoExecute", Difference: kinds(recording.Added), Sometimes: true,
				Because: "A Node that has just registered is not ready for some tenths of a second. leasesvc taints it in this time. Upstream does so at its next turn, each 5 s, if it is still not ready.",
			},
		}, byChance()...),
	}
}

// byChance is what also differs between two runs with the same controllers.
func byChance() []recording.Allowance {
	const (
		kubelet  = "By chance: the kubelet is the same program on both sides. Which of its repeated events come, and when it is next to try something, differs in each run."
		combined = "By chance: two changes that come shortly after each other are written as one, or seen as one."
		waits    = "slicesvc lets a change that no client routes by wait for 1 s: here, an endpoint terminates that was neither ready nor serving. The change is written with the next one."
	)
	return []recording.Allowance{
		{
			Step: "w1: kubelet back", Kind: recording.KindNode, Field: "condition Ready", Ours: "False KubeletNotReady: *",
			Difference: kinds(recording.Added), Sometimes: true,
			Because: "By chance: a kubelet that starts reports that it is not ready if it looks for its Node before it has registered it.",
		},
		{Kind: recording.KindEvent, Upstream: "* from kubelet: *", Ours: "* from kubelet: *", Because: kubelet, Sometimes: true},
		{Kind: recording.KindEvent, Difference: kinds(recording.Missing), Upstream: "* from kubelet: *", Because: kubelet, Sometimes: true},
		{Kind: recording.KindEvent, Difference: kinds(recording.Added), Ours: "* from kubelet: *", Because: kubelet, Sometimes: true},
		{
			Kind: recording.KindEndpointSlice, Difference: kinds(recording.Missing), Field: "endpoint *",
			Upstream: "terminating on *", Because: waits, Sometimes: true,
		},
		{Kind: recording.KindPod, Field: "deletion", Difference: kinds(recording.Missing), Upstream: "requested with grace of 0 seconds", Because: combined, Sometimes: true},
		{Kind: recording.KindPod, Field: "deletion", Difference: kinds(recording.Added), Ours: "requested with grace of 0 seconds", Because: combined, Sometimes: true},
		{
			Kind: recording.KindEvent, Field: "FailedToUpdateEndpointSlices", Upstream: "*", Sometimes: true,
			Because: "By chance: upstream reports a Pod whose Node is already deleted as a failure, and tries again. slicesvc leaves such a Pod out.",
		},
	}
}

func kinds(all ...recording.DifferenceKind) []recording.DifferenceKind { return all }
