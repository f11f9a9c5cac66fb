package nodestore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodehealth"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/nodestore"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func expectEqual[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if !equality.Semantic.DeepEqual(want, got) {
		t.Errorf("%s (-want +got):\n%s", what, cmp.Diff(want, got))
	}
}

func TestSubscription_CachesWhatNodeHealthNeedsAndNothingElse(t *testing.T) {
	f := newFixture(t, forHealth)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: f.node.Name, UID: f.node.UID, ResourceVersion: f.node.ResourceVersion, CreationTimestamp: f.node.CreationTimestamp,
		Labels: map[string]string{corev1.LabelTopologyZone: "z", nodehealth.ExcludeDisruptionLabel: ""},
	}}
	node.Spec.Taints = f.node.Spec.Taints
	node.Status.Conditions = f.node.Status.Conditions[:1]
	expectEqual(t, "node", node, f.cache.Node(f.node.Name))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "web", Namespace: f.namespace, UID: f.pod.UID, ResourceVersion: f.pod.ResourceVersion,
	}}
	pod.Spec.NodeName = f.node.Name
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	expectEqual(t, "pods", []*corev1.Pod{pod}, f.cache.Pods(f.node.Name))
	expectEqual(t, "pods of the store", []*corev1.Pod{pod}, f.store.Pods(f.node.Name))
	if got := f.cache.Pods(""); len(got) != 0 {
		t.Errorf("Pods that are not bound are cached: %v", got)
	}
	if got := f.cache.Lease(f.node.Name); !got.RenewTime.Equal(renewTime().Time) || got.Version == "" {
		t.Errorf("lease %v, want one renewed at %v", got, renewTime())
	}
	if lease := f.store.Lease(f.node.Name); lease != f.cache.Lease(f.node.Name) || lease.Holder != f.namespace {
		t.Errorf("the store has the Lease %v", lease)
	}
	if got, want := f.cache.Lease("missing"), (nodehealth.Lease{}); got != want || f.cache.Node("missing") != nil {
		t.Errorf("for a missing Node there is a Lease %v and a Node %v", got, f.cache.Node("missing"))
	}
}

func TestSubscription_CachesWhatEvictionNeedsAndNothingElse(t *testing.T) {
	f := newFixture(t, forEviction)
	node := f.cache.Node(f.node.Name)
	if node == nil || len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "example.org/maintenance" {
		t.Fatalf("node is %v, want it with its NoExecute taint", node)
	}
	if diff := cmp.Diff(map[string]string{corev1.LabelTopologyZone: "z", nodehealth.ExcludeDisruptionLabel: ""}, node.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if len(node.Status.Conditions) != 0 {
		t.Errorf("conditions are cached: %v", node.Status.Conditions)
	}
	// kube-apiserver records when the taints were written, to the second.
	if age := time.Since(eviction.LastTaintWrite(node)); age < -time.Second || age > time.Minute {
		t.Errorf("the taints were written %v ago", age)
	}
	expectEqual(t, "pods", []*corev1.Pod{evictionPod(f.pod)}, f.cache.Pods(node.Name))
	if f.cache.Node("missing") != nil || len(f.cache.Pods("missing")) != 0 {
		t.Error("a missing Node has a Node or Pods")
	}
}

// evictionPod returns what eviction needs of the Pod of the fixture.
func evictionPod(pod *corev1.Pod) *corev1.Pod {
	want := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Generation: pod.Generation,
	}}
	want.Spec.NodeName, want.Spec.Tolerations = pod.Spec.NodeName, pod.Spec.Tolerations
	want.Status.Phase = pod.Status.Phase
	want.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: pod.Status.Conditions[2].LastTransitionTime},
	}
	return want
}

func TestSubscription_OneCacheServesBothControllers(t *testing.T) {
	f := newFixture(t, forBoth)
	node := f.cache.Node(f.node.Name)
	expectEqual(t, "taints", f.node.Spec.Taints, node.Spec.Taints)
	expectEqual(t, "conditions", f.node.Status.Conditions[:1], node.Status.Conditions)
	if eviction.LastTaintWrite(node).IsZero() {
		t.Error("the time of the last write of the taints is not cached")
	}
	expectEqual(t, "pods", []*corev1.Pod{evictionPod(f.pod)}, f.cache.Pods(node.Name))
}

