package leasesvc_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// memoryKV keeps keys in memory. Its transactions always succeed.
type memoryKV struct {
	clientv3.KV

	mu     sync.Mutex // guards values
	values map[string][]byte
}

func (kv *memoryKV) Get(_ context.Context, key string, _ ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	response := &clientv3.GetResponse{}
	if value, found := kv.values[key]; found {
		response.Kvs = []*mvccpb.KeyValue{{Key: []byte(key), Value: value}}
	}
	return response, nil
}

func (kv *memoryKV) Txn(context.Context) clientv3.Txn { return &memoryTxn{kv: kv} }

type memoryTxn struct {
	kv         *memoryKV
	operations []clientv3.Op
}

func (t *memoryTxn) If(...clientv3.Cmp) clientv3.Txn { return t }

func (t *memoryTxn) Then(operations ...clientv3.Op) clientv3.Txn {
	t.operations = operations
	return t
}

func (t *memoryTxn) Else(...clientv3.Op) clientv3.Txn { return t }

func (t *memoryTxn) Commit() (*clientv3.TxnResponse, error) {
	t.kv.mu.Lock()
	defer t.kv.mu.Unlock()
	for _, operation := range t.operations {
		if operation.IsPut() {
			t.kv.values[string(operation.KeyBytes())] = operation.ValueBytes()
		} else {
			delete(t.kv.values, string(operation.KeyBytes()))
		}
	}
	return &clientv3.TxnResponse{Succeeded: true}, nil
}

// A Node has no session, and its kubelet is silent. A new term of its shard continues the grace
// period of the previous one, but observes the Node itself for the time in which an agent that lost
// its server beats again.
func TestTakeover_SilenceOfANodeWithoutASessionIsRemembered(t *testing.T) {
	t.Parallel()
	const grace, least = 12 * time.Second, sessioncontroller.ReconnectTime + 200*time.Millisecond
	kube := newKube()
	f := newFixture(t, setup{
		kube: kube, leadership: newFakeLeadership(2), loops: []string{leasesvc.NodeHealthLoop}, etcd: &memoryKV{values: map[string][]byte{}},
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
	f.leadership.hold(0, 10)
	f.leadership.hold(1, 10)
	f.awaitShard(1, "LEASE_NOT_FOUND")
	// The other Nodes beat: a replica that hears none of its Nodes passes on no silence.
	sequence := uint64(0)
	liveUntil := func(done func() bool) {
		for ; !done(); time.Sleep(50 * time.Millisecond) {
			sequence++
			f.beat(sequence, holder("n1", "1"), holder("n2", "1"), holder("n3", "1"))
		}
	}
	begin := time.Now()
	liveUntil(func() bool { return time.Since(begin) > grace*3/4 }) // the first term observes the silence
	f.lose(1, "")
	f.leadership.hold(1, 11)
	begin = time.Now()
	liveUntil(func() bool {
		node, err := kube.CoreV1().Nodes().Get(t.Context(), silent, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ready := node.Status.Conditions[0].Status
		if time.Since(begin) > grace-time.Second {
			t.Fatalf("the silent Node is Ready=%v %v after the new term began; its grace period is %v in all", ready, time.Since(begin), grace)
		}
		return ready == corev1.ConditionUnknown
	})
	if after := time.Since(begin); after < least {
		t.Errorf("marked Unknown %v after the new term began, want %v of own observation", after, least)
	}
}
