package nodelease_test

import (
	"context"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/agent"
	"github.com/trivet-dev/trivet/agent/nodelease"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// finalizer keeps an object that is deleted.
const finalizer = "trivet.dev/test"

type fixture struct {
	*testing.T
	kube   kubernetes.Interface
	writer *nodelease.Writer
	name   string
}

// newFixture returns a Writer and the name of a Node that does not exist yet.
func newFixture(t *testing.T, name string) *fixture {
	t.Parallel()
	f := &fixture{T: t, kube: testkit.Kube(t), name: name}
	f.writer = nodelease.NewWriter(f.kube)
	t.Cleanup(func() {
		ctx := context.Background()
		for _, err := range []error{f.removeFinalizers(ctx), f.kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})} {
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	return f
}

// removeFinalizers lets the objects go whose deletion has begun, and deletes the Lease: there is no
// garbage collector.
func (f *fixture) removeFinalizers(ctx context.Context) error {
	patch, options := []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}
	if _, err := f.kube.CoreV1().Nodes().Patch(ctx, f.name, "application/merge-patch+json", patch, options); err != nil {
		return err
	}
	leases := f.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if _, err := leases.Patch(ctx, f.name, "application/merge-patch+json", patch, options); err != nil {
		return err
	}
	return leases.Delete(ctx, f.name, metav1.DeleteOptions{})
}

func (f *fixture) renew() error {
	return f.writer.Renew(f.Context(), agent.Holder{Class: "node", Name: f.name, BootID: "1"})
}

func (f *fixture) createNode(finalizers ...string) *corev1.Node {
	f.Helper()
	node, err := f.kube.CoreV1().Nodes().Create(f.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.name, Finalizers: finalizers}}, metav1.CreateOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return node
}

func (f *fixture) lease() *coordinationv1.Lease {
	f.Helper()
	lease, err := f.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(f.Context(), f.name, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return lease
}

// renewed renews the Lease and returns it.
func (f *fixture) renewed() *coordinationv1.Lease {
	f.Helper()
	if err := f.renew(); err != nil {
		f.Fatal(err)
	}
	return f.lease()
}

// change changes the Lease as another writer.
func (f *fixture) change(change func(*coordinationv1.Lease)) *coordinationv1.Lease {
	f.Helper()
	lease := f.lease()
	change(lease)
	lease, err := f.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Update(f.Context(), lease, metav1.UpdateOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return lease
}

// refuses checks that Renew fails and writes nothing.
func (f *fixture) refuses(what, want string) {
	f.Helper()
	before := f.lease().ResourceVersion
	if err := f.renew(); err == nil || !strings.Contains(err.Error(), want) {
		f.Errorf("%s: error %v, want %q", what, err, want)
	}
	if after := f.lease().ResourceVersion; after != before {
		f.Errorf("%s: version %s is now %s", what, before, after)
	}
}

func TestRenew_CreatesTheLeaseOfAnExistingNode(t *testing.T) {
	f := newFixture(t, "nodelease-created")
	if err := f.renew(); !apierrors.IsNotFound(err) {
		t.Errorf("without a Node: %v", err)
	}
	node := f.createNode()
	created := f.renewed()
	owners := created.OwnerReferences
	if len(owners) != 1 || owners[0].Kind != "Node" || owners[0].UID != node.UID || *created.Spec.HolderIdentity != f.name || *created.Spec.LeaseDurationSeconds != 40 {
		t.Errorf("created %+v", created)
	}
	if age := time.Since(created.Spec.RenewTime.Time); age < 0 || age > time.Minute {
		t.Errorf("the renewal is %v old", age)
	}
}

func TestRenew_ChangesTheTimeAndNeverSetsItBack(t *testing.T) {
	f := newFixture(t, "nodelease-renewed")
	f.createNode()
	first := f.renewed()
	if second := f.renewed(); !second.Spec.RenewTime.After(first.Spec.RenewTime.Time) {
		t.Errorf("renewed at %v after %v", second.Spec.RenewTime, first.Spec.RenewTime)
	}
	ahead := metav1.NewMicroTime(time.Now().Add(time.Hour))
	f.change(func(l *coordinationv1.Lease) {
		l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = &ahead, new(int32(60))
		l.Labels, l.OwnerReferences = map[string]string{"a": "b"}, nil
	})
	before := f.lease()
	renewed := f.renewed()
	if !renewed.Spec.RenewTime.After(before.Spec.RenewTime.Time) || *renewed.Spec.LeaseDurationSeconds != 60 || renewed.Labels["a"] != "b" || renewed.OwnerReferences != nil {
		t.Errorf("renewed %+v after %+v", renewed, before)
	}
	if err := f.writer.Renew(t.Context(), agent.Holder{Class: "sidecar", Name: f.name, BootID: "1"}); err != nil {
		t.Errorf("a holder of another class: %v", err)
	}
	if after := f.lease(); after.ResourceVersion != renewed.ResourceVersion {
		t.Error("a holder of another class wrote the Lease")
	}
}

func TestRenew_LeavesTheLeaseOfAnotherHolder(t *testing.T) {
	f := newFixture(t, "nodelease-foreign")
	f.createNode()
	f.renewed()
	f.change(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("another") })
	f.refuses("another holder", `its holder is "another", not the Node`)
}

func TestRenew_LeavesWhatIsBeingDeleted(t *testing.T) {
	f := newFixture(t, "nodelease-deleted")
	f.createNode(finalizer)
	leases := f.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	f.renewed()
	f.change(func(l *coordinationv1.Lease) { l.Finalizers = []string{finalizer} })
	if err := leases.Delete(t.Context(), f.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.refuses("a Lease that is being deleted", "it is being deleted")
	f.change(func(l *coordinationv1.Lease) { l.Finalizers = nil })
	if err := f.kube.CoreV1().Nodes().Delete(t.Context(), f.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.renew(); err == nil || !strings.Contains(err.Error(), "its Node is being deleted") {
		t.Errorf("a Node that is being deleted: %v", err)
	}
	if _, err := leases.Get(t.Context(), f.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Lease was created: %v", err)
	}
}