// The managed fields of a Lease show which program renewed it last, so every replica knows the
// renewals of all replicas.
func TestSubscription_LeaseTellsWhetherItWasRenewedByUs(t *testing.T) {
	f := newFixture(t, forHealth)
	renew := func(manager string) (version string) {
		t.Helper()
		lease, err := f.kube.CoordinationV1().Leases(f.namespace).Get(t.Context(), f.node.Name, metav1.GetOptions{})
		f.must(err)
		lease.Spec.RenewTime = &metav1.MicroTime{Time: lease.Spec.RenewTime.Add(time.Second)}
		lease, err = f.kube.CoordinationV1().Leases(f.namespace).Update(t.Context(), lease, metav1.UpdateOptions{FieldManager: manager})
		f.must(err)
		for begin := time.Now(); f.cache.Lease(f.node.Name).Version != lease.ResourceVersion; time.Sleep(10 * time.Millisecond) {
			if time.Since(begin) > 10*time.Second {
				t.Fatal("the cache does not have the renewal after 10 s")
			}
		}
		return lease.ResourceVersion
	}
	byOther := "" // the last version
	for _, step := range []struct {
		manager string
		byUs    bool
	}{{"kubelet", false}, {writeback.FieldManager, true}, {"kubelet", false}, {writeback.FieldManager, true}} {
		version := renew(step.manager)
		if !step.byUs {
			byOther = version
		}
		if lease := f.cache.Lease(f.node.Name); lease.RenewedByUs != step.byUs || lease.ByOther.Version != byOther {
			t.Errorf("after a renewal by %s RenewedByUs is %t, want %t; the last renewal of another is of version %q, want %q",
				step.manager, lease.RenewedByUs, step.byUs, lease.ByOther.Version, byOther)
		}
	}
}

func TestSubscription_ChangedNamesTheNode(t *testing.T) {
	f := newFixture(t, forHealth)
	await := func(what string) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func() error {
			if _, named := f.cache.Changed()[f.node.Name]; !named {
				return errors.New("the node is not among the changed")
			}
			return nil
		})
		if changed := f.cache.Changed(); len(changed) > 0 {
			t.Errorf("after %s there are more changes: %v", what, changed)
		}
	}
	await("the list")
	_, err := f.kube.CoreV1().Nodes().Patch(t.Context(), f.node.Name, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
	f.must(err)
	await("a change of the node")
	f.must(f.kube.CoordinationV1().Leases(f.namespace).Delete(t.Context(), f.node.Name, metav1.DeleteOptions{}))
	await("the deletion of the lease")
	f.must(f.kube.CoreV1().Pods(f.namespace).Delete(t.Context(), f.pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	testkit.Eventually(t, time.Minute, func() error {
		_, changed := f.cache.Changed()[f.node.Name]
		if left := f.cache.Pods(f.node.Name); !changed || len(left) > 0 {
			return fmt.Errorf("changed %v, with the pods %v", changed, left)
		}
		return nil
	})
}

// watches counts the lists of a fake kube-apiserver by resource.
type watches struct {
	mu    sync.Mutex // guards lists
	lists map[string]int
}

func (w *watches) count(clientset *fake.Clientset) {
	clientset.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lists[action.GetResource().Resource]++
		return false, nil, nil
	})
}

// expect waits until the resources have been listed as often.
func (w *watches) expect(t *testing.T, want map[string]int) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if diff := cmp.Diff(want, w.lists); diff != "" {
			return fmt.Errorf("lists (-want +got):\n%s", diff)
		}
		return nil
	})
}

func newFakeStore(objects ...runtime.Object) (*nodestore.Store, *fake.Clientset, *watches) {
	kube, w := fake.NewClientset(objects...), &watches{lists: map[string]int{}}
	w.count(kube)
	return nodestore.New(kube, nodestore.Config{NodeHealth: true, Eviction: true, RenewedByUs: writeback.RenewedByUs}), kube, w
}

const (
	healthKinds   = nodestore.Nodes | nodestore.Leases | nodestore.Pods
	evictionKinds = nodestore.Nodes | nodestore.Pods
)

func TestStore_WatchesEachKindOnceAndOnlyWhileItIsNeeded(t *testing.T) {
	store, _, w := newFakeStore(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}})
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- store.Run(ctx) }()
	testkit.Eventually(t, time.Minute, store.Check)
	w.expect(t, map[string]int{"nodes": 1}) // neither controller runs, so no Pod is watched
	stopHealth := run(t, store.Subscribe(healthKinds, nodestore.Nodes|nodestore.Leases))
	stopEviction := run(t, store.Subscribe(evictionKinds, evictionKinds))
	w.expect(t, map[string]int{"nodes": 1, "leases": 1, "pods": 1})
	stopHealth()
	stopEviction()
	run(t, store.Subscribe(evictionKinds, evictionKinds)) // the Pods were not watched meanwhile
	w.expect(t, map[string]int{"nodes": 1, "leases": 1, "pods": 2})
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

