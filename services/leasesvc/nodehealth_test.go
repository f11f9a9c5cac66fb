package leasesvc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/shadow"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// grace is short for short tests, and still longer than a renewal on a busy machine.
	grace = 6 * time.Second
	// renewal is the renewal interval of the simulated kubelets.
	renewal = time.Second
	// slack is the time in which a busy machine detects and writes; an idle one needs a second.
	slack = 15 * time.Second
	// relist is the longest time after which client-go watches again after an outage.
	relist = 45 * time.Second
)

// nodeFixture is a service with node health on the real kube-apiserver, and simulated kubelets.
type nodeFixture struct {
	*fixture
	admin kubernetes.Interface
	// ofTest is the namespace whose objects the service sees: testkit.ObjectsOf.
	ofTest string
	names  []string

	mu     sync.Mutex // guards the fields below
	silent map[string]bool
	last   map[string]time.Time // start of the last renewal
}

// newNodeFixture creates nodes in the zones a and b alternately, each with a condition and a taint
// of another owner.
func newNodeFixture(t *testing.T, count int, loops ...string) *nodeFixture {
	t.Helper()
	return newNodeFixtureThrough(t, testkit.Cluster(t).RESTConfig(), count, loops...)
}

// newNodeFixtureThrough has a service that reaches the kube-apiserver with its own configuration.
func newNodeFixtureThrough(t *testing.T, config *rest.Config, count int, loops ...string) *nodeFixture {
	t.Helper()
	return newConfiguredNodeFixture(t, config, count, func(*leasesvc.Config) {}, loops...)
}

func newConfiguredNodeFixture(t *testing.T, config *rest.Config, count int, configure func(*leasesvc.Config), loops ...string) *nodeFixture {
	t.Helper()
	return newShadowNodeFixture(t, config, count, configure, nil, loops...)
}

// newShadowNodeFixture runs the loops of the trackers in dry run.
func newShadowNodeFixture(t *testing.T, config *rest.Config, count int, configure func(*leasesvc.Config), trackers *shadow.Trackers, loops ...string) *nodeFixture {
	t.Helper()
	f := newNodes(testkit.Kube(t))
	namespace := testkit.Namespace(t, f.admin)
	f.ofTest = namespace
	fenced, err := kubernetes.NewForConfig(kubeconn.Fence(testkit.ObjectsOf(config, namespace)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		f.names = append(f.names, fmt.Sprintf("%s-%02d", namespace, i))
		f.add(t, f.names[i], []string{"a", "b"}[i%2])
	}
	ctx, cancel := context.WithCancel(context.Background())
	var kubelets sync.WaitGroup
	for i, name := range f.names {
		kubelets.Go(func() { f.runKubelet(ctx, namespace, name, renewal*time.Duration(i)/time.Duration(count)) })
	}
	t.Cleanup(kubelets.Wait)
	t.Cleanup(cancel)
	f.fixture = newFixture(t, setup{kube: fenced, shadow: trackers, loops: append(loops, leasesvc.NodeHealthLoop), config: func(c *leasesvc.Config) {
		c.Shards = 2
		c.Classes[0].Namespace, c.Writes.Policy = namespace, leasesvc.WriteMirror
		c.Classes[0].HeartbeatInterval, c.Classes[0].RenewInterval = time.Second, time.Second
		c.Classes[0].Grace, c.Classes[0].LeaseDuration = 3*time.Second, 3*time.Second
		c.NodeHealth.GracePeriod, c.NodeHealth.NormalRate, c.NodeHealth.FullRate = grace, 100, 100
		configure(c)
	}})
	for _, name := range f.names {
		if trackers == nil { // kube-apiserver adds a taint to each new Node, and a dry run leaves it
			f.awaitTaints(name, "example.org/gpu:NoSchedule")
		}
	}
	return f
}

func newNodes(admin kubernetes.Interface) *nodeFixture {
	return &nodeFixture{admin: admin, silent: map[string]bool{}, last: map[string]time.Time{}}
}

func (f *nodeFixture) add(t *testing.T, name, zone string) {
	t.Helper()
	labels := testkit.NodeLabels(f.ofTest)
	labels[corev1.LabelTopologyZone], labels[corev1.LabelOSStable] = zone, "linux"
	node, err := f.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "example.org/gpu", Value: "a100", Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.admin.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	node.Status.Conditions = []corev1.NodeCondition{{Type: "example.org/Fan", Status: corev1.ConditionTrue, Reason: "Spins"}}
	f.reportReady(t, node)
}

// reportReady writes the conditions of a healthy kubelet.
func (f *nodeFixture) reportReady(t *testing.T, node *corev1.Node) {
	t.Helper()
	f.report(t, node, corev1.ConditionTrue)
}

// report writes the conditions of a kubelet.
func (f *nodeFixture) report(t *testing.T, node *corev1.Node, ready corev1.ConditionStatus) {
	t.Helper()
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		status := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			status = ready
		}
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: "Kubelet", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	if _, err := f.admin.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// runKubelet renews a Lease as a kubelet does, until ctx ends. A failed renewal is repeated at the
// next interval.
func (f *nodeFixture) runKubelet(ctx context.Context, namespace, name string, phase time.Duration) {
	time.Sleep(phase)
	ticker := time.NewTicker(renewal)
	defer ticker.Stop()
	for {
		f.mu.Lock()
		silent := f.silent[name]
		if !silent {
			f.last[name] = time.Now()
		}
		f.mu.Unlock()
		if !silent {
			f.renewLease(ctx, namespace, name)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (f *nodeFixture) renewLease(ctx context.Context, namespace, name string) {
	leases := f.admin.CoordinationV1().Leases(namespace)
	now := metav1.NowMicro()
	lease, err := leases.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, _ = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &now},
		}, metav1.CreateOptions{})
		return
	}
	if err == nil {
		lease.Spec.RenewTime = &now
		_, _ = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
}

func (f *nodeFixture) silence(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		f.silent[name] = true
	}
}

