package endpointslices

import (
	"fmt"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/slicesvc"
)

// A Deployment lives its life, and the garbage collector clears up after its Service: the slices
// are right at every rest, and slicesvc alone has written them.
func TestManager_DeploymentsAreServedByUsAlone(t *testing.T) {
	s := newStage(t)
	s.manage(withoutSlices)
	s.serve()
	s.namespace("shop")
	web := s.deploy("shop", "web", 5)
	s.eventually(func() error { return web.served(5) })
	web.scale(120) // more than one slice takes
	s.eventually(func() error { return web.served(120) })
	web.patch(`{"spec":{"template":{"metadata":{"annotations":{"revision":"2"}}}}}`)
	s.eventually(func() error { return web.served(120) })
	web.scale(3)
	s.eventually(func() error { return web.served(3) })
	s.expectNoSliceByManager()
	s.expectQuiet()

	web.scale(0)
	s.eventually(func() error { return web.served(0) })
	s.eventually(func() error { return sliceCount(web, 1) }) // an empty one says that there is nothing
	s.must(s.kube.CoreV1().Services("shop").Delete(s.ctx(), "web", metav1.DeleteOptions{}))
	s.eventually(func() error { return sliceCount(web, 0) })
	s.expectQuiet()
}

// A namespace with all that is in it goes, although slices keep being wanted in it until its
// Services are gone.
func TestManager_NamespaceGoesWithItsSlices(t *testing.T) {
	s := newStage(t)
	s.manage(withoutSlices)
	s.serve()
	s.namespace("shop")
	s.namespace("lab")
	stays, goes := s.deploy("shop", "web", 3), s.deploy("lab", "web", 30)
	s.eventually(func() error { return stays.served(3) })
	s.eventually(func() error { return goes.served(30) })
	s.must(s.kube.CoreV1().Namespaces().Delete(s.ctx(), "lab", metav1.DeleteOptions{}))
	s.eventually(func() error {
		namespace, err := s.kube.CoreV1().Namespaces().Get(s.ctx(), "lab", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("namespace lab is still there: %+v, %w", namespace.Status, err)
	})
	if left := goes.slices(); len(left) > 0 {
		t.Errorf("%d slices are left in a namespace that is gone", len(left))
	}
	s.expectQuiet()
	stays.scale(5)
	s.eventually(func() error { return stays.served(5) })
}

// kube-controller-manager mirrors hand-made Endpoints of a Service without a selector. slicesvc
// leaves its slices alone, and it leaves those of slicesvc alone.
func TestManager_MirroredEndpointsAreLeftToTheirController(t *testing.T) {
	s := newStage(t)
	s.manage(withoutSlices)
	s.serve()
	s.namespace("shop")
	web := s.deploy("shop", "web", 2)
	manual := app{stage: s, NamespacedName: types.NamespacedName{Namespace: "shop", Name: "manual"}}
	_, err := s.kube.CoreV1().Services("shop").Create(s.ctx(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "manual"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = s.kube.CoreV1().Endpoints("shop").Create(s.ctx(), &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "manual"},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: "10.9.0.1"}},
			Ports:     []corev1.EndpointPort{{Name: "http", Port: 8080}},
		}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.eventually(func() error { return web.served(2) })
	s.eventually(func() error { return keptBy(manual, "endpointslicemirroring-controller.k8s.io", "10.9.0.1 ready") })
	s.eventually(func() error { return keptByUs(web) })
	s.expectQuiet()

	// With a selector slicesvc keeps the Service, and the mirroring controller deletes its own
	// slice.
	_, err = s.kube.CoreV1().Services("shop").Patch(s.ctx(), "manual", types.MergePatchType, []byte(`{"spec":{"selector":{"app":"none"}}}`), metav1.PatchOptions{})
	s.must(err)
	s.eventually(func() error { return keptBy(manual, slicesvc.UpstreamManagedBy) })
	s.expectNoSliceByManager()
	s.expectQuiet()
}

// What kube-controller-manager's own controller left is taken over as it is: no slice is written
// until a pod changes, and then it is the same slice that is.
func TestManager_SlicesLeftByUpstreamAreAdoptedAsTheyAre(t *testing.T) {
	s := newStage(t)
	stop := s.manage(everything)
	s.namespace("shop")
	web, db := s.deploy("shop", "web", 120), s.deploy("shop", "db", 1)
	s.eventually(func() error { return web.served(120) })
	s.eventually(func() error { return db.served(1) })
	stop()
	left := s.versions()

	s.manage(withoutSlices)
	s.serve()
	s.expectQuiet()
	if diff := gocmp.Diff(left, s.versions()); diff != "" {
		t.Errorf("slices were rewritten (-left by upstream +now):\n%s", diff)
	}
	before := db.slices()
	if !writtenByManager(before[0]) {
		t.Errorf("slice %s was written by %v, want one of upstream's", before[0].Name, before[0].ManagedFields)
	}
	db.scale(2)
	s.eventually(func() error { return db.served(2) })
	if after := db.slices(); len(after) != 1 || after[0].UID != before[0].UID {
		t.Errorf("db has slices %v, want the one that upstream made", after)
	}
}

func sliceCount(a app, want int) error {
	if got := len(a.slices()); got != want {
		return fmt.Errorf("%s has %d slices, want %d", a, got, want)
	}
	return nil
}

// keptBy checks that a Service has one slice, with that managed-by label and those endpoints.
func keptBy(a app, managedBy string, endpoints ...string) error {
	all := a.slices()
	if len(all) != 1 || all[0].Labels[discoveryv1.LabelManagedBy] != managedBy {
		return fmt.Errorf("%s has slices %v, want one of %s", a, all, managedBy)
	}
	if diff := gocmp.Diff(endpoints, endpointsOf(all)); diff != "" {
		return fmt.Errorf("endpoints of %s (-want +got):\n%s", a, diff)
	}
	return nil
}

// keptByUs checks that a Service has only slices of slicesvc.
func keptByUs(a app) error {
	for _, slice := range a.slices() {
		if by := slice.Labels[discoveryv1.LabelManagedBy]; by != slicesvc.UpstreamManagedBy {
			return fmt.Errorf("slice %s of %s is kept by %s", slice.Name, a, by)
		}
	}
	return nil
}
