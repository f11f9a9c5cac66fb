package leasesvc_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

// outage is longer than every grace of the test. make outage has one of five minutes.
var outage = flag.Duration("leasesvc.outage", 15*time.Second, "how long etcd, and kube-apiserver, are away in TestOutage")

const outageNodes = 20

// readyNodes makes Nodes that have said that they are ready, and nothing since.
func readyNodes(t *testing.T, kube kubernetes.Interface, prefix string) []agent.Holder {
	t.Helper()
	holders := crowd(prefix, outageNodes)
	for _, h := range holders {
		node, err := kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.Name}}, metav1.CreateOptions{})
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

// notReady names the nodes that are not ready, and those that were not at some time since a moment.
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

// etcd goes away under living nodes for longer than all their graces. While it is away nobody can be judged; when it is back
// everybody is heard before anybody is. One who fell silent meanwhile shows that judging goes on.
func TestOutage_OfEtcdKillsNobody(t *testing.T) {
	kube := testkit.Kube(t)
	p := takeoverPlan(t)
	p.loops = []string{leasesvc.NodeHealthLoop}
	p.config.Classes[0].Namespace = p.cluster
	p.config.Classes[0].LeaseDuration = beatGrace
	p.config.NodeHealth.GracePeriod = beatGrace
	nodes := readyNodes(t, kube, p.cluster)
	victim, nodes := nodes[:1], nodes[1:]
	a, b := startReplica(t, "replica-a", p), startReplica(t, "replica-b", p)
	awaitShares(t, a, b)
	dying, die := beatFor(t, victim, a, b)
	others := crowd("living", 1000)
	guests, _ := beatFor(t, others, a, b)
	residents, _ := beatFor(t, nodes, a, b)
	awaitWelcome(t, dying, residents, guests)
	deaths := watchDeaths(t, a, b)
	begin := time.Now()

	cluster := testkit.Cluster(t)
	if err := cluster.StopEtcd(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(*outage) // the outage is what is tested
	die()
	if err := cluster.StartEtcd(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	awaitShares(t, a, b)
	t.Logf("all shards were held again %v after etcd was back", time.Since(back).Round(time.Millisecond))
	awaitWelcome(t, residents, guests)
	t.Logf("all holders were welcome again %v after etcd was back", time.Since(back).Round(time.Millisecond))
	// After a long outage a kube-apiserver itself takes up to two minutes to dial etcd again.
	testkit.Eventually(t, 3*time.Minute, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := kube.CoreV1().Nodes().Get(ctx, victim[0].Name, metav1.GetOptions{})
		return err
	})
	t.Logf("the kube-apiserver answered again %v after etcd was back", time.Since(back).Round(time.Millisecond))

	testkit.Eventually(t, 2*time.Minute, func() error {
		found, err := notReady(t.Context(), kube, victim, begin)
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("%s has not been declared", victim[0].Name)
		}
		return err
	})
	t.Logf("the node that died during the outage was declared %v after etcd was back", time.Since(back).Round(time.Millisecond))
	found, err := notReady(t.Context(), kube, nodes, begin)
	if err != nil {
		t.Fatal(err)
	}
	for _, mistake := range found {
		t.Errorf("declared by mistake: %s", mistake)
	}
	deaths.expectAlive(t, "during and after the outage", append(others, nodes...))
}
