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
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc"
)

const (
	// grace is short, so that tests are; a starved machine may still not take longer for a renewal.
	grace = 6 * time.Second
	// renewal is how often the kubelets here renew.
	renewal = time.Second
	// slack is what a starved machine may take to notice and write; without it, a second is enough.
	slack = 15 * time.Second
	// relist is what client-go may wait before it watches again after an outage.
	relist = 45 * time.Second
)

// ward is a service that judges the nodes of the real kube-apiserver, and their kubelets.
type ward struct {
	*fixture
	admin kubernetes.Interface
	names []string

	mu     sync.Mutex // guards what follows
	silent map[string]bool
	last   map[string]time.Time // renewals that have begun
}

// newWard has nodes in the zones a and b, half and half, each with a condition and a taint of somebody else's.
func newWard(t *testing.T, count int, loops ...string) *ward {
	t.Helper()
	fenced, err := kubernetes.NewForConfig(kubeconn.Fence(testkit.Cluster(t).RESTConfig()))
	if err != nil {
		t.Fatal(err)
	}
	w := &ward{admin: testkit.Kube(t), silent: map[string]bool{}, last: map[string]time.Time{}}
	namespace := testkit.Namespace(t, w.admin)
	for i := range count {
		w.names = append(w.names, fmt.Sprintf("%s-%02d", namespace, i))
		w.add(t, w.names[i], []string{"a", "b"}[i%2])
	}
	ctx, cancel := context.WithCancel(context.Background())
	var kubelets sync.WaitGroup
	for i, name := range w.names {
		kubelets.Go(func() { w.live(ctx, namespace, name, renewal*time.Duration(i)/time.Duration(count)) })
	}
	t.Cleanup(kubelets.Wait)
	t.Cleanup(cancel)
	w.fixture = newFixture(t, setup{kube: fenced, loops: append(loops, leasesvc.NodeHealthLoop), config: func(c *leasesvc.Config) {
		c.Shards = 2
		c.Classes[0].Namespace, c.Writes.Policy = namespace, leasesvc.WriteMirror
		c.Classes[0].HeartbeatInterval, c.Classes[0].RenewInterval = time.Second, time.Second
		c.Classes[0].Grace, c.Classes[0].LeaseDuration = 3*time.Second, 3*time.Second
		c.NodeHealth.GracePeriod, c.NodeHealth.EvictionRate, c.NodeHealth.FullDisruptionEvictionRate = grace, 100, 100
	}})
	for _, name := range w.names {
		w.awaitTaints(name, "example.org/gpu:NoSchedule")
	}
	return w
}

func (w *ward) add(t *testing.T, name, zone string) {
	t.Helper()
	node, err := w.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelOSStable: "linux"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "example.org/gpu", Value: "a100", Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.admin.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	node.Status.Conditions = []corev1.NodeCondition{{Type: "example.org/Fan", Status: corev1.ConditionTrue, Reason: "Spins"}}
	w.post(t, node)
}

