package leasesvc_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/agent/nodelease"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// outageScale divides the times of a cluster with upstream's defaults: a kubelet renews every
// second instead of every 10 s, and its grace period is 5 s instead of 50 s.
const outageScale = 10

const outageGrace = 50 * time.Second / outageScale

// outage is four grace periods. `make outage` sets five minutes.
var outage = flag.Duration("leasesvc.outage", 4*outageGrace, "how long etcd, and kube-apiserver, are down in TestOutage")

const outageNodes = 20

// readyNodes creates Nodes that report Ready once.
func readyNodes(t *testing.T, kube kubernetes.Interface, prefix string) []agent.Holder {
	t.Helper()
	holders := agentHolders(prefix, outageNodes)
	for _, h := range holders {
		node, err := kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Name, Labels: testkit.NodeLabels(prefix)}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := kube.CoreV1().Nodes().Delete(context.Background(), h.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		})
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Kubelet", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}
		if _, err := kube.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return holders
}

// notReady lists the nodes that are not ready, or became ready after a time.
func notReady(ctx context.Context, kube kubernetes.Interface, holders []agent.Holder, since time.Time) ([]string, error) {
	var found []string
	for _, h := range holders {
		node, err := kube.CoreV1().Nodes().Get(ctx, h.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && (c.Status != corev1.ConditionTrue || c.LastTransitionTime.After(since)) {
				found = append(found, fmt.Sprintf("%s: Ready=%s since %v (%s)", h.Name, c.Status, c.LastTransitionTime, c.Reason))
			}
		}
	}
	return found, nil
}

// awaitMarked waits until one node is not ready since a time.
func awaitMarked(t *testing.T, within time.Duration, kube kubernetes.Interface, node []agent.Holder, since time.Time) {
	t.Helper()
	testkit.Eventually(t, within, func() error {
		found, err := notReady(t.Context(), kube, node, since)
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("%s has not been marked as unknown", node[0].Name)
		}
		return err
	})
}

// outageConfig is that of a replica with node health alone, with the times of an outage.
func outageConfig(t *testing.T, plane *devcluster.Cluster) replicaConfig {
	t.Helper()
	p := newReplicaConfig(t, plane)
	p.loops = []string{leasesvc.NodeHealthLoop}
	p.config.Classes[0].Grace, p.config.Classes[0].LeaseDuration = outageGrace, outageGrace
	p.config.NodeHealth.GracePeriod = outageGrace
	return p
}

// TestOutage stops servers of a control plane of its own.
func TestOutage(t *testing.T) {
	testkit.LongTest(t, 1)
	t.Parallel()
	plane := testkit.OwnCluster(t, devcluster.Config{})
	t.Run("EtcdOutageMarksNoNode", func(t *testing.T) { etcdOutageMarksNoNode(t, plane) })
	t.Run("FullEtcdMarksNoNode", func(t *testing.T) { fullEtcdMarksNoNode(t, plane) })
	t.Run("KubeAPIServerOutageMarksNoNode", func(t *testing.T) { kubeAPIServerOutageMarksNoNode(t, plane) })
	t.Run("BeatsSucceedWithoutKubeAPIServer", func(t *testing.T) { beatsSucceedWithoutKubeAPIServer(t, plane) })
}

// etcd is down for longer than all grace periods of live nodes. Node health marks none of them,
// because it hears each of them before it assesses any. It marks the one that became silent
// meanwhile.
func etcdOutageMarksNoNode(t *testing.T, plane *devcluster.Cluster) {
	p := outageConfig(t, plane)
	kube := p.admin
	p.config.Classes[0].Namespace = p.cluster
	nodes := readyNodes(t, kube, p.cluster)
	victim, nodes := nodes[:1], nodes[1:]
	a, b := startReplica(t, "replica-a", p), startReplica(t, "replica-b", p)
	awaitShares(t, a, b)
	victimAgent, stopVictim := beatFor(t, victim, a, b)
	others := agentHolders("other", 1000)
	otherAgent, _ := beatFor(t, others, a, b)
	nodeAgent, _ := beatFor(t, nodes, a, b)
	awaitRegistered(t, victimAgent, nodeAgent, otherAgent)
	expired := watchExpired(t, a, b)
	begin := time.Now()

	if err := plane.StopEtcd(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(*outage) // the test needs an outage of this length
	stopVictim()
	if err := plane.StartEtcd(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	awaitShares(t, a, b)
	t.Logf("all shards were held again %v after etcd was back", time.Since(back).Round(time.Millisecond))
	awaitRegistered(t, nodeAgent, otherAgent)
	t.Logf("all holders were registered again %v after etcd was back", time.Since(back).Round(time.Millisecond))
	// After a long outage a kube-apiserver needs up to two minutes to reconnect to etcd.
	testkit.Eventually(t, 3*time.Minute, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := kube.CoreV1().Nodes().Get(ctx, victim[0].Name, metav1.GetOptions{})
		return err
	})
	t.Logf("the kube-apiserver answered again %v after etcd was back", time.Since(back).Round(time.Millisecond))

	awaitMarked(t, 2*time.Minute, kube, victim, begin)
	t.Logf("the node that stopped during the outage was marked as unknown %v after etcd was back", time.Since(back).Round(time.Millisecond))
	found, err := notReady(t.Context(), kube, nodes, begin)
	if err != nil {
		t.Fatal(err)
	}
	for _, mistake := range found {
		t.Errorf("marked as unknown by mistake: %s", mistake)
	}
	expired.expectNotExpired(t, "during and after the outage", append(others, nodes...))
}

// etcd takes no writes for longer than all grace periods, and kube-apiserver answers reads. The
// kubelets write their Leases and send no beats. None is marked, and one that died meanwhile is
// marked once etcd has space again.
func fullEtcdMarksNoNode(t *testing.T, plane *devcluster.Cluster) {
	p := outageConfig(t, plane)
	kube := p.admin
	nodes := readyNodes(t, kube, p.cluster)
	leases := nodelease.NewWriter(kube)
	live := func(ctx context.Context, node agent.Holder) {
		for ; ctx.Err() == nil; testkit.Pause(ctx, 10*time.Second/outageScale) {
			_ = leases.Renew(ctx, node) // it fails while etcd is full
		}
	}
	var kubelets sync.WaitGroup
	defer kubelets.Wait()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	victimCtx, die := context.WithCancel(ctx)
	defer die()
	victim, others := nodes[:1], nodes[1:]
	kubelets.Go(func() { live(victimCtx, victim[0]) })
	for _, node := range others {
		kubelets.Go(func() { live(ctx, node) })
	}
	startReplica(t, "replica-a", p)
	begin := time.Now()
	testkit.Pause(ctx, 2*outageGrace) // it marks none while all is well
	if err := plane.SetFull(true); err != nil {
		t.Fatal(err)
	}
	empty := sync.OnceFunc(func() {
		if err := plane.SetFull(false); err != nil {
			t.Error(err)
		}
	})
	defer empty()
	if err := leases.Renew(ctx, others[0]); err == nil {
		t.Fatal("etcd takes writes although it is full")
	}
	die()
	testkit.Pause(ctx, *outage)
	empty()
	awaitMarked(t, time.Minute, kube, victim, begin)
	found, err := notReady(t.Context(), kube, others, begin)
	if err != nil || len(found) > 0 {
		t.Errorf("marked by mistake: %v, %v", found, err)
	}
}