func TestSubscription_LateSubscriberGetsAllNodes(t *testing.T) {
	store, _, _ := newFakeStore(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	run(t, store.Subscribe(healthKinds, nodestore.Nodes|nodestore.Leases))
	late := store.Subscribe(evictionKinds, evictionKinds)
	if late.Node("n1") != nil || late.Pods("n1") != nil || late.Lease("n1") != (nodehealth.Lease{}) {
		t.Error("a subscription answers before it is synced")
	}
	run(t, late)
	expectNames(t, late.Changed(), "n1", "n2")
}

func expectNames(t *testing.T, changed map[string]struct{}, want ...string) {
	t.Helper()
	var names []string
	for name := range changed {
		names = append(names, name)
	}
	slices.Sort(names)
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
}

// One subscriber finds a cache behind: all subscribers get the new one, and nothing is missing
// meanwhile.
func TestSubscription_RelistReplacesTheCacheOfAllSubscribers(t *testing.T) {
	store, kube, w := newFakeStore(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", UID: "u2"}},
	)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- store.Run(ctx) }()
	testkit.Eventually(t, time.Minute, store.Check)
	health, other := store.Subscribe(healthKinds, nodestore.Nodes|nodestore.Leases), store.Subscribe(evictionKinds, evictionKinds)
	run(t, health)
	run(t, other)
	health.Changed()
	other.Changed()
	// A watch that hangs: the deletion does not reach the old cache.
	if err := kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", "n2"); err != nil {
		t.Fatal(err)
	}
	health.Relist()
	w.expect(t, map[string]int{"nodes": 2, "leases": 2, "pods": 2})
	testkit.Eventually(t, time.Minute, func() error {
		if uid, err := store.UID("n1"); err != nil || uid != "u1" {
			return fmt.Errorf("n1: UID %q, error %w", uid, err)
		}
		if _, err := store.UID("n2"); !errors.Is(err, nodestore.ErrNodeMissing) {
			return fmt.Errorf("n2: error %v, want ErrNodeMissing", err)
		}
		if health.Node("n2") != nil || other.Node("n2") != nil {
			return errors.New("a subscriber still has n2")
		}
		return nil
	})
	testkit.Eventually(t, time.Minute, func() error {
		for _, s := range []*nodestore.Subscription{health, other} {
			if _, named := s.Changed()["n2"]; named {
				continue
			}
			return errors.New("n2 is not among the changed")
		}
		return nil
	})
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
}

func TestStore_UIDDiffersBetweenNotListedAndMissing(t *testing.T) {
	kube := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}})
	store := nodestore.New(kube, nodestore.Config{})
	for _, name := range []string{"n1", "n2"} {
		if _, err := store.UID(name); !errors.Is(err, nodestore.ErrNodesNotListed) {
			t.Errorf("%s before the first list: error %v, want ErrNodesNotListed", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- store.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	testkit.Eventually(t, time.Minute, store.Check)
	if uid, err := store.UID("n1"); err != nil || uid != "u1" {
		t.Errorf("n1: UID %q, error %v; want u1", uid, err)
	}
	if _, err := store.UID("n2"); !errors.Is(err, nodestore.ErrNodeMissing) {
		t.Errorf("n2: error %v, want ErrNodeMissing", err)
	}
	if uid, err := store.Confirm(t.Context(), "n1"); err != nil || uid != "u1" {
		t.Errorf("confirm n1: UID %q, error %v; want u1", uid, err)
	}
	if _, err := store.Confirm(t.Context(), "n2"); !errors.Is(err, nodestore.ErrNodeMissing) {
		t.Errorf("confirm n2: error %v, want ErrNodeMissing", err)
	}
}

func TestFreshness_SaysWhenEachKindWasHeard(t *testing.T) {
	f := newFixture(t, forHealth)
	var kinds []string
	for _, fresh := range f.store.Freshness(nodestore.Nodes | nodestore.Leases | nodestore.Pods) {
		kinds = append(kinds, fresh.Kind)
		if fresh.ResourceVersion == "" || fresh.Heard.IsZero() || time.Since(fresh.Heard) > time.Minute {
			t.Errorf("%+v, want a version that was heard just now", fresh)
		}
	}
	expectEqual(t, "kinds", []string{"Lease", "Node", "Pod"}, kinds)
	if got := f.store.Freshness(nodestore.Nodes); len(got) != 1 || got[0].Kind != "Node" {
		t.Errorf("freshness of Nodes: %+v", got)
	}
}
