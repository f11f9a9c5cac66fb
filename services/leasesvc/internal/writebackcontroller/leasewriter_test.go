package writebackcontroller_test

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
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodes"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
)

// bench is one Node with its Lease on the real kube-apiserver.
type leaseFixture struct {
	t         *testing.T
	kube      kubernetes.Interface
	namespace string
	node      string
	index     *nodes.Index
	writer    *writebackcontroller.LeaseWriter
	time      time.Time
}

func newLeaseFixture(t *testing.T) *leaseFixture {
	kube := testkit.Kube(t)
	index, err := nodes.New(kube)
	if err != nil {
		t.Fatal(err)
	}
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
	return &leaseFixture{
		t: t, kube: kube, namespace: namespace, node: namespace + "-node", index: index,
		writer: writebackcontroller.NewLeaseWriter(kube.CoordinationV1(), index), time: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
	}
}

// addNode makes the Node and waits until the index has heard of it.
func (f *leaseFixture) addNode() types.UID {
	f.t.Helper()
	node, err := f.kube.CoreV1().Nodes().Create(f.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.node}}, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		err := f.kube.CoreV1().Nodes().Delete(context.Background(), f.node, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			f.t.Error(err)
		}
	})
	testkit.Eventually(f.t, 10*time.Second, func() error {
		uid, err := f.index.UID(f.node)
		if err == nil && uid != node.UID {
			return errors.New("the index still has the earlier node")
		}
		return err
	})
	return node.UID
}

func (f *leaseFixture) removeNode() {
	f.t.Helper()
	if err := f.kube.CoreV1().Nodes().Delete(f.t.Context(), f.node, metav1.DeleteOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

// write renews with a time that is one second later each time.
func (f *leaseFixture) write(last writeback.LeaseRecord) (writeback.LeaseRecord, writebackcontroller.Verb, error) {
	f.time = f.time.Add(time.Second)
	return f.writer.Write(f.t.Context(), writeback.LeaseUpdate{
		Namespace: f.namespace, Name: f.node, Duration: 40 * time.Second, RenewTime: f.time, Last: last,
	})
}

func (f *leaseFixture) mustWrite(last writeback.LeaseRecord, want writebackcontroller.Verb) writeback.LeaseRecord {
	f.t.Helper()
	lease, verb, err := f.write(last)
	if err != nil || verb != want {
		f.t.Fatalf("write: verb %s, error %v; want %s", verb, err, want)
	}
	return lease
}

// stored is what the kube-apiserver has; managed fields are its own bookkeeping.
func (f *leaseFixture) stored() *coordinationv1.Lease {
	f.t.Helper()
	lease, err := f.kube.CoordinationV1().Leases(f.namespace).Get(f.t.Context(), f.node, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	lease.ManagedFields = nil
	return lease
}

func (f *leaseFixture) put(lease *coordinationv1.Lease) *coordinationv1.Lease {
	f.t.Helper()
	lease, err := f.kube.CoordinationV1().Leases(f.namespace).Update(f.t.Context(), lease, metav1.UpdateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return lease
}

func (f *leaseFixture) spec() coordinationv1.LeaseSpec {
	return coordinationv1.LeaseSpec{
		HolderIdentity: new(f.node), LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: f.time},
	}
}

func owner(name string, uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}}
}

func (f *leaseFixture) expect(refs []metav1.OwnerReference, got writeback.LeaseRecord) {
	f.t.Helper()
	stored := f.stored()
	if diff := cmp.Diff(writeback.NewLeaseRecord(stored), got, cmp.AllowUnexported(writeback.LeaseRecord{})); diff != "" {
		f.t.Errorf("returned is not what is stored (-stored +returned):\n%s", diff)
	}
	if diff := cmp.Diff(refs, stored.OwnerReferences); diff != "" {
		f.t.Errorf("owner (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(f.spec(), stored.Spec); diff != "" {
		f.t.Errorf("spec (-want +got):\n%s", diff)
	}
}

func TestWrite_CreatesWithOwnerThenRenewsByPut(t *testing.T) {
	f := newLeaseFixture(t)
	uid := f.addNode()
	lease := f.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	f.expect(owner(f.node, uid), lease)
	renewed := f.mustWrite(lease, writebackcontroller.VerbUpdate)
	f.expect(owner(f.node, uid), renewed)
	if renewed.UID() != lease.UID() || renewed.ResourceVersion() == lease.ResourceVersion() {
		t.Errorf("renewed %s@%s into %s@%s", lease.UID(), lease.ResourceVersion(), renewed.UID(), renewed.ResourceVersion())
	}
}

func TestWrite_ForeignWriteIsReadAndKept(t *testing.T) {
	f := newLeaseFixture(t)
	uid := f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	foreign := f.stored()
	foreign.Labels = map[string]string{"by": "somebody-else"}
	f.put(foreign)
	lease := f.mustWrite(last, writebackcontroller.VerbUpdate)
	f.expect(owner(f.node, uid), lease)
	if labels := f.stored().Labels; labels["by"] != "somebody-else" {
		t.Errorf("the foreign label is lost: %v", labels)
	}
}

func TestWrite_AdoptsOwnerlessLease(t *testing.T) {
	f := newLeaseFixture(t)
	uid := f.addNode()
	ownerless := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: f.node}}
	if _, err := f.kube.CoordinationV1().Leases(f.namespace).Create(t.Context(), ownerless, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.expect(owner(f.node, uid), f.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbUpdate))
}

