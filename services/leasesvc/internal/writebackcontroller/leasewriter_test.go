package writebackcontroller_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/planned"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writebackcontroller"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// leaseFixture is one Node and its Lease on a real kube-apiserver.
type leaseFixture struct {
	t         *testing.T
	kube      kubernetes.Interface
	namespace string
	node      string
	index     *nodestore.Store
	writer    *writebackcontroller.LeaseWriter
	time      time.Time
}

func newLeaseFixture(t *testing.T) *leaseFixture {
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
	return &leaseFixture{
		t: t, kube: kube, namespace: namespace, node: namespace + "-node", index: index,
		writer: writebackcontroller.NewLeaseWriter(kube.CoordinationV1(), index), time: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
	}
}

// addNode creates the Node and waits until the index has it.
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
	testkit.Eventually(f.t, time.Minute, func() error {
		uid, err := f.index.UID(f.node)
		if err == nil && uid != node.UID {
			return errors.New("the index still has the earlier Node")
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

// write writes with a renewTime that advances by a second with each call.
func (f *leaseFixture) write(last writeback.LeaseRecord) (writeback.LeaseRecord, planned.Verb, error) {
	f.time = f.time.Add(time.Second)
	return f.writer.Write(f.t.Context(), writeback.LeaseUpdate{
		Namespace: f.namespace, Name: f.node, Duration: 40 * time.Second, RenewTime: f.time, Last: last,
	})
}

func (f *leaseFixture) mustWrite(last writeback.LeaseRecord, want planned.Verb) writeback.LeaseRecord {
	f.t.Helper()
	lease, verb, err := f.write(last)
	if err != nil || verb != want {
		f.t.Fatalf("write: verb %s, error %v; want %s", verb, err, want)
	}
	return lease
}

// stored returns the Lease from the kube-apiserver, without managed fields.
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
		f.t.Errorf("returned record (-stored +returned):\n%s", diff)
	}
	if diff := cmp.Diff(refs, stored.OwnerReferences); diff != "" {
		f.t.Errorf("owner (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(f.spec(), stored.Spec); diff != "" {
		f.t.Errorf("spec (-want +got):\n%s", diff)
	}
}

func TestWrite_CreatesWithOwnerThenUpdates(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	uid := f.addNode()
	lease := f.mustWrite(writeback.LeaseRecord{}, planned.Create)
	f.expect(owner(f.node, uid), lease)
	renewed := f.mustWrite(lease, planned.Update)
	f.expect(owner(f.node, uid), renewed)
	if renewed.UID() != lease.UID() || renewed.ResourceVersion() == lease.ResourceVersion() {
		t.Errorf("renewed %s@%s into %s@%s", lease.UID(), lease.ResourceVersion(), renewed.UID(), renewed.ResourceVersion())
	}
}

func TestWrite_KeepsForeignLabels(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	uid := f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, planned.Create)
	foreign := f.stored()
	foreign.Labels = map[string]string{"by": "another-writer"}
	f.put(foreign)
	lease := f.mustWrite(last, planned.Update)
	f.expect(owner(f.node, uid), lease)
	if labels := f.stored().Labels; labels["by"] != "another-writer" {
		t.Errorf("the foreign label is lost: %v", labels)
	}
}

func TestWrite_AdoptsOwnerlessLease(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	uid := f.addNode()
	ownerless := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: f.node}}
	if _, err := f.kube.CoordinationV1().Leases(f.namespace).Create(t.Context(), ownerless, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.expect(owner(f.node, uid), f.mustWrite(writeback.LeaseRecord{}, planned.Update))
}

func TestWrite_WithoutNodeCreatesNoLease(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	testkit.Eventually(t, time.Minute, f.index.Check)
	if _, verb, err := f.write(writeback.LeaseRecord{}); !errors.Is(err, nodestore.ErrNodeMissing) || verb != planned.None {
		t.Errorf("verb %s, error %v; want none, ErrMissing", verb, err)
	}
	if _, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), f.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get afterwards: error %v, want not found", err)
	}
}

// The garbage collector may delete the Lease before the cache shows the deletion of the Node.
func TestWrite_DeletedLeaseOfDeletedNodeIsNotCreatedAgain(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	uid := f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, planned.Create)
	late := writebackcontroller.NewLeaseWriter(f.kube.CoordinationV1(), staleNodes{Store: f.index, uid: uid})
	f.removeNode()
	if err := late.Delete(t.Context(), f.namespace, f.node); err != nil {
		t.Fatal(err)
	}
	update := writeback.LeaseUpdate{Namespace: f.namespace, Name: f.node, Duration: time.Second, RenewTime: f.time, Last: last}
	if _, _, err := late.Write(t.Context(), update); !errors.Is(err, nodestore.ErrNodeMissing) {
		t.Errorf("error %v, want ErrMissing", err)
	}
	if _, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), f.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get afterwards: error %v, want not found", err)
	}
}

