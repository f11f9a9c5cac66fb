package leasesvc_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// clusterFixture is a service on the real kube-apiserver, behind the fence as in production, with
// one Node and its own namespace.
type clusterFixture struct {
	*fixture
	admin     kubernetes.Interface
	namespace string
	node      *corev1.Node
	setup     setup // for another service with the same configuration
}

func newClusterFixture(t *testing.T, plane *devcluster.Cluster) *clusterFixture {
	t.Helper()
	fenced, err := kubernetes.NewForConfig(kubeconn.Fence(plane.RESTConfig()))
	if err != nil {
		t.Fatal(err)
	}
	r := &clusterFixture{}
	if r.admin, err = kubernetes.NewForConfig(plane.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	r.namespace = testkit.Namespace(t, r.admin)
	r.node, err = r.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: r.namespace + "-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := r.admin.CoreV1().Nodes().Delete(context.Background(), r.node.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	r.setup = setup{kube: fenced, config: func(c *leasesvc.Config) {
		c.Classes[0].Namespace, c.Writes.Policy = r.namespace, leasesvc.WriteMirror
		c.Classes[0].HeartbeatInterval, c.Classes[0].RenewInterval = time.Second, 200*time.Millisecond
		c.Classes[0].Grace, c.Classes[0].LeaseDuration = 30*time.Second, 30*time.Second
	}}
	r.fixture = newFixture(t, r.setup)
	return r
}

// renew sends a beat and waits for a write that changes the resourceVersion.
func (r *clusterFixture) renew(sequence uint64, past string) *leasev1.Lease {
	r.t.Helper()
	r.beat(sequence, holder(r.node.Name, "1"))
	var lease *leasev1.Lease
	r.eventually(func() error {
		lease = r.session()
		if lease.Write.State != leasev1.Lease_Write_STATE_WRITTEN || lease.Write.ResourceVersion == past {
			return fmt.Errorf("not renewed: %v", lease.Write)
		}
		return nil
	})
	return lease
}

func (r *clusterFixture) session() *leasev1.Lease {
	r.t.Helper()
	name := fmt.Sprintf("namespaces/%s/leases/%s", r.namespace, r.node.Name)
	response, err := r.leases.GetLease(r.t.Context(), &leasev1.GetLeaseRequest{Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	return response.Lease
}

func (r *clusterFixture) object() (*coordinationv1.Lease, error) {
	return r.admin.CoordinationV1().Leases(r.namespace).Get(r.t.Context(), r.node.Name, metav1.GetOptions{})
}

func (r *clusterFixture) mustObject() *coordinationv1.Lease {
	r.t.Helper()
	lease, err := r.object()
	if err != nil {
		r.t.Fatal(err)
	}
	return lease
}

func TestCluster_LeaseIsCreatedRenewedAndReleased(t *testing.T) {
	t.Parallel()
	r := newClusterFixture(t, testkit.Cluster(t))
	first := r.renew(1, "")
	object := r.mustObject()
	wantOwner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: r.node.Name, UID: r.node.UID}}
	if diff := cmp.Diff(wantOwner, object.OwnerReferences); diff != "" {
		t.Errorf("owner (-want +got):\n%s", diff)
	}
	wantSpec := coordinationv1.LeaseSpec{
		HolderIdentity: new(r.node.Name), LeaseDurationSeconds: new(int32(30)),
		RenewTime: &metav1.MicroTime{Time: first.Write.RenewTime.AsTime()},
	}
	if diff := cmp.Diff(wantSpec, object.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	second := r.renew(2, first.Write.ResourceVersion)
	if !second.Write.RenewTime.AsTime().After(first.Write.RenewTime.AsTime()) {
		t.Errorf("renewTime %v does not follow %v", second.Write.RenewTime.AsTime(), first.Write.RenewTime.AsTime())
	}
	if _, err := r.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder(r.node.Name, "1")}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.object(); !apierrors.IsNotFound(err) {
		t.Errorf("get the released Lease: error %v, want not found", err)
	}
}

// After a takeover, a replica may receive a release for a holder without a session.
func TestCluster_ReleaseWithoutSessionDeletesOnlyItsOwnLease(t *testing.T) {
	t.Parallel()
	r := newClusterFixture(t, testkit.Cluster(t))
	r.renew(1, "")
	release := func() {
		t.Helper()
		next := newFixture(t, r.setup)
		if _, err := next.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder(r.node.Name, "1")}); err != nil {
			t.Fatal(err)
		}
	}
	release()
	if _, err := r.object(); !apierrors.IsNotFound(err) {
		t.Errorf("get the released Lease: error %v, want not found", err)
	}
	kubelets := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: r.node.Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(r.node.Name), RenewTime: new(metav1.NowMicro())},
	}
	if _, err := r.admin.CoordinationV1().Leases(r.namespace).Create(t.Context(), kubelets, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	release()
	if _, err := r.object(); err != nil {
		t.Errorf("the Lease of another writer is gone: %v", err)
	}
}

func TestCluster_ReleaseKeepsALeaseThatAKubeletRenewed(t *testing.T) {
	t.Parallel()
	r := newClusterFixture(t, testkit.Cluster(t))
	r.renew(1, "")
	kubelets := r.mustObject()
	kubelets.Spec.RenewTime = new(metav1.NowMicro())
	kubelets, err := r.admin.CoordinationV1().Leases(r.namespace).Update(t.Context(), kubelets, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder(r.node.Name, "1")}); err != nil {
		t.Fatal(err)
	}
	if object, err := r.object(); err != nil || object.ResourceVersion != kubelets.ResourceVersion {
		t.Errorf("the kubelet's Lease is %v, error %v; want it unchanged", object, err)
	}
}

