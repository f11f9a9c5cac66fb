package leasesvc_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// A Node has no session, and its kubelet is silent. A new term of its shard gives it a new grace
// period, as a new leader of upstream's controller does. The silence in a checkpoint of an older
// version does not shorten it.
func TestTakeover_NodeWithoutASessionHasANewGracePeriod(t *testing.T) {
	t.Parallel()
	const grace = 8 * time.Second
	kube, etcd := newKube(), testkit.Etcd(t)
	f := newFixture(t, setup{
		kube: kube, leadership: newFakeLeadership(2), loops: []string{leasesvc.NodeHealthLoop}, etcd: etcd,
		config: func(c *leasesvc.Config) {
			c.Shards, c.NodeHealth.GracePeriod, c.Classes[0].HeartbeatInterval = 2, grace, 100*time.Millisecond
		},
	})
	silent := f.nameIn(1, "silent")
	node := nodeObject(silent)
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}
	if _, err := kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	older := checkpoint.Encode([]checkpoint.Entry{{Class: "node.lease", Name: silent, Boot: string(node.UID), Silence: time.Hour}})
	if _, err := etcd.Put(t.Context(), etcdconn.KeyPrefix(member.Cluster)+"checkpoints/leasesvc/1", string(older)); err != nil {
		t.Fatal(err)
	}
	f.leadership.hold(0, 10)
	f.leadership.hold(1, 10)
	f.awaitShard(1, "LEASE_NOT_FOUND")
	// The other Nodes beat, so that the silence of this one is not that of most Nodes.
	sequence := uint64(0)
	beatUntil := func(done func() bool) {
		for ; !done(); time.Sleep(50 * time.Millisecond) {
			sequence++
			f.beat(sequence, holder("n1", "1"), holder("n2", "1"), holder("n3", "1"))
		}
	}
	isUnknown := func() bool {
		node, err := kube.CoreV1().Nodes().Get(t.Context(), silent, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return node.Status.Conditions[0].Status == corev1.ConditionUnknown
	}
	begin := time.Now()
	beatUntil(func() bool { return time.Since(begin) > grace*3/4 }) // the first term observes the silence
	if isUnknown() {
		t.Fatalf("marked Unknown in the first term, before its grace period of %v ended", grace)
	}
	f.lose(1, "")
	begin = time.Now()
	f.leadership.hold(1, 11)
	beatUntil(func() bool { return isUnknown() || time.Since(begin) > patience })
	if after := time.Since(begin); after < grace || after > grace+5*time.Second {
		t.Errorf("marked Unknown %v after the new term began, want its grace period of %v", after, grace)
	}
}