func TestWrite_WithoutNodeWritesNothing(t *testing.T) {
	f := newLeaseFixture(t)
	testkit.Eventually(t, 10*time.Second, f.index.Check)
	if _, verb, err := f.write(writeback.LeaseRecord{}); !errors.Is(err, nodes.ErrMissing) || verb != writebackcontroller.VerbNone {
		t.Errorf("verb %s, error %v; want none, ErrMissing", verb, err)
	}
	if _, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), f.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after it: error %v, want not found", err)
	}
}

// The cache may not have heard of the Node's end when the garbage collector has removed the Lease already.
func TestWrite_VanishedLeaseOfDeletedNodeIsNotMadeAgain(t *testing.T) {
	f := newLeaseFixture(t)
	uid := f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	late := writebackcontroller.NewLeaseWriter(f.kube.CoordinationV1(), staleNodes{Index: f.index, uid: uid})
	f.removeNode()
	if err := late.Delete(t.Context(), f.namespace, f.node); err != nil {
		t.Fatal(err)
	}
	update := writeback.LeaseUpdate{Namespace: f.namespace, Name: f.node, Duration: time.Second, RenewTime: f.time, Last: last}
	if _, _, err := late.Write(t.Context(), update); !errors.Is(err, nodes.ErrMissing) {
		t.Errorf("error %v, want ErrMissing", err)
	}
	if _, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), f.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after it: error %v, want not found", err)
	}
}

// lateNodes is an index whose watch has not delivered the end of a Node yet.
type staleNodes struct {
	*nodes.Index
	uid types.UID
}

func (l staleNodes) UID(string) (types.UID, error) { return l.uid, nil }

func TestWrite_VanishedLeaseOfLivingNodeIsMadeAgain(t *testing.T) {
	f := newLeaseFixture(t)
	uid := f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	if err := f.kube.CoordinationV1().Leases(f.namespace).Delete(t.Context(), f.node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.expect(owner(f.node, uid), f.mustWrite(last, writebackcontroller.VerbCreate))
}

func TestWrite_LeaseFollowsTheNodeThatCameBackUnderItsName(t *testing.T) {
	f := newLeaseFixture(t)
	f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	f.removeNode()
	uid := f.addNode()
	f.expect(owner(f.node, uid), f.mustWrite(last, writebackcontroller.VerbUpdate))
}

func TestWrite_ForeignHolderIsLeftAlone(t *testing.T) {
	f := newLeaseFixture(t)
	f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	foreign := f.stored()
	foreign.Spec.HolderIdentity = new("somebody-else")
	foreign = f.put(foreign)
	if _, _, err := f.write(last); !errors.Is(err, writeback.ErrForeignHolder) {
		t.Errorf("write: error %v, want ErrForeignHolder", err)
	}
	if err := f.writer.Delete(t.Context(), f.namespace, f.node); err != nil {
		t.Errorf("delete: %v", err)
	}
	if got := f.stored().ResourceVersion; got != foreign.ResourceVersion {
		t.Errorf("resourceVersion %s, want %s as the other holder left it", got, foreign.ResourceVersion)
	}
}

func TestDelete_RemovesTheHoldersLeaseAfterForeignWriteToo(t *testing.T) {
	f := newLeaseFixture(t)
	f.addNode()
	f.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	foreign := f.stored()
	foreign.Labels = map[string]string{"by": "somebody-else"}
	f.put(foreign)
	for range 2 { // the second time there is nothing left to delete
		if err := f.writer.Delete(t.Context(), f.namespace, f.node); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), f.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after it: error %v, want not found", err)
	}
}

func TestWrite_GoesOnAfterTheAPIServerWasAway(t *testing.T) {
	f := newLeaseFixture(t)
	uid := f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, writebackcontroller.VerbCreate)
	cluster := testkit.Cluster(t)
	if err := cluster.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.write(last); err == nil {
		t.Error("a write to a stopped kube-apiserver succeeded")
	}
	if err := cluster.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 20*time.Second, func() error {
		lease, _, err := f.write(last)
		if err == nil {
			last = lease
		}
		return err
	})
	f.expect(owner(f.node, uid), last)
}
