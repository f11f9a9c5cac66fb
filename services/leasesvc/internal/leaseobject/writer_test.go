package leaseobject_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/leaseobject"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
)

// bench is one Node with its Lease on the real kube-apiserver.
type bench struct {
	t         *testing.T
	kube      kubernetes.Interface
	namespace string
	node      string
	index     *nodestore.Store
	writer    *leaseobject.Writer
	time      time.Time
}

func newBench(t *testing.T) *bench {
	kube := testkit.Kube(t)
	index := nodestore.New(kube, nodestore.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := index.Run(ctx); err != nil {
			t.Errorf("run node index: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	namespace := testkit.Namespace(t, kube)
	return &bench{
		t: t, kube: kube, namespace: namespace, node: namespace + "-node", index: index,
		writer: leaseobject.NewWriter(kube.CoordinationV1(), index), time: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
	}
}

// addNode makes the Node and waits until the index has heard of it.
func (b *bench) addNode() types.UID {
	b.t.Helper()
	node, err := b.kube.CoreV1().Nodes().Create(b.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: b.node}}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		err := b.kube.CoreV1().Nodes().Delete(context.Background(), b.node, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			b.t.Error(err)
		}
	})
	testkit.Eventually(b.t, 10*time.Second, func() error {
		uid, err := b.index.UID(b.node)
		if err == nil && uid != node.UID {
			return errors.New("the index still has the earlier node")
		}
		return err
	})
	return node.UID
}

