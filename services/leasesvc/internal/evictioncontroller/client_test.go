package evictioncontroller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/internal/testkit"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/evictioncontroller"
)

// place is a Node and a pod on it, on the real kube-apiserver. Nothing here is fenced: leasesvc's own tests are.
type place struct {
	t     *testing.T
	kube  kubernetes.Interface
	node  *corev1.Node
	pod   *corev1.Pod
	watch *evictioncontroller.PodCache
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{t: t, kube: testkit.Kube(t)}
	namespace := testkit.Namespace(t, p.kube)
	var err error
	p.node, err = p.kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{corev1.LabelTopologyZone: "z", "other": "label"}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}, {Key: "gpu", Effect: corev1.TaintEffectNoSchedule},
		}},
	}, metav1.CreateOptions{})
	p.must(err)
	t.Cleanup(func() {
		if err := p.kube.CoreV1().Nodes().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	p.pod, err = p.kube.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       corev1.PodSpec{NodeName: namespace, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	p.must(err)
	p.pod.Status.Phase = corev1.PodRunning
	p.pod.Status.Conditions = []corev1.PodCondition{
		{Type: "example.org/Warm", Status: corev1.ConditionTrue},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))},
	}
	p.pod, err = p.kube.CoreV1().Pods(namespace).UpdateStatus(t.Context(), p.pod, metav1.UpdateOptions{})
	p.must(err)
	p.run()
	return p
}

func (p *place) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) run() {
	var err error
	p.watch, err = evictioncontroller.NewPodCache(p.kube, slog.New(slog.DiscardHandler))
	p.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- p.watch.Run(ctx) }()
	p.t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			p.t.Error(err)
		}
	})
	<-p.watch.Synced()
}

// eviction is that of the pod as the watch has it now.
func (p *place) eviction() *eviction.Eviction {
	p.t.Helper()
	on := p.watch.Pods(p.node.Name)
	if len(on) != 1 {
		p.t.Fatalf("the watch has the pods %v", on)
	}
	return &eviction.Eviction{Node: p.node.Name, Pod: on[0], Cause: eviction.Cause{Taint: p.node.Spec.Taints[0]}}
}

// read returns the pod as it is; it stays until its kubelet, which there is none of, has stopped it.
func (p *place) read() *corev1.Pod {
	p.t.Helper()
	pod, err := p.kube.CoreV1().Pods(p.pod.Namespace).Get(p.t.Context(), p.pod.Name, metav1.GetOptions{})
	p.must(err)
	return pod
}

func TestClient_MarksAPodAndDeletesIt(t *testing.T) {
	p := newPlace(t)
	p.must(evictioncontroller.NewPodWriter(p.kube).Evict(t.Context(), p.eviction()))
	pod := p.read()
	if pod.DeletionTimestamp == nil {
		t.Error("the pod is not being deleted")
	}
	var got []string
	for _, c := range pod.Status.Conditions {
		got = append(got, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
		if c.Type == corev1.DisruptionTarget && (c.LastTransitionTime.IsZero() || c.Message == "" || c.ObservedGeneration != p.pod.Generation) {
			t.Errorf("condition %+v lacks its time, message or generation", c)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"DisruptionTarget True DeletionByTaintManager", "PodScheduled True ", "example.org/Warm True "}, got); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	testkit.Eventually(t, 10*time.Second, func() error {
		if p.watch.Pods(p.node.Name)[0].DeletionTimestamp == nil {
			return errors.New("the watch does not know that the pod is being deleted")
		}
		return nil
	})
}

func TestClient_APodThatHasFinishedIsDeletedUnmarked(t *testing.T) {
	p := newPlace(t)
	p.pod.Status.Phase = corev1.PodFailed
	pod, err := p.kube.CoreV1().Pods(p.pod.Namespace).UpdateStatus(t.Context(), p.pod, metav1.UpdateOptions{})
	p.must(err)
	e := p.eviction()
	e.Pod = pod
	p.must(evictioncontroller.NewPodWriter(p.kube).Evict(t.Context(), e))
	if _, err := p.kube.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get the pod: error %v, want not found", err)
	}
}