// staleNodes is an index whose watch has not delivered the deletion of a Node.
type staleNodes struct {
	*nodestore.Store
	uid types.UID
}

func (l staleNodes) UID(string) (types.UID, error) { return l.uid, nil }

func TestWrite_DeletedLeaseOfExistingNodeIsCreatedAgain(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	uid := f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, planned.Create)
	if err := f.kube.CoordinationV1().Leases(f.namespace).Delete(t.Context(), f.node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.expect(owner(f.node, uid), f.mustWrite(last, planned.Create))
}

func TestWrite_LeaseGetsTheOwnerOfARecreatedNode(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, planned.Create)
	f.removeNode()
	uid := f.addNode()
	f.expect(owner(f.node, uid), f.mustWrite(last, planned.Update))
}

func TestWrite_LeaseOfAnotherHolderIsNotChanged(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, planned.Create)
	foreign := f.stored()
	foreign.Spec.HolderIdentity = new("another-writer")
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

func TestDelete_RemovesTheLeaseAfterAForeignWrite(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	f.addNode()
	f.mustWrite(writeback.LeaseRecord{}, planned.Create)
	foreign := f.stored()
	foreign.Labels = map[string]string{"by": "another-writer"}
	f.put(foreign)
	for range 2 { // the second time there is no Lease
		if err := f.writer.Delete(t.Context(), f.namespace, f.node); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), f.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get afterwards: error %v, want not found", err)
	}
}

func TestWrite_ContinuesAfterAnOutageOfTheAPIServer(t *testing.T) {
	f := newLeaseFixture(t)
	uid := f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, planned.Create)
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

// writeAgent writes the Lease of a holder that is not a Node.
func (f *leaseFixture) writeAgent(last writeback.LeaseRecord, change func(*writeback.LeaseUpdate)) (writeback.LeaseRecord, planned.Verb) {
	f.t.Helper()
	f.time = f.time.Add(time.Second)
	r := writeback.LeaseUpdate{
		Namespace: f.namespace, Name: f.node, Class: "agent", Duration: 40 * time.Second, RenewTime: f.time, Last: last,
	}
	if change != nil {
		change(&r)
	}
	known, verb, err := f.writer.Write(f.t.Context(), r)
	if err != nil {
		f.t.Fatal(err)
	}
	return known, verb
}

