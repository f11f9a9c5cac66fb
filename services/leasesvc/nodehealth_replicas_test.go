package leasesvc_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// nodeGrace is the grace period of nodes that beat and of nodes that renew Leases: longer than the
// delays of a busy machine.
const nodeGrace = 10 * time.Second

// replicatedNodes are nodes on the real kube-apiserver and two replicas with node health. Some
// nodes beat over gRPC, and the remaining ones renew Leases.
type replicatedNodes struct {
	*nodeFixture
	t        *testing.T
	grace    time.Duration
	a, b     *replica
	beating  []agent.Holder
	renewing []string
	victims  []string // one of each kind, which the test stops
	stop     func()   // stops the beats of the first victim
	agent    *agent.Agent
}

func newReplicatedNodes(t *testing.T, plane *devcluster.Cluster, grace time.Duration, beating, renewing int) *replicatedNodes {
	t.Helper()
	p := newReplicaConfig(t, plane)
	p.loops = []string{leasesvc.NodeHealthLoop}
	p.config.Classes[0].Namespace, p.config.Classes[0].Grace, p.config.Classes[0].LeaseDuration = p.cluster, grace, grace
	p.config.NodeHealth.GracePeriod = grace
	f := &replicatedNodes{t: t, grace: grace, nodeFixture: newNodes(p.admin)}
	f.ofTest = p.cluster
	f.beating = agentHolders(p.cluster, beating)
	for _, h := range f.beating {
		f.add(t, h.Name, "a")
	}
	for i := range renewing {
		f.renewing = append(f.renewing, fmt.Sprintf("%s-kubelet-%d", p.cluster, i))
		f.add(t, f.renewing[i], "b")
	}
	f.keepRenewing(p.cluster)
	f.a, f.b = startReplica(t, "replica-a", p), startReplica(t, "replica-b", p)
	awaitShares(t, f.a, f.b)
	var victim *agent.Agent
	renew := func(ctx context.Context, h agent.Holder) error {
		f.renewLease(ctx, p.cluster, h.Name)
		return nil
	}
	victim, f.stop = beatOrRenew(t, f.beating[:1], renew, f.a, f.b)
	f.agent, _ = beatOrRenew(t, f.beating[1:], renew, f.a, f.b)
	awaitRegistered(t, victim, f.agent)
	f.victims = []string{f.beating[0].Name, f.renewing[0]}
	f.beating, f.renewing = f.beating[1:], f.renewing[1:]
	return f
}

func (f *replicatedNodes) keepRenewing(namespace string) {
	ctx, cancel := context.WithCancel(context.Background())
	var kubelets sync.WaitGroup
	for i, name := range f.renewing {
		kubelets.Go(func() { f.runKubelet(ctx, namespace, name, renewal*time.Duration(i)/time.Duration(len(f.renewing))) })
	}
	f.t.Cleanup(kubelets.Wait)
	f.t.Cleanup(cancel)
}

// expectNoneUnknown checks all live nodes.
func (f *replicatedNodes) expectNoneUnknown(since time.Time) {
	f.t.Helper()
	all := append([]agent.Holder(nil), f.beating...)
	for _, name := range f.renewing {
		all = append(all, agent.Holder{Name: name})
	}
	found, err := notReady(f.t.Context(), f.admin, all, since)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, mistake := range found {
		f.t.Errorf("marked as unknown by mistake: %s", mistake)
	}
}

// expectVictimsUnknown stops one node of each kind, and waits until both are marked as unknown.
func (f *replicatedNodes) expectVictimsUnknown() {
	f.t.Helper()
	stopped := time.Now()
	f.stop()
	f.silence(f.victims[1])
	testkit.Eventually(f.t, slack+relist+2*f.grace, func() error {
		for _, name := range f.victims {
			node, err := f.admin.CoreV1().Nodes().Get(f.t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if status := conditions(node)[corev1.NodeReady]; status != corev1.ConditionUnknown {
				return fmt.Errorf("Ready of %s is %s", name, status)
			}
		}
		return nil
	})
	f.t.Logf("both nodes were marked as unknown %v after they stopped, with a grace period of %v",
		time.Since(stopped).Round(100*time.Millisecond), f.grace)
}

// One of two replicas is killed, with half of the shards and their state.
func TestNodeHealth_NoNodeIsMarkedUnknownAfterAKilledReplica(t *testing.T) {
	t.Parallel()
	f := newReplicatedNodes(t, testkit.Cluster(t), nodeGrace, 150, 50)
	begin := time.Now()
	lost := len(f.a.held())
	go f.a.kill()
	testkit.Eventually(t, patience, func() error {
		if n := len(f.b.held()); n != takeoverShards {
			return fmt.Errorf("%d of %d shards are held", n, takeoverShards)
		}
		return nil
	})
	t.Logf("%d of %d shards were taken over %v after the kill", lost, takeoverShards, time.Since(begin).Round(time.Millisecond))
	awaitRegistered(t, f.agent)
	time.Sleep(3 * nodeGrace / 2) // a mistake would show by now
	f.expectNoneUnknown(begin)
	f.expectVictimsUnknown()
	f.expectNoneUnknown(begin)
}

// One of two replicas hears none of its agents for longer than every grace period, as with a
// network policy. It keeps its shards, and the agents of their nodes write Leases.
func TestNodeHealth_NoNodeIsMarkedUnknownByAReplicaThatHearsNone(t *testing.T) {
	t.Parallel()
	f := newReplicatedNodes(t, testkit.Cluster(t), nodeGrace, 30, 4)
	begin := time.Now()
	f.a.cut.Store(true)
	t.Cleanup(func() { f.a.cut.Store(false) }) // its server waits for the ends of connections
	time.Sleep(3 * nodeGrace)                  // a mistake would show by now
	f.expectNoneUnknown(begin)
	if n := len(f.a.held()); n == 0 {
		t.Error("the replica that hears no agent has lost its shards")
	}
	if written := f.agent.Status().Unacknowledged; written == 0 {
		t.Error("no agent has written a Lease")
	}
	f.expectVictimsUnknown()
	f.expectNoneUnknown(begin)
}

// The kube-apiserver is down for longer than every grace period, so that neither kubelets nor
// leasesvc can write. Sessions continue; nodes that renew Leases cannot show that they are alive.
func kubeAPIServerOutageMarksNoNode(t *testing.T, plane *devcluster.Cluster) {
	f := newReplicatedNodes(t, plane, outageGrace, 30, 30)
	begin := time.Now()
	if err := plane.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(*outage) // the test needs an outage of this length
	if err := plane.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	awaitRegistered(t, f.agent)
	time.Sleep(3 * outageGrace) // a mistake would show by now
	f.expectNoneUnknown(begin)
	f.expectVictimsUnknown()
	f.expectNoneUnknown(begin)
}
