package nodehealth

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// views describe each Node and Pod by the fields that other programs act on, with every change.
type views struct {
	mu      sync.Mutex // guards what follows
	now     map[string]string
	changes []string
}

// watchAll watches all Nodes, and the pods of a namespace, until the test ends.
func watchAll(t *testing.T, kube kubernetes.Interface, namespace string) *views {
	t.Helper()
	v := &views{now: map[string]string{}}
	nodes, err := kube.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := kube.CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, watcher := range []watch.Interface{nodes, pods} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for event := range watcher.ResultChan() {
				v.note(event)
			}
		}()
		t.Cleanup(func() {
			watcher.Stop()
			<-done
		})
	}
	return v
}

func (v *views) note(event watch.Event) {
	var name, view string
	switch object := event.Object.(type) {
	case *corev1.Node:
		name, view = "node "+object.Name, viewOfNode(object)
	case *corev1.Pod:
		name, view = "pod "+object.Name, viewOfPod(object)
	default:
		return
	}
	if event.Type == watch.Deleted {
		view = "gone"
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if before := v.now[name]; before != view {
		v.now[name] = view
		v.changes = append(v.changes, fmt.Sprintf("%s: %s → %s", name, before, view))
	}
}

// viewOfNode is the Node's Ready condition and its taints.
func viewOfNode(node *corev1.Node) string {
	words := []string{"ready=" + string(conditionOf(node))}
	for _, taint := range node.Spec.Taints {
		words = append(words, taint.Key+":"+string(taint.Effect))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func conditionOf(node *corev1.Node) corev1.ConditionStatus {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status
		}
	}
	return ""
}

func viewOfPod(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return "ready=" + string(condition.Status)
		}
	}
	return "ready="
}

// all is what is seen now.
func (v *views) all() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.now)
}

// since returns the changes from a number of them on.
func (v *views) since(count int) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.changes[count:])
}