func TestWrite_LeaseOfAnAgentHasAClassLabelAndNoOwner(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	known, verb := f.writeAgent(writeback.LeaseRecord{}, nil)
	if verb != planned.Create {
		t.Errorf("verb %s, want create", verb)
	}
	known, verb = f.writeAgent(known, nil)
	if verb != planned.Update {
		t.Errorf("verb %s, want update", verb)
	}
	got := f.stored()
	if diff := cmp.Diff(map[string]string{writeback.ClassLabel: "agent"}, got.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	f.expect(nil, known)
}

func TestWrite_ExpiryIsWrittenOnceAndEndsWithTheNextBeat(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	uid := f.addNode()
	expire := func(r *writeback.LeaseUpdate) {
		r.Class, r.Duration, r.RenewTime, r.ExpireTime = "", 500*time.Second, f.time, f.time.Add(20*time.Second)
	}
	if _, verb := f.writeAgent(writeback.LeaseRecord{}, expire); verb != planned.None {
		t.Errorf("without a Lease: verb %s, want none", verb)
	}
	known := f.mustWrite(writeback.LeaseRecord{}, planned.Create)
	known, verb := f.writeAgent(known, expire)
	if got := f.stored().Spec; verb != planned.Update || *got.LeaseDurationSeconds != 20 || !got.RenewTime.Time.Equal(f.time) {
		t.Errorf("verb %s, spec %+v; want 20 s from %v", verb, got, f.time)
	}
	if _, verb = f.writeAgent(writeback.LeaseRecord{}, func(r *writeback.LeaseUpdate) {
		expire(r)
		r.RenewTime, r.ExpireTime = r.RenewTime.Add(-time.Second), r.ExpireTime.Add(-time.Second) // as another replica would write it
	}); verb != planned.None {
		t.Errorf("expiry written already: verb %s, want none", verb)
	}
	f.expect(owner(f.node, uid), f.mustWrite(known, planned.Update))
}

func TestWrite_ExpiryIsNotWrittenOverTheRenewalOfAKubelet(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	f.addNode()
	known := f.mustWrite(writeback.LeaseRecord{}, planned.Create)
	kubelets := f.stored()
	kubelets.Spec.LeaseDurationSeconds, kubelets.Spec.RenewTime = new(int32(40)), &metav1.MicroTime{Time: f.time.Add(time.Second)}
	kubelets = f.put(kubelets)
	for _, last := range []writeback.LeaseRecord{known, {}} {
		_, verb := f.writeAgent(last, func(r *writeback.LeaseUpdate) {
			r.Class, r.Duration, r.RenewTime, r.ExpireTime = "", 500*time.Second, f.time, f.time.Add(20*time.Second)
		})
		if got := f.stored(); got.ResourceVersion != kubelets.ResourceVersion {
			t.Errorf("verb %s, the Lease is now %+v", verb, got.Spec)
		}
	}
}

func TestWrite_KeepsForeignAnnotationsAndOwners(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	uid := f.addNode()
	last := f.mustWrite(writeback.LeaseRecord{}, planned.Create)
	foreign := f.stored()
	foreign.Annotations = map[string]string{"example.org/note": "mine"}
	other := metav1.OwnerReference{APIVersion: "example.org/v1", Kind: "Machine", Name: "m", UID: "6b29fc40-ca47-1067-b31d-00dd010662da"}
	foreign.OwnerReferences = append(foreign.OwnerReferences, other)
	f.put(foreign)
	for range 2 { // first after a conflict, then from the record
		last = f.mustWrite(last, planned.Update)
	}
	f.expect(append(owner(f.node, uid), other), last)
	if got := f.stored().Annotations["example.org/note"]; got != "mine" {
		t.Errorf("the foreign annotation is %q", got)
	}
}

func TestDelete_KeepsALeaseThatAnotherWriterRenewed(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	known, _ := f.writeAgent(writeback.LeaseRecord{}, nil)
	foreign := f.stored()
	foreign.Spec.RenewTime = &metav1.MicroTime{Time: f.time.Add(time.Minute)}
	foreign = f.put(foreign) // as a kubelet does for its own Lease
	if err := f.writer.Delete(t.Context(), f.namespace, f.node); err != nil {
		t.Error(err)
	}
	if got := f.stored().ResourceVersion; got != foreign.ResourceVersion {
		t.Fatalf("resourceVersion %s, want %s as the other writer left it", got, foreign.ResourceVersion)
	}
	f.time = f.time.Add(time.Hour)
	f.writeAgent(known, nil)
	for range 2 { // the second time there is no Lease
		if err := f.writer.Delete(t.Context(), f.namespace, f.node); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), f.node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get afterwards: error %v, want not found", err)
	}
}

func TestDeleteUnchanged_NeedsTheLeaseAsListed(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	f.writeAgent(writeback.LeaseRecord{}, nil)
	var seen []coordinationv1.Lease
	err := f.writer.List(t.Context(), f.namespace, writeback.ClassLabel+"=agent", func(page []coordinationv1.Lease) error {
		seen = append(seen, page...)
		return nil
	})
	if err != nil || len(seen) != 1 {
		t.Fatalf("%d leases, error %v", len(seen), err)
	}
	if !writeback.Orphaned(&seen[0], "agent", f.time.Add(time.Hour), time.Minute) {
		t.Errorf("not orphaned: %+v", seen[0])
	}
	f.writeAgent(writeback.LeaseRecord{}, nil) // the holder is back
	if err := f.writer.DeleteUnchanged(t.Context(), &seen[0]); !apierrors.IsConflict(err) {
		t.Errorf("delete of a changed Lease: error %v, want a conflict", err)
	}
	now := f.stored()
	if err := f.writer.DeleteUnchanged(t.Context(), now); err != nil {
		t.Errorf("delete: %v", err)
	}
}

// requestCounter counts requests.
type requestCounter struct {
	next     http.RoundTripper
	requests *atomic.Int32
}

func (c requestCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return c.next.RoundTrip(r)
}

func TestWrite_MissingNamespaceIsNotRetried(t *testing.T) {
	t.Parallel()
	f := newLeaseFixture(t)
	f.addNode()
	var requests atomic.Int32
	config := testkit.Cluster(t).RESTConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return requestCounter{next: next, requests: &requests} })
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	f.writer, f.namespace = writebackcontroller.NewLeaseWriter(kube.CoordinationV1(), f.index), "no-such-namespace"
	_, verb, err := f.write(writeback.LeaseRecord{})
	if verb != planned.Create || !apierrors.IsNotFound(err) {
		t.Errorf("verb %s, error %v; want a create that fails with NotFound", verb, err)
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests, want one get and one create", n)
	}
}
