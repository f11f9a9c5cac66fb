package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// The workers, by the mode of their agents.
const (
	endpointNode = "w1"
	probeNode    = "w2"
)

func workers() []string { return []string{endpointNode, probeNode} }

const (
	// grace is leasesvc's --heartbeat-grace-period.
	grace = 20 * time.Second
	// declareBound limits the time from a kubelet's last sign to the verdict, beyond the grace, and
	// restTime is how long an idle cluster is observed.
	declareBound = time.Second
	restTime     = 45 * time.Second
	// cpuBound and rssBound exceed the goals: other work on the machine evicts caches, and how many
	// pages of its file a program has resident is the kernel's choice. anonBound is what it
	// allocates.
	cpuBound, rssBound, anonBound = 5.0, 35 << 10, 15 << 10 // millicores, KiB, KiB
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

// assertNeverDeclared fails the test for each version of a worker since then that is not ready or
// has a taint of a lost node.
func assertNeverDeclared(t *testing.T, h *history, then time.Time) {
	t.Helper()
	for _, c := range h.since(then) {
		if node, ok := c.object.(*corev1.Node); ok && slices.Contains(workers(), node.Name) && (!isReady(node) || len(lossTaints(node)) > 0) {
			t.Errorf("node %s was declared %v after the beginning: %+v, taints %v", node.Name, c.at.Sub(then), readyCondition(node), node.Spec.Taints)
		}
	}
}

// leaseVersions returns the versions of a node's Lease since then, and how many of them the kubelet
// has written itself, which kube-apiserver records.
func leaseVersions(h *history, name string, then time.Time) (versions []*coordinationv1.Lease, byKubelet []time.Time) {
	for _, c := range h.since(then) {
		lease, ok := c.object.(*coordinationv1.Lease)
		if !ok || c.deleted || lease.Name != name {
			continue
		}
		versions = append(versions, lease)
		if lastWriter(lease) == "kubelet" {
			byKubelet = append(byKubelet, c.at)
		}
	}
	return versions, byKubelet
}

// lastWriter is the newest of the field managers.
func lastWriter(lease *coordinationv1.Lease) string {
	writer, newest := "", time.Time{}
	for _, entry := range lease.ManagedFields {
		if entry.Time != nil && !entry.Time.Time.Before(newest) {
			writer, newest = entry.Manager, entry.Time.Time
		}
	}
	return writer
}

// TestNodes_AtRest measures agents of an idle cluster and counts writes of Leases. The probed
// kubelet writes its own, so the count sees kubelets' writes.
func TestNodes_AtRest(t *testing.T) {
	f := sharedCluster(t)
	h := watchAll(t, f.kube, corev1.NamespaceDefault)
	mustEventually(t, 2*time.Minute, func(ctx context.Context) error {
		active, err := f.metric(ctx, endpointNode, "trivet_agent_endpoint_passthrough")
		if err == nil && active != 0 {
			err = errors.New("Lease writes still pass through")
		}
		return err
	})
	before, began := map[string]usage{}, time.Now()
	for _, name := range workers() {
		before[name] = f.agentUsage(t, name)
	}
	letPass(t, restTime)
	elapsed := time.Since(began)
	for _, name := range workers() {
		after := f.agentUsage(t, name)
		millicores := 1000 * (after.cpu - before[name].cpu).Seconds() / elapsed.Seconds()
		figure(t, "Agent of "+name+": CPU at rest", fmt.Sprintf("%.2f millicores", millicores), "goal ≤ 1, test ≤ 5")
		figure(t, "Agent of "+name+": RSS", fmt.Sprintf("%.1f MiB, %.1f of them allocated", float64(after.memKB)/1024, float64(after.anonKB)/1024), "goal ≤ 25 MiB, test ≤ 35")
		if after.pid != before[name].pid || millicores > cpuBound || after.memKB > rssBound || after.anonKB > anonBound {
			t.Errorf("agent of %s: before %+v, after %+v", name, before[name], after)
		}
	}
	versions, byKubelet := leaseVersions(h, endpointNode, began)
	due := f.lease(t, endpointNode).GetWrite()
	until := due.GetDueTime().AsTime().Sub(due.GetWriteTime().AsTime())
	figure(t, "Lease writes of the quiet node "+endpointNode, fmt.Sprintf("%d in %s, next due %s after the last", len(versions), milliseconds(elapsed), milliseconds(until)), "≤ 1 in 300 s")
	figure(t, "… of them by its kubelet", fmt.Sprint(len(byKubelet)), "0")
	if len(versions) > 1 || len(byKubelet) > 0 {
		t.Errorf("the Lease of %s was written %d times, %d times by its kubelet", endpointNode, len(versions), len(byKubelet))
	}
	if _, byKubelet := leaseVersions(h, probeNode, began); len(byKubelet) < int(restTime/(10*time.Second))-1 {
		t.Errorf("the kubelet of %s wrote its Lease %d times in %v: the count of writes misses some", probeNode, len(byKubelet), elapsed)
	}
	assertNeverDeclared(t, h, began)
}

// letPass lets time pass in which nothing may happen.
func letPass(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// awaitDeclared waits for the verdict on a node and checks its time since the last sign of the
// kubelet, which is leasesvc's own record on the same clock.
func (f *fixture) awaitDeclared(t *testing.T, h *history, name, cause string, then time.Time) {
	t.Helper()
	unknown := h.awaitChange(t, then, 3*grace, name+" Ready=Unknown", isNode(name, isUnknown))
	lease := f.lease(t, name)
	after := unknown.at.Sub(lease.GetObserveTime().AsTime())
	figure(t, "Node "+name+" declared, "+cause, fmt.Sprintf("%s after the last sign, %s after the deed", milliseconds(after), milliseconds(unknown.at.Sub(then))), "20 s ≤ sign ≤ 20 s + 0.5 s (test: 1 s)")
	if lease.GetState() != leasev1.Lease_STATE_EXPIRED || after < grace || after > grace+declareBound {
		t.Errorf("%s was declared %v after its last sign, in state %v; want %v to %v", name, after, lease.GetState(), grace, grace+declareBound)
	}
	tainted := h.awaitChange(t, then, 30*time.Second, name+" has the NoExecute taint", isNode(name, isUnreachable))
	figure(t, "… NoExecute taint of "+name, milliseconds(tainted.at.Sub(unknown.at))+" after that", "one node in 10 s")
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
		f.awaitDeclared(t, h, name, "power cut", then)
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
		f.awaitDeclared(t, h, name, "kubelet dead, agent alive", killed[name])
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
	assertNeverDeclared(t, h, back)
}

// TestNodes_AgentKilled ends both agents. The kubelets start them again before anything is
// declared.
func TestNodes_AgentKilled(t *testing.T) {
	f := sharedCluster(t)
	h := watchAll(t, f.kube, corev1.NamespaceDefault)
	before, began := map[string]int{}, time.Now()
	for _, name := range workers() {
		before[name] = f.agentUsage(t, name).pid
		if err := f.node(t, name).Signal("trivet-agent", syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range workers() {
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
	assertNeverDeclared(t, h, began)
}

// awaitBeats waits until leasesvc has accepted a beat of each worker after a time.
func (f *fixture) awaitBeats(t *testing.T, after time.Time) {
	t.Helper()
	conn, err := f.dial("leasesvc", leasesvcAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mustEventually(t, time.Minute, func(ctx context.Context) error {
		for _, name := range workers() {
			response, err := leasev1.NewLeaseServiceClient(conn).GetLease(ctx, &leasev1.GetLeaseRequest{Name: leaseName(name)})
			if err != nil {
				return err
			}
			if beat := response.GetLease().GetLastBeatTime().AsTime(); beat.Before(after) {
				return fmt.Errorf("the last beat of %s is %v before that", name, after.Sub(beat))
			}
		}
		return nil
	})
}

// TestNodes_LeasesvcRolledAndAway replaces leasesvc's container, and then leaves it away for a
// minute, in which the endpoint passes the kubelet's writes on.
func TestNodes_LeasesvcRolledAndAway(t *testing.T) {
	f := sharedCluster(t)
	server := f.node(t, "cp1")
	h := watchAll(t, f.kube, corev1.NamespaceDefault)
	manifest, err := server.Pod("leasesvc")
	if err != nil {
		t.Fatal(err)
	}
	processes := func() []int {
		found, err := server.Processes("leasesvc")
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	began, old := time.Now(), processes()
	t.Cleanup(func() {
		if err := server.SetPod("leasesvc", manifest); err != nil {
			t.Error(err)
		}
	})
	if err := server.SetPod("leasesvc", annotated(t, manifest, "trivet.dev/rolled", "1")); err != nil {
		t.Fatal(err)
	}
	mustEventually(t, 2*time.Minute, func(context.Context) error {
		if now := processes(); len(now) != 1 || slices.Equal(now, old) {
			return fmt.Errorf("leasesvc is %v, was %v", now, old)
		}
		return nil
	})
	f.awaitBeats(t, time.Now())
	figure(t, "leasesvc rolled: beats of all workers again", milliseconds(time.Since(began)), "≤ 3m; never declared")
	assertNeverDeclared(t, h, began)

	// Away.
	if err := server.RemovePod("leasesvc"); err != nil {
		t.Fatal(err)
	}
	mustEventually(t, time.Minute, func(context.Context) error {
		if now := processes(); len(now) > 0 {
			return fmt.Errorf("leasesvc still runs: %v", now)
		}
		return nil
	})
	away := time.Now()
	letPass(t, time.Minute)
	_, written := leaseVersions(h, endpointNode, away)
	gap, last := time.Duration(0), away
	for _, at := range written {
		gap, last = max(gap, at.Sub(last)), at
	}
	gap = max(gap, time.Since(last))
	figure(t, "leasesvc away: writes that pass to the real Lease of "+endpointNode, fmt.Sprintf("%d in %s, longest gap %s", len(written), milliseconds(time.Since(away)), milliseconds(gap)), "gap ≤ 2 intervals (20 s) + 13 s at first")
	if len(written) < 3 || gap > 35*time.Second {
		t.Errorf("while leasesvc was away the kubelet's Lease was written %d times, with a gap of %v", len(written), gap)
	}
	if active, err := f.metric(t.Context(), endpointNode, "trivet_agent_endpoint_passthrough"); err != nil || active != 1 {
		t.Errorf("the agent says passthrough %v, %v; want 1", active, err)
	}
	assertNeverDeclared(t, h, began)

	// Back.
	back := time.Now()
	if err := server.SetPod("leasesvc", manifest); err != nil {
		t.Fatal(err)
	}
	mustEventually(t, 2*time.Minute, func(ctx context.Context) error {
		active, err := f.metric(ctx, endpointNode, "trivet_agent_endpoint_passthrough")
		if err == nil && active != 0 {
			err = errors.New("Lease writes still pass through")
		}
		return err
	})
	figure(t, "leasesvc back: the endpoint's writes are beats again", milliseconds(time.Since(back)), "≤ 2m")
	quiet := time.Now()
	f.awaitBeats(t, quiet)
	letPass(t, grace+2*time.Second)
	if _, written := leaseVersions(h, endpointNode, quiet.Add(time.Second)); len(written) > 0 {
		t.Errorf("the kubelet of %s wrote its real Lease %d times after leasesvc was back", endpointNode, len(written))
	}
	assertNeverDeclared(t, h, began)
}

// TestNodes_BeatsByBothModes shows that leasesvc keeps both workers and no other node, which has no
// agent.
func TestNodes_BeatsByBothModes(t *testing.T) {
	f := sharedCluster(t)
	conn, err := f.dial("gateway", gatewayAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mustEventually(t, time.Minute, func(ctx context.Context) error {
		response, err := leasev1.NewLeaseServiceClient(conn).ListLeases(ctx, &leasev1.ListLeasesRequest{Parent: "namespaces/" + corev1.NamespaceNodeLease})
		if err != nil {
			return err
		}
		alive := map[string]bool{}
		for _, lease := range response.GetLeases() {
			alive[lease.GetName()] = lease.GetState() == leasev1.Lease_STATE_ALIVE
		}
		if want := map[string]bool{leaseName(endpointNode): true, leaseName(probeNode): true}; !maps.Equal(alive, want) {
			return fmt.Errorf("leases that are alive: %v, want %v", alive, want)
		}
		return nil
	})
}