// post is what a kubelet says of itself when all is well.
func (w *ward) post(t *testing.T, node *corev1.Node) {
	t.Helper()
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		status := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: "Kubelet", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	if _, err := w.admin.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// live renews a Lease as a kubelet does, until ctx ends. What fails is tried again with the next renewal.
func (w *ward) live(ctx context.Context, namespace, name string, phase time.Duration) {
	time.Sleep(phase)
	ticker := time.NewTicker(renewal)
	defer ticker.Stop()
	for {
		w.mu.Lock()
		silent := w.silent[name]
		if !silent {
			w.last[name] = time.Now()
		}
		w.mu.Unlock()
		if !silent {
			w.renewLease(ctx, namespace, name)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (w *ward) renewLease(ctx context.Context, namespace, name string) {
	leases := w.admin.CoordinationV1().Leases(namespace)
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

func (w *ward) silence(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		w.silent[name] = true
	}
}

func (w *ward) node(name string) *corev1.Node {
	w.t.Helper()
	node, err := w.admin.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
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

func (w *ward) awaitTaints(name string, want ...string) {
	w.t.Helper()
	testkit.Eventually(w.t, slack+grace, func() error {
		var got []string
		for _, taint := range w.node(name).Spec.Taints {
			got = append(got, taint.Key+":"+string(taint.Effect))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("taints of %s are %v, want %v", name, got, want)
		}
		return nil
	})
}

// awaitUnknown returns how long after its last renewal a node was declared.
func (w *ward) awaitUnknown(name string) time.Duration {
	w.t.Helper()
	var after time.Duration
	testkit.Eventually(w.t, slack+relist+grace, func() error {
		if status := conditions(w.node(name))[corev1.NodeReady]; status != corev1.ConditionUnknown {
			return fmt.Errorf("Ready of %s is %s", name, status)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		after = time.Since(w.last[name])
		return nil
	})
	return after
}

func (w *ward) expectReady(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if status := conditions(w.node(name))[corev1.NodeReady]; status != corev1.ConditionTrue {
			w.t.Errorf("Ready of %s is %s", name, status)
		}
	}
}

func TestNodeHealth_SilentNodesAreDeclaredAndComeBack(t *testing.T) {
	w := newWard(t, 20)
	pod := w.pod(w.names[0])
	dead, alive := w.names[:5], w.names[5:]
	w.silence(dead...)
	var latest time.Duration
	for _, name := range dead {
		after := w.awaitUnknown(name)
		if latest = max(latest, after); after < grace {
			t.Errorf("%s was declared %v after its last renewal", name, after)
		}
	}
	t.Logf("nodes were declared %v after their last renewals at the latest, with a grace period of %v", latest, grace)
	w.awaitTaints(dead[0], "example.org/gpu:NoSchedule", "node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule")
	want := map[corev1.NodeConditionType]corev1.ConditionStatus{
		"Ready": "Unknown", "MemoryPressure": "Unknown", "DiskPressure": "Unknown", "PIDPressure": "Unknown", "example.org/Fan": "True",
	}
	if diff := cmp.Diff(want, conditions(w.node(dead[0]))); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	w.awaitPodNotReady(pod)
	w.awaitEvent(dead[0], "NodeNotReady")
	w.awaitEvent(pod.Name, "NodeNotReady")
	w.expectReady(alive...)
	if beta := w.node(dead[0]).Labels["beta.kubernetes.io/os"]; beta != "linux" {
		t.Errorf("beta label of the operating system is %q", beta)
	}

	w.mu.Lock()
	clear(w.silent)
	w.mu.Unlock()
	for _, name := range dead {
		w.post(t, w.node(name))
		w.awaitTaints(name, "example.org/gpu:NoSchedule")
	}
	w.expectReady(w.names...)
}

// pod puts a ready pod on a node.
func (w *ward) pod(node string) *corev1.Pod {
	w.t.Helper()
	pods := w.admin.CoreV1().Pods(w.namespace)
	pod, err := pods.Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
		{Type: "example.org/Warm", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
	}
	if pod, err = pods.UpdateStatus(w.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	return pod
}

func (w *ward) awaitPodNotReady(pod *corev1.Pod) {
	w.t.Helper()
	w.eventually(func() error {
		now, err := w.admin.CoreV1().Pods(pod.Namespace).Get(w.t.Context(), pod.Name, metav1.GetOptions{})
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

func (w *ward) awaitEvent(object, reason string) {
	w.t.Helper()
	w.eventually(func() error {
		events, err := w.admin.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{
			FieldSelector: fields.Set{"involvedObject.name": object, "reason": reason}.String(),
		})
		if err == nil && len(events.Items) == 0 {
			err = fmt.Errorf("no Event %s of %s", reason, object)
		}
		return err
	})
}

func TestNodeHealth_EverythingDownIsDeclaredAndNotEvicted(t *testing.T) {
	w := newWard(t, 6)
	w.silence(w.names...)
	for _, name := range w.names {
		w.awaitUnknown(name)
	}
	for _, name := range w.names {
		w.awaitTaints(name, "example.org/gpu:NoSchedule", "node.kubernetes.io/unreachable:NoSchedule")
	}
}

func TestNodeHealth_SessionIsASignOfLifeAndItsEndIsDeath(t *testing.T) {
	w := newWard(t, 4)
	beating := holder(w.names[0], "1")
	w.silence(w.names[0])
	sequence := uint64(0)
	for begin := time.Now(); time.Since(begin) < grace+2*renewal; time.Sleep(renewal / 2) { // beats at their pace
		sequence++
		w.beat(sequence, beating)
	}
	w.expectReady(w.names...)
	stopped := time.Now()
	w.awaitUnknown(w.names[0])
	t.Logf("declared %v after the last beat, with sessions of 3s", time.Since(stopped))
	w.expectReady(w.names[1:]...)
}

func TestNodeHealth_IsOffUnlessAskedFor(t *testing.T) {
	f := newFixture(t, setup{})
	for _, l := range f.service.Loops().Status() {
		if l.Name == leasesvc.NodeHealthLoop && l.State.String() != "disabled" {
			t.Errorf("loop %s is %v by default", l.Name, l.State)
		}
	}
}