func (f *nodeFixture) node(name string) *corev1.Node {
	f.t.Helper()
	node, err := f.admin.CoreV1().Nodes().Get(f.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return node
}

func conditions(node *corev1.Node) map[corev1.NodeConditionType]corev1.ConditionStatus {
	all := map[corev1.NodeConditionType]corev1.ConditionStatus{}
	for _, c := range node.Status.Conditions {
		all[c.Type] = c.Status
	}
	return all
}

func (f *nodeFixture) awaitTaints(name string, want ...string) {
	f.t.Helper()
	testkit.Eventually(f.t, slack+grace, func() error {
		var got []string
		for _, taint := range f.node(name).Spec.Taints {
			got = append(got, taint.Key+":"+string(taint.Effect))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("taints of %s are %v, want %v", name, got, want)
		}
		return nil
	})
}

// awaitUnknown waits until a node is marked as unknown, and returns the time since its last
// renewal.
func (f *nodeFixture) awaitUnknown(name string) time.Duration {
	f.t.Helper()
	var after time.Duration
	testkit.Eventually(f.t, slack+relist+grace, func() error {
		if status := conditions(f.node(name))[corev1.NodeReady]; status != corev1.ConditionUnknown {
			return fmt.Errorf("Ready of %s is %s", name, status)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		after = time.Since(f.last[name])
		return nil
	})
	return after
}

func (f *nodeFixture) expectReady(names ...string) {
	f.t.Helper()
	for _, name := range names {
		if status := conditions(f.node(name))[corev1.NodeReady]; status != corev1.ConditionTrue {
			f.t.Errorf("Ready of %s is %s", name, status)
		}
	}
}

func TestNodeHealth_SilentNodesAreMarkedUnknownAndRecover(t *testing.T) {
	t.Parallel()
	f := newNodeFixture(t, 20)
	pod := f.pod(f.names[0])
	silent, live := f.names[:5], f.names[5:]
	f.silence(silent...)
	var latest time.Duration
	for _, name := range silent {
		after := f.awaitUnknown(name)
		if latest = max(latest, after); after < grace {
			t.Errorf("%s was marked as unknown %v after its last renewal", name, after)
		}
	}
	t.Logf("nodes were marked as unknown within %v after their last renewals, with a grace period of %v", latest, grace)
	f.awaitTaints(silent[0], "example.org/gpu:NoSchedule", "node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule")
	want := map[corev1.NodeConditionType]corev1.ConditionStatus{
		"Ready": "Unknown", "MemoryPressure": "Unknown", "DiskPressure": "Unknown", "PIDPressure": "Unknown", "example.org/Fan": "True",
	}
	if diff := cmp.Diff(want, conditions(f.node(silent[0]))); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	f.awaitPodNotReady(pod)
	f.awaitEvent(silent[0], "NodeNotReady")
	f.awaitEvent(pod.Name, "NodeNotReady")
	f.expectReady(live...)
	if beta := f.node(silent[0]).Labels["beta.kubernetes.io/os"]; beta != "linux" {
		t.Errorf("beta label of the operating system is %q", beta)
	}

	f.mu.Lock()
	clear(f.silent)
	f.mu.Unlock()
	for _, name := range silent {
		f.reportReady(t, f.node(name))
		f.awaitTaints(name, "example.org/gpu:NoSchedule")
	}
	f.expectReady(f.names...)
}

// The kubelet of a node that is not ready lives and reports on its Pods itself. Upstream marks them
// only with its own change of the Node from True to Unknown.
func TestNodeHealth_PodsOfAKubeletThatReportsNotReadyAreLeftToIt(t *testing.T) {
	t.Parallel()
	f := newNodeFixture(t, 6)
	pod := f.pod(f.names[0])
	f.report(t, f.node(f.names[0]), corev1.ConditionFalse)
	f.awaitTaints(f.names[0], "example.org/gpu:NoSchedule", "node.kubernetes.io/not-ready:NoExecute", "node.kubernetes.io/not-ready:NoSchedule")
	time.Sleep(grace / 2) // a pass takes less than a second
	now, err := f.admin.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(pod.Status.Conditions, now.Status.Conditions); diff != "" {
		t.Errorf("conditions of the pod while its kubelet lives (-want +got):\n%s", diff)
	}
	f.silence(f.names[0])
	f.awaitUnknown(f.names[0])
	f.awaitPodNotReady(pod)
}

// pod creates a ready pod on a node.
func (f *nodeFixture) pod(node string) *corev1.Pod {
	f.t.Helper()
	pods := f.admin.CoreV1().Pods(f.namespace)
	pod, err := pods.Create(f.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
		{Type: "example.org/Warm", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
	}
	if pod, err = pods.UpdateStatus(f.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	return pod
}

func (f *nodeFixture) awaitPodNotReady(pod *corev1.Pod) {
	f.t.Helper()
	f.eventually(func() error {
		now, err := f.admin.CoreV1().Pods(pod.Namespace).Get(f.t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got := map[corev1.PodConditionType]corev1.ConditionStatus{}
		for _, c := range now.Status.Conditions {
			got[c.Type] = c.Status
		}
		if diff := cmp.Diff(map[corev1.PodConditionType]corev1.ConditionStatus{"Ready": "False", "example.org/Warm": "True"}, got); diff != "" {
			return errors.New("pod conditions (-want +got):\n" + diff)
		}
		return nil
	})
}

func (f *nodeFixture) awaitEvent(object, reason string) {
	f.t.Helper()
	f.eventually(func() error {
		events, err := f.admin.CoreV1().Events("").List(f.t.Context(), metav1.ListOptions{
			FieldSelector: fields.Set{"involvedObject.name": object, "reason": reason}.String(),
		})
		if err == nil && len(events.Items) == 0 {
			err = fmt.Errorf("no Event %s of %s", reason, object)
		}
		return err
	})
}

func TestNodeHealth_AllNodesDownGetNoNoExecuteTaint(t *testing.T) {
	t.Parallel()
	f := newNodeFixture(t, 6)
	f.silence(f.names...)
	for _, name := range f.names {
		f.awaitUnknown(name)
	}
	for _, name := range f.names {
		f.awaitTaints(name, "example.org/gpu:NoSchedule", "node.kubernetes.io/unreachable:NoSchedule")
	}
}

func TestNodeHealth_NodeIsReadyAsLongAsItsSessionObservesTheKubelet(t *testing.T) {
	t.Parallel()
	f := newNodeFixture(t, 4)
	f.silence(f.names[0])
	f.beatUntil(time.Now().Add(grace+2*renewal), true, f.names[0])
	f.expectReady(f.names...)
	stopped := time.Now()
	f.awaitUnknown(f.names[0])
	t.Logf("marked as unknown %v after the last beat, with a grace period of 3s", time.Since(stopped))
	f.expectReady(f.names[1:]...)
}

// beatUntil sends beats of nodes at the interval of the class. observed says whether the beats
// carry that the kubelet was observed just now.
func (f *nodeFixture) beatUntil(end time.Time, observed bool, names ...string) {
	f.t.Helper()
	for ; time.Now().Before(end); time.Sleep(renewal / 2) {
		request := &leasev1.HeartbeatRequest{}
		for _, name := range names {
			beat := &leasev1.Beat{Holder: holder(name, "1"), Sequence: uint64(time.Now().UnixNano())}
			if observed {
				beat.Report = &leasev1.Report{ObservedAge: durationpb.New(0)}
			}
			request.Beats = append(request.Beats, beat)
		}
		if _, err := f.client.Heartbeat(f.t.Context(), request); err != nil {
			f.t.Fatal(err)
		}
	}
}

func TestNodeHealth_IsDisabledByDefault(t *testing.T) {
	t.Parallel()
	f := newFixture(t, setup{})
	for _, l := range f.service.Loops().Status() {
		if l.Name == leasesvc.NodeHealthLoop && l.State.String() != "disabled" {
			t.Errorf("loop %s is %v by default", l.Name, l.State)
		}
	}
}
