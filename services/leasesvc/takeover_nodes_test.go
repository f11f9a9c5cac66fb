package leasesvc_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/services/leasesvc"
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
// period of the previous one, except for the time of two renewals, which is half of this short one.
func TestTakeover_SilenceOfANodeWithoutASessionIsRemembered(t *testing.T) {
	const grace = 6 * time.Second
	kube := newKube()
	f := newFixture(t, setup{
		kube: kube, leadership: newFakeLeadership(2), loops: []string{leasesvc.NodeHealthLoop}, etcd: &memoryKV{values: map[string][]byte{}},
		config: func(c *leasesvc.Config) { c.Shards, c.NodeHealth.GracePeriod = 2, grace },
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
	time.Sleep(grace * 4 / 5) // the silence that the first term observes
	f.lose(1, "")
	f.leadership.hold(1, 11)
	begin := time.Now()
	f.eventually(func() error {
		node, err := kube.CoreV1().Nodes().Get(t.Context(), silent, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ready := node.Status.Conditions[0].Status; ready != corev1.ConditionUnknown {
			return fmt.Errorf("the silent Node is Ready=%v", ready)
		}
		return nil
	})
	if after := time.Since(begin); after < grace*2/5 || after > grace*4/5 {
		t.Errorf("marked Unknown %v after the new term began, want the second half of its %v", after, grace)
	}
}