func (b *bench) removeNode() {
	b.t.Helper()
	if err := b.kube.CoreV1().Nodes().Delete(b.t.Context(), b.node, metav1.DeleteOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

// write renews with a time that is one second later each time.
func (b *bench) write(last leaseobject.Known) (leaseobject.Known, leaseobject.Verb, error) {
	b.time = b.time.Add(time.Second)
	return b.writer.Write(b.t.Context(), leaseobject.Renewal{
		Namespace: b.namespace, Name: b.node, Duration: 40 * time.Second, RenewTime: b.time, Last: last,
	})
}

func (b *bench) mustWrite(last leaseobject.Known, want leaseobject.Verb) leaseobject.Known {
	b.t.Helper()
	lease, verb, err := b.write(last)
	if err != nil || verb != want {
		b.t.Fatalf("write: verb %s, error %v; want %s", verb, err, want)
	}
	return lease
}

// stored is what the kube-apiserver has; managed fields are its own bookkeeping.
func (b *bench) stored() *coordinationv1.Lease {
	b.t.Helper()
	lease, err := b.kube.CoordinationV1().Leases(b.namespace).Get(b.t.Context(), b.node, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	lease.ManagedFields = nil
	return lease
}

func (b *bench) put(lease *coordinationv1.Lease) *coordinationv1.Lease {
	b.t.Helper()
	lease, err := b.kube.CoordinationV1().Leases(b.namespace).Update(b.t.Context(), lease, metav1.UpdateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return lease
}

func (b *bench) spec() coordinationv1.LeaseSpec {
	return coordinationv1.LeaseSpec{
		HolderIdentity: new(b.node), LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: b.time},
	}
}

func owner(name string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}}
}

func (b *bench) expect(refs []metav1.OwnerReference, got leaseobject.Known) {
	b.t.Helper()
	stored := b.stored()
	if diff := cmp.Diff(leaseobject.Know(stored), got, cmp.AllowUnexported(leaseobject.Known{})); diff != "" {
		b.t.Errorf("returned is not what is stored (-stored +returned):\n%s", diff)
	}
	if diff := cmp.Diff(refs, stored.OwnerReferences); diff != "" {
		b.t.Errorf("owner (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(b.spec(), stored.Spec); diff != "" {
		b.t.Errorf("spec (-want +got):\n%s", diff)
	}
}

func TestWrite_CreatesWithOwnerThenRenewsByPut(t *testing.T) {
	b := newBench(t)
	uid := b.addNode()
	lease := b.mustWrite(leaseobject.Known{}, leaseobject.Create)
	b.expect(owner(b.node, uid), lease)
	renewed := b.mustWrite(lease, leaseobject.Update)
	b.expect(owner(b.node, uid), renewed)
	if renewed.UID() != lease.UID() || renewed.ResourceVersion() == lease.ResourceVersion() {
		t.Errorf("renewed %s@%s into %s@%s", lease.UID(), lease.ResourceVersion(), renewed.UID(), renewed.ResourceVersion())
	}
}

func TestWrite_ForeignWriteIsReadAndKept(t *testing.T) {
	b := newBench(t)
	uid := b.addNode()
	last := b.mustWrite(leaseobject.Known{}, leaseobject.Create)
	foreign := b.stored()
	foreign.Labels = map[string]string{"by": "somebody-else"}
	b.put(foreign)
	lease := b.mustWrite(last, leaseobject.Update)
	b.expect(owner(b.node, uid), lease)
	if labels := b.stored().Labels; labels["by"] != "somebody-else" {
		t.Errorf("the foreign label is lost: %v", labels)
	}
}

func TestWrite_AdoptsOwnerlessLease(t *testing.T) {
	b := newBench(t)
	uid := b.addNode()
	ownerless := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: b.node}}
	if _, err := b.kube.CoordinationV1().Leases(b.namespace).Create(t.Context(), ownerless, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b.expect(owner(b.node, uid), b.mustWrite(leaseobject.Known{}, leaseobject.Update))
}

func TestWrite_WithoutNodeWritesNothing(t *testing.T) {
	b := newBench(t)
	testkit.Eventually(t, 10*time.Second, b.index.Check)
	if _, verb, err := b.write(leaseobject.Known{}); !errors.Is(err, nodestore.ErrNodeMissing) || verb != leaseobject.None {
		t.Errorf("verb %s, error %v; want none, ErrMissing", verb, err)
	}
	if _, err := b.kube.CoordinationV1().Leases(b.namespace).Get(t.Context(), b.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after it: error %v, want not found", err)
	}
}

// The cache may not have heard of the Node's end when the garbage collector has removed the Lease already.
func TestWrite_VanishedLeaseOfDeletedNodeIsNotMadeAgain(t *testing.T) {
	b := newBench(t)
	uid := b.addNode()
	last := b.mustWrite(leaseobject.Known{}, leaseobject.Create)
	late := leaseobject.NewWriter(b.kube.CoordinationV1(), lateNodes{Store: b.index, uid: uid})
	b.removeNode()
	if err := late.Delete(t.Context(), b.namespace, b.node); err != nil {
		t.Fatal(err)
	}
	renewal := leaseobject.Renewal{Namespace: b.namespace, Name: b.node, Duration: time.Second, RenewTime: b.time, Last: last}
	if _, _, err := late.Write(t.Context(), renewal); !errors.Is(err, nodestore.ErrNodeMissing) {
		t.Errorf("error %v, want ErrMissing", err)
	}
	if _, err := b.kube.CoordinationV1().Leases(b.namespace).Get(t.Context(), b.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after it: error %v, want not found", err)
	}
}

// lateNodes is an index whose watch has not delivered the end of a Node yet.
type lateNodes struct {
	*nodestore.Store
	uid types.UID
}

func (l lateNodes) UID(string) (types.UID, error) { return l.uid, nil }

func TestWrite_VanishedLeaseOfLivingNodeIsMadeAgain(t *testing.T) {
	b := newBench(t)
	uid := b.addNode()
	last := b.mustWrite(leaseobject.Known{}, leaseobject.Create)
	if err := b.kube.CoordinationV1().Leases(b.namespace).Delete(t.Context(), b.node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b.expect(owner(b.node, uid), b.mustWrite(last, leaseobject.Create))
}

func TestWrite_LeaseFollowsTheNodeThatCameBackUnderItsName(t *testing.T) {
	b := newBench(t)
	b.addNode()
	last := b.mustWrite(leaseobject.Known{}, leaseobject.Create)
	b.removeNode()
	uid := b.addNode()
	b.expect(owner(b.node, uid), b.mustWrite(last, leaseobject.Update))
}

func TestWrite_ForeignHolderIsLeftAlone(t *testing.T) {
	b := newBench(t)
	b.addNode()
	last := b.mustWrite(leaseobject.Known{}, leaseobject.Create)
	foreign := b.stored()
	foreign.Spec.HolderIdentity = new("somebody-else")
	foreign = b.put(foreign)
	if _, _, err := b.write(last); !errors.Is(err, leaseobject.ErrForeignHolder) {
		t.Errorf("write: error %v, want ErrForeignHolder", err)
	}
	if err := b.writer.Delete(t.Context(), b.namespace, b.node); err != nil {
		t.Errorf("delete: %v", err)
	}
	if got := b.stored().ResourceVersion; got != foreign.ResourceVersion {
		t.Errorf("resourceVersion %s, want %s as the other holder left it", got, foreign.ResourceVersion)
	}
}

func TestDelete_RemovesTheHoldersLeaseAfterForeignWriteToo(t *testing.T) {
	b := newBench(t)
	b.addNode()
	b.mustWrite(leaseobject.Known{}, leaseobject.Create)
	foreign := b.stored()
	foreign.Labels = map[string]string{"by": "somebody-else"}
	b.put(foreign)
	for range 2 { // the second time there is nothing left to delete
		if err := b.writer.Delete(t.Context(), b.namespace, b.node); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.kube.CoordinationV1().Leases(b.namespace).Get(t.Context(), b.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after it: error %v, want not found", err)
	}
}

func TestWrite_GoesOnAfterTheAPIServerWasAway(t *testing.T) {
	b := newBench(t)
	uid := b.addNode()
	last := b.mustWrite(leaseobject.Known{}, leaseobject.Create)
	cluster := testkit.Cluster(t)
	if err := cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.write(last); err == nil {
		t.Error("a write to a stopped kube-apiserver succeeded")
	}
	if err := cluster.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 20*time.Second, func() error {
		lease, _, err := b.write(last)
		if err == nil {
			last = lease
		}
		return err
	})
	b.expect(owner(b.node, uid), last)
}