// blockingTransport blocks the first GET of a path after it was armed, until unblock is closed.
type blockingTransport struct {
	http.RoundTripper
	armed            *atomic.Bool
	path             string
	blocked, unblock chan struct{}
}

func (b blockingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet && request.URL.Path == b.path && b.armed.CompareAndSwap(true, false) {
		close(b.blocked)
		<-b.unblock
	}
	return b.RoundTripper.RoundTrip(request)
}

// The next boot of the holder registers after the release has read the Lease.
func TestCluster_ReleaseKeepsTheLeaseOfANewBoot(t *testing.T) {
	t.Parallel()
	r := newClusterFixture(t, testkit.Cluster(t))
	r.renew(1, "")
	b := blockingTransport{
		armed: &atomic.Bool{}, blocked: make(chan struct{}), unblock: make(chan struct{}),
		path: "/apis/coordination.k8s.io/v1/namespaces/" + r.namespace + "/leases/" + r.node.Name,
	}
	config := kubeconn.Fence(testkit.Cluster(t).RESTConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		b.RoundTripper = next
		return b
	})
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	next := *r
	next.setup.kube = kube
	next.fixture = newFixture(t, next.setup)
	b.armed.Store(true)
	released := make(chan error, 1)
	go func() {
		_, err := next.client.ReleaseLease(t.Context(), &leasev1.ReleaseLeaseRequest{Holder: holder(r.node.Name, "0")})
		released <- err
	}()
	<-b.blocked
	lease := next.renew(1, "")
	close(b.unblock)
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	if object, err := r.object(); err != nil || object.ResourceVersion != lease.Write.ResourceVersion {
		t.Errorf("the Lease of a live holder is %v, error %v; want it unchanged", object, err)
	}
}

func TestCluster_ForeignWriteIsMergedWithTheNextRenewal(t *testing.T) {
	t.Parallel()
	r := newClusterFixture(t, testkit.Cluster(t))
	first := r.renew(1, "")
	foreign := r.mustObject()
	foreign.Labels = map[string]string{"by": "another-writer"}
	if _, err := r.admin.CoordinationV1().Leases(r.namespace).Update(t.Context(), foreign, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	second := r.renew(2, first.Write.ResourceVersion)
	object := r.mustObject()
	if object.Labels["by"] != "another-writer" || object.ResourceVersion != second.Write.ResourceVersion {
		t.Errorf("object %v at %s, want the foreign label at %s", object.Labels, object.ResourceVersion, second.Write.ResourceVersion)
	}
}

func TestCluster_LeaseOfADeletedNodeIsNotRenewed(t *testing.T) {
	t.Parallel()
	r := newClusterFixture(t, testkit.Cluster(t))
	r.renew(1, "")
	if err := r.admin.CoreV1().Nodes().Delete(t.Context(), r.node.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// This control plane has no garbage collector.
	if err := r.admin.CoordinationV1().Leases(r.namespace).Delete(t.Context(), r.node.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	sequence := uint64(1)
	r.eventually(func() error {
		sequence++
		r.beat(sequence, holder(r.node.Name, "1"))
		if w := r.session().Write; w.State != leasev1.Lease_Write_STATE_NO_OWNER {
			return fmt.Errorf("write is %v", w)
		}
		return nil
	})
	if _, err := r.object(); !apierrors.IsNotFound(err) {
		t.Errorf("the Lease was created again: error %v, want not found", err)
	}
}

func beatsSucceedWithoutKubeAPIServer(t *testing.T, plane *devcluster.Cluster) {
	r := newClusterFixture(t, plane)
	first := r.renew(1, "")
	if err := plane.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	r.beat(2, holder(r.node.Name, "1"))
	r.eventually(func() error {
		if w := r.session().Write; w.State != leasev1.Lease_Write_STATE_RETRYING || w.LastError == "" {
			return fmt.Errorf("write is %v", w)
		}
		return nil
	})
	begin := time.Now()
	if got := r.beat(3, holder(r.node.Name, "1"))[0].GetGrant(); got == nil {
		t.Error("a beat was rejected during the outage")
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("a beat waited %v for the kube-apiserver", took)
	}
	if err := plane.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	r.renew(4, first.Write.ResourceVersion)
}

func TestCluster_NewTermAdoptsTheLeasesOfThePreviousOne(t *testing.T) {
	t.Parallel()
	r := newClusterFixture(t, testkit.Cluster(t))
	before := r.renew(1, "")
	r.candidate.Lose()
	r.candidate.Regain()
	r.awaitLeading()
	created := r.mustObject().UID
	var after *leasev1.Lease
	r.eventually(func() error {
		r.beat(1, holder(r.node.Name, "1"))
		if after = r.session(); after.Owner.GetEpoch() != 2 || after.Write.State != leasev1.Lease_Write_STATE_WRITTEN {
			return fmt.Errorf("epoch %d, write %v", after.Owner.GetEpoch(), after.Write)
		}
		return nil
	})
	if r.mustObject().UID != created || !after.Write.RenewTime.AsTime().After(before.Write.RenewTime.AsTime()) {
		t.Errorf("renewTime %v after %v", after.Write.RenewTime.AsTime(), before.Write.RenewTime.AsTime())
	}
}