// The kube-apiserver has marked it, and the deletion failed: the next try does not mark again.
func TestClient_GoesOnWhereItStopped(t *testing.T) {
	p := newPlace(t)
	client := evictioncontroller.NewPodWriter(p.kube)
	stale := p.eviction()
	p.pod.Status.Conditions = append(p.pod.Status.Conditions, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager", Message: "from the first try",
	})
	marked, err := p.kube.CoreV1().Pods(p.pod.Namespace).UpdateStatus(t.Context(), p.pod, metav1.UpdateOptions{})
	p.must(err)
	if err := client.Evict(t.Context(), stale); !apierrors.IsConflict(err) {
		t.Errorf("an older version of the pod: error %v, want a conflict", err)
	}
	e := p.eviction()
	e.Pod = marked
	p.must(client.Evict(t.Context(), e))
	for _, c := range p.read().Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Message != "from the first try" {
			t.Errorf("it was marked again: %+v", c)
		}
	}
}

func TestClient_EvictsNoOtherPodOfTheSameName(t *testing.T) {
	p := newPlace(t)
	e := p.eviction()
	e.Pod = e.Pod.DeepCopy()
	e.Pod.UID, e.Pod.ResourceVersion = "another", p.pod.ResourceVersion
	for _, phase := range []corev1.PodPhase{corev1.PodRunning, corev1.PodSucceeded} { // marked first, and deleted at once
		e.Pod.Status.Phase = phase
		// A patch with another UID is invalid, a deletion a conflict.
		if err := evictioncontroller.NewPodWriter(p.kube).Evict(t.Context(), e); !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
			t.Errorf("a pod of another UID that is %s: error %v, want a refusal", phase, err)
		}
	}
	if pod := p.read(); pod.DeletionTimestamp != nil || pod.ResourceVersion != p.pod.ResourceVersion {
		t.Error("the other pod was written to")
	}
}

func TestClient_ReadsPastTheCache(t *testing.T) {
	p := newPlace(t)
	client := evictioncontroller.NewPodWriter(p.kube)
	node, err := client.Node(t.Context(), p.node.Name)
	if err != nil || node == nil || node.UID != p.node.UID {
		t.Errorf("node is %v, error %v", node, err)
	}
	if node, err := client.Node(t.Context(), "no-such-node"); node != nil || err != nil {
		t.Errorf("a node that does not exist is %v, error %v", node, err)
	}
}

// wantPod is what the watch shall keep of the pod of a place.
func wantPod(pod *corev1.Pod) *corev1.Pod {
	want := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Generation: pod.Generation,
	}}
	want.Spec.NodeName, want.Spec.Tolerations = pod.Spec.NodeName, pod.Spec.Tolerations
	want.Status.Phase = pod.Status.Phase
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled || c.Type == corev1.DisruptionTarget {
			want.Status.Conditions = append(want.Status.Conditions, corev1.PodCondition{
				Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: c.LastTransitionTime,
			})
		}
	}
	return want
}

func TestWatch_KeepsWhatEvictionNeeds(t *testing.T) {
	p := newPlace(t)
	node := p.watch.Node(p.node.Name)
	if node == nil || len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "maintenance" {
		t.Fatalf("node is %v, want it with its NoExecute taint", node)
	}
	if diff := cmp.Diff(map[string]string{corev1.LabelTopologyZone: "z"}, node.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	// The kube-apiserver tells when the list was written, to the second.
	if age := time.Since(eviction.LastTaintWrite(node)); age < -time.Second || age > time.Minute {
		t.Errorf("the list of taints was written %v ago", age)
	}
	if diff := cmp.Diff([]*corev1.Pod{wantPod(p.pod)}, p.watch.Pods(node.Name)); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if p.watch.Node("no-such-node") != nil || len(p.watch.Pods("no-such-node")) != 0 {
		t.Error("there is something of a node that does not exist")
	}
	testkit.Eventually(t, 10*time.Second, func() error {
		if _, changed := p.watch.Changed()[p.node.Name]; !changed {
			return errors.New("nothing is new about the node")
		}
		return nil
	})
	if changed := p.watch.Changed(); len(changed) > 1 {
		t.Errorf("changed again: %v", changed)
	}
	p.must(p.kube.CoreV1().Pods(p.pod.Namespace).Delete(t.Context(), p.pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	testkit.Eventually(t, 10*time.Second, func() error {
		_, changed := p.watch.Changed()[p.node.Name]
		if left := p.watch.Pods(p.node.Name); !changed || len(left) > 0 {
			return fmt.Errorf("changed %v, with the pods %v", changed, left)
		}
		return nil
	})
}
