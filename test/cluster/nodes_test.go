package cluster

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

// The workers, by the mode of their agents. The control-plane nodes have agents that probe.
const (
	endpointNode = "w1"
	probeNode    = "w2"
)

func workers() []string { return []string{endpointNode, probeNode} }

// nodeNames are those of all nodes. Each has an agent.
func (f *fixture) nodeNames() []string {
	var names []string
	for _, node := range f.Nodes() {
		names = append(names, node.Name)
	}
	return names
}

const (
	// grace is leasesvc's --heartbeat-grace-period, and unreportedGrace its
	// --node-monitor-grace-period: for a kubelet's own signs, of which no agent says that they have
	// ended.
	grace, unreportedGrace = 20 * time.Second, 50 * time.Second
	// declareBound limits the time from a kubelet's last sign to the verdict, beyond the grace.
	declareBound = time.Second
)

func nodeOf(h *history, name string) *corev1.Node {
	for _, node := range objects[*corev1.Node](h) {
		if node.Name == name {
			return node
		}
	}
	return nil
}

func readyCondition(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// isNode matches versions of a Node.
func isNode(name string, is func(*corev1.Node) bool) func(change) bool {
	return func(c change) bool {
		node, ok := c.object.(*corev1.Node)
		return ok && !c.deleted && node.Name == name && is(node)
	}
}

func isUnknown(node *corev1.Node) bool { return readyCondition(node).Status == corev1.ConditionUnknown }
func isReady(node *corev1.Node) bool   { return readyCondition(node).Status == corev1.ConditionTrue }

func isUnreachable(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoExecute
	})
}

