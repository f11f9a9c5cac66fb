package eviction_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/eviction"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
)

const seconds = monotonic.Instant(time.Second)

// wall is the wall-clock time of an Instant.
func wall(now monotonic.Instant) time.Time {
	return time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC).Add(now.Sub(0))
}

func noExecute(key string) corev1.Taint {
	return corev1.Taint{Key: key, Value: "v", Effect: corev1.TaintEffectNoExecute}
}

// added returns a taint with a timeAdded.
func added(key string, at monotonic.Instant) corev1.Taint {
	taint := noExecute(key)
	taint.TimeAdded = &metav1.Time{Time: wall(at)}
	return taint
}

// tolerates returns a toleration for a key, for some seconds or without an end.
func tolerates(key string, forSeconds ...int64) corev1.Toleration {
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if len(forSeconds) > 0 {
		t.TolerationSeconds = &forSeconds[0]
	}
	return t
}

func newPod(name string, tolerations ...corev1.Toleration) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       corev1.PodSpec{NodeName: "n", Tolerations: tolerations},
	}
}

// scheduled adds the PodScheduled condition.
func scheduled(pod *corev1.Pod, at monotonic.Instant) *corev1.Pod {
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(wall(at)),
	})
	return pod
}

func newNode(taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-of-n"}, Spec: corev1.NodeSpec{Taints: taints}}
}

func pods(all ...*corev1.Pod) []*corev1.Pod { return all }

// observed is one observation of a Node.
type observed struct {
	at   monotonic.Instant
	node *corev1.Node
	pods []*corev1.Pod
}

// after returns the state after observations, of which the first is the first of the term.
func after(t *testing.T, observations ...observed) eviction.NodeEvictions {
	t.Helper()
	var state eviction.NodeEvictions
	for _, o := range observations {
		node, seen := o.node.DeepCopy(), fmt.Sprint(o.pods)
		state = state.Observe(o.at, wall(o.at), o.node, o.pods)
		if node.String() != o.node.String() || seen != fmt.Sprint(o.pods) {
			t.Fatal("Observe has changed its input")
		}
	}
	return state
}

// dues returns the seconds at which Pods must leave.
func dues(state eviction.NodeEvictions) map[string]float64 {
	all := map[string]float64{}
	for _, wait := range state.Pending {
		all[wait.Pod.Name] = wait.Due.Sub(0).Seconds()
	}
	return all
}
