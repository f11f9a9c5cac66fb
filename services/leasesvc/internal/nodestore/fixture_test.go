package nodestore_test

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fixture is a Node, its Lease and a Pod on it, on the real kube-apiserver, without a fence.
type fixture struct {
	t         *testing.T
	kube      kubernetes.Interface
	namespace string
	config    nodestore.Config
	store     *nodestore.Store
	writer    *nodestore.Writer
	// cache has all kinds and notices all changes.
	cache *nodestore.Subscription
	node  *corev1.Node
	pod   *corev1.Pod
}

// forHealth and forEviction are Stores of a process that runs one of both controllers.
func forHealth(c *nodestore.Config)   { c.NodeHealth = true }
func forEviction(c *nodestore.Config) { c.Eviction = true }
func forBoth(c *nodestore.Config)     { c.NodeHealth, c.Eviction = true, true }

func newFixture(t *testing.T, configure func(*nodestore.Config)) *fixture {
	t.Helper()
	f := &fixture{t: t, kube: testkit.Kube(t)}
	f.namespace = testkit.Namespace(t, f.kube)
	f.config = nodestore.Config{Namespace: f.namespace, Labels: []string{nodehealth.ExcludeDisruptionLabel}, RenewedByUs: writeback.RenewedByUs}
	configure(&f.config)
	f.createNode()
	f.createPods()
	_, err := f.kube.CoordinationV1().Leases(f.namespace).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: f.namespace}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &f.namespace, RenewTime: renewTime()},
	}, metav1.CreateOptions{})
	f.must(err)
	f.store = nodestore.New(f.kube, f.config)
	f.writer = f.store.Writer()
	f.cache = f.store.Subscribe(nodestore.Nodes|nodestore.Leases|nodestore.Pods, nodestore.Nodes|nodestore.Leases|nodestore.Pods)
	f.run(f.cache)
	return f
}

func renewTime() *metav1.MicroTime {
	at := metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC))
	return &at
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) createNode() {
	node, err := f.kube.CoreV1().Nodes().Create(f.t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: f.namespace, Labels: map[string]string{
			corev1.LabelTopologyZone: "z", "example.org/rack": "7", nodehealth.ExcludeDisruptionLabel: "",
		}, Annotations: map[string]string{"example.org/note": "keep"}},
		Spec: corev1.NodeSpec{PodCIDR: "10.1.0.0/24", Taints: []corev1.Taint{
			{Key: "example.org/gpu", Effect: corev1.TaintEffectNoSchedule}, {Key: "example.org/maintenance", Effect: corev1.TaintEffectNoExecute},
		}},
	}, metav1.CreateOptions{})
	f.must(err)
	f.t.Cleanup(func() {
		if err := f.kube.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			f.t.Error(err)
		}
	})
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Kubelet"},
		{Type: "example.org/Fan", Status: corev1.ConditionTrue, Reason: "Spins"},
	}
	node.Status.NodeInfo.KubeletVersion = "v1.37.1"
	f.node, err = f.kube.CoreV1().Nodes().UpdateStatus(f.t.Context(), node, metav1.UpdateOptions{})
	f.must(err)
}

// createPods creates a Pod on the Node and one that is not bound.
func (f *fixture) createPods() {
	pods := f.kube.CoreV1().Pods(f.namespace)
	pod, err := pods.Create(f.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: f.node.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	f.must(err)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, Reason: "Probed"}, {Type: "example.org/Warm", Status: corev1.ConditionTrue},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))},
	}
	f.pod, err = pods.UpdateStatus(f.t.Context(), pod, metav1.UpdateOptions{})
	f.must(err)
	_, err = pods.Create(f.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "not-bound"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	f.must(err)
}

// run runs a cache until the test ends or the returned function is called, and waits until it is
// synced.
func (f *fixture) run(cache *nodestore.Subscription) (stop func()) {
	f.t.Helper()
	return run(f.t, cache)
}

func run(t *testing.T, cache *nodestore.Subscription) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := cache.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	select {
	case <-cache.Synced():
	case <-time.After(20 * time.Second):
		t.Fatal("not listed within 20 s")
	}
	return stop
}

// expectNode compares the Node in kube-apiserver.
func (f *fixture) expectNode(want *corev1.Node) {
	f.t.Helper()
	got, err := f.kube.CoreV1().Nodes().Get(f.t.Context(), want.Name, metav1.GetOptions{})
	f.must(err)
	want.ResourceVersion, want.ManagedFields, got.ManagedFields = got.ResourceVersion, nil, nil
	expectEqual(f.t, "node", want, got)
}

// livePod returns the Pod from kube-apiserver. A deleted Pod stays there, because no kubelet stops
// it.
func (f *fixture) livePod() *corev1.Pod {
	f.t.Helper()
	pod, err := f.kube.CoreV1().Pods(f.pod.Namespace).Get(f.t.Context(), f.pod.Name, metav1.GetOptions{})
	f.must(err)
	return pod
}