// awaitDeclared waits for the verdict on a node and checks its time since the sign of the kubelet
// that decides, which is leasesvc's own record on the same clock.
func (f *fixture) awaitDeclared(t *testing.T, h *history, name, cause string, grace time.Duration, then time.Time) {
	t.Helper()
	unknown := h.awaitChange(t, then, grace+40*time.Second, name+" Ready=Unknown", isNode(name, isUnknown))
	health, err := f.nodeHealth(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	source, seen := lastSign(health)
	after := unknown.at.Sub(seen)
	figure(t, "Node "+name+" declared, "+cause,
		fmt.Sprintf("%s after the last sign (%s), %s after the deed", milliseconds(after), source, milliseconds(unknown.at.Sub(then))),
		fmt.Sprintf("%[1]s ≤ sign ≤ %[1]s + 0.5 s (test: 1 s)", grace))
	if state := f.lease(t, name).GetState(); state != leasev1.Lease_STATE_EXPIRED || after < grace || after > grace+declareBound {
		t.Errorf("%s was declared %v after its last sign (%s), in state %v; want %v to %v", name, after, source, state, grace, grace+declareBound)
	}
	tainted := h.awaitChange(t, then, 30*time.Second, name+" has the NoExecute taint", isNode(name, isUnreachable))
	figure(t, "… NoExecute taint of "+name, milliseconds(tainted.at.Sub(unknown.at))+" after that", "one node in 10 s")
}

// lastSign returns the last sign that keeps a Node alive, and when it was seen.
func lastSign(health *nodev1.NodeHealth) (source string, seen time.Time) {
	for _, sign := range health.GetSignals() {
		if sign.GetExpireTime() != nil && sign.GetSeenTime().AsTime().After(seen) {
			source, seen = sign.GetSource().String(), sign.GetSeenTime().AsTime()
		}
	}
	return source, seen
}

// awaitSessionsDecide waits until nothing but the sessions of the workers keeps them alive while
// their agents live:
//   - A Node whose kubelet renews the Lease itself has unreportedGrace from the moment at which
//     leasesvc first saw it.
//   - In endpoint mode, a kubelet writes its Lease itself until its agent finds leasesvc. Such a
//     write, or a status after it, counts for unreportedGrace.
func (f *fixture) awaitSessionsDecide(t *testing.T) {
	t.Helper()
	const looks = 10 * time.Second // leasesvc sees its first Nodes within this time after its start
	mustEventually(t, 3*unreportedGrace, func(ctx context.Context) error {
		server, err := f.kube.CoreV1().Pods(trivetNamespace).Get(ctx, "leasesvc-"+stayingNode, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, name := range workers() {
			node, err := f.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			first := node.CreationTimestamp.Time
			for _, status := range server.Status.ContainerStatuses {
				if running := status.State.Running; running != nil && running.StartedAt.Add(looks).After(first) {
					first = running.StartedAt.Add(looks)
				}
			}
			if left := unreportedGrace - time.Since(first); left > 0 {
				return fmt.Errorf("leasesvc may have first seen %s less than %v ago: %v left", name, unreportedGrace, left)
			}
		}
		health, err := f.nodeHealth(ctx, endpointNode)
		if err != nil {
			return err
		}
		if left := unreportedGrace - time.Since(ownSign(health)); left > 0 {
			return fmt.Errorf("the kubelet of %s wrote its Lease or its status itself: %v left", endpointNode, left)
		}
		return nil
	})
}

// ownSign returns the last sign that a kubelet gave without its agent, or the zero Time: a new
// renewTime of the Lease, or a heartbeat in the status within unreportedGrace after it.
func ownSign(health *nodev1.NodeHealth) time.Time {
	seen := map[nodev1.SignalSource]time.Time{}
	for _, sign := range health.GetSignals() {
		seen[sign.GetSource()] = sign.GetSeenTime().AsTime()
	}
	renewed, posted := seen[nodev1.SignalSource_SIGNAL_SOURCE_LEASE_OBJECT], seen[nodev1.SignalSource_SIGNAL_SOURCE_NODE_STATUS]
	if !renewed.IsZero() && posted.After(renewed) && posted.Sub(renewed) <= unreportedGrace {
		return posted
	}
	return renewed
}

// awaitBack waits until a node is ready again without taints, by a report that its kubelet has made
// since then.
func awaitBack(t *testing.T, h *history, name string, then time.Time) time.Time {
	t.Helper()
	back := h.awaitChange(t, then, 2*time.Minute, name+" is ready without taints", isNode(name, func(node *corev1.Node) bool {
		reported := readyCondition(node).LastHeartbeatTime.Time
		return isReady(node) && !reported.Before(then.Truncate(time.Second)) && len(lossTaints(node)) == 0
	}))
	figure(t, "… "+name+" ready again, taints gone", milliseconds(back.at.Sub(then))+" after its return", "≤ 2m")
	return back.at
}

// TestNodes_PowerCut cuts the power of each worker in turn. Its Pods move to the other one.
func TestNodes_PowerCut(t *testing.T) {
	f := sharedCluster(t)
	namespace := f.namespace(t, "power")
	h := watchAll(t, f.kube, namespace)
	began := time.Now()
	f.deploy(t, namespace)
	h.await(t, rolloutLimit, func() error { return atRest(h, webReplicas) })
	for _, name := range workers() {
		node := f.node(t, name)
		then := time.Now()
		if err := node.CutPower(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if !node.Running() {
				if err := node.Boot(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
		f.awaitDeclared(t, h, name, "power cut", grace, then)
		moved := h.await(t, 2*time.Minute, func() error {
			ready := 0
			for _, pod := range objects[*corev1.Pod](h) {
				switch {
				case pod.Spec.NodeName == name && pod.DeletionTimestamp == nil:
					return fmt.Errorf("Pod %s of %s has not been evicted", pod.Name, name)
				case pod.Spec.NodeName != name && podIsReady(pod):
					ready++
				}
			}
			if ready != webReplicas {
				return fmt.Errorf("%d Pods are ready on the other node, want %d", ready, webReplicas)
			}
			return nil
		})
		figure(t, "… all Pods ready on the other node", milliseconds(moved.Sub(then))+" after the deed", "≤ 2m")
		booted := time.Now()
		if err := node.Boot(t.Context()); err != nil {
			t.Fatal(err)
		}
		awaitBack(t, h, name, booted)
		h.await(t, rolloutLimit, func() error { return atRest(h, webReplicas) })
	}
	all := sliceLags(h.since(began), began, time.Now())
	figure(t, "Pod unready or deleted, ready in slices (power cuts)", all.stale.String(), "each ≤ "+sliceBound.String())
	if len(all.stale) == 0 || slices.Max(all.stale) > sliceBound {
		t.Errorf("slices follow Pods of lost nodes: %v, want %v at most", all.stale, sliceBound)
	}
}

// TestNodes_KubeletKilledUnderALivingAgent ends both kubelets. The agents live, the nodes are
// declared. Then the Nodes are deleted, and the kubelets register new ones: nothing of the old
// Nodes counts against these.
func TestNodes_KubeletKilledUnderALivingAgent(t *testing.T) {
	f := sharedCluster(t)
	f.awaitSessionsDecide(t)
	h := watchAll(t, f.kube, corev1.NamespaceDefault)
	agents, killed := map[string]int{}, map[string]time.Time{}
	for _, name := range workers() {
		agents[name] = f.agentUsage(t, name).pid
		node := f.node(t, name)
		t.Cleanup(func() {
			if err := node.ReleaseKubelet(); err != nil {
				t.Error(err)
			}
		})
		killed[name] = time.Now()
		if err := node.KillKubelet(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range workers() {
		f.awaitDeclared(t, h, name, "kubelet dead, agent alive", grace, killed[name])
		if pid := f.agentUsage(t, name).pid; pid != agents[name] {
			t.Errorf("the agent of %s is process %d, was %d", name, pid, agents[name])
		}
	}
	// The probing agent went on beating with the age of the kubelet's last sign. The endpoint beats
	// because of a kubelet's write and never otherwise.
	probed, passed := f.lease(t, probeNode), f.lease(t, endpointNode)
	if age := probed.GetLastBeatTime().AsTime().Sub(probed.GetObserveTime().AsTime()); age < grace/4 {
		t.Errorf("the last beat of %s came %v after the kubelet's last sign; the agent did not live on", probeNode, age)
	}
	if beat := passed.GetLastBeatTime().AsTime(); beat.After(killed[endpointNode].Add(time.Second)) {
		t.Errorf("a beat of %s came %v after its kubelet's death", endpointNode, beat.Sub(killed[endpointNode]))
	}
	for _, name := range workers() {
		if err := f.kube.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	released := time.Now()
	for _, name := range workers() {
		if err := f.node(t, name).ReleaseKubelet(); err != nil {
			t.Fatal(err)
		}
	}
	var back time.Time
	for _, name := range workers() {
		if at := awaitBack(t, h, name, released); at.After(back) {
			back = at
		}
	}
	letPass(t, grace+2*time.Second)
	checkNoNodeDeclared(t, h, back)
}

// TestNodes_AgentKilled ends all agents. The kubelets start them again before anything is declared.
func TestNodes_AgentKilled(t *testing.T) {
	f := sharedCluster(t)
	h := watchAll(t, f.kube, corev1.NamespaceDefault)
	before, began := map[string]int{}, time.Now()
	for _, name := range f.nodeNames() {
		before[name] = f.agentUsage(t, name).pid
		if err := f.node(t, name).Signal("trivet-agent", syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range f.nodeNames() {
		mustEventually(t, time.Minute, func(context.Context) error {
			processes, err := f.node(t, name).Processes("trivet-agent")
			if err == nil && (len(processes) != 1 || processes[0] == before[name]) {
				err = fmt.Errorf("agents of %s: %v, want a new one", name, processes)
			}
			return err
		})
		figure(t, "Agent of "+name+" killed, runs again", milliseconds(time.Since(began)), "≤ 1m")
	}
	restarted := time.Now()
	f.awaitBeats(t, restarted)
	// A verdict on a sign before the kill would come within the grace.
	letPass(t, max(0, grace+2*time.Second-time.Since(began)))
	checkNoNodeDeclared(t, h, began)
}
