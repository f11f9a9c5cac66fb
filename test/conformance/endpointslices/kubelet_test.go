package endpointslices

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/conformance/internal/simtest"
)

// kubelet says of the pods of its Node what a kubelet says: that they run, and when they are to go,
// that they do not serve any more and then that they are gone. It says each in the next version of
// the pod, so that all states can be seen.
type kubelet struct {
	kube      kubernetes.Interface
	node      string
	addresses int
}

// startKubelet makes a Node and its kubelet, which lives as long as the test.
func startKubelet(t *testing.T, kube kubernetes.Interface) *kubelet {
	t.Helper()
	node := simtest.CreateNode(t, kube, "node-1")
	simtest.StartKubelet(t, simtest.KubeletConfig{Kube: kube, Node: node, Pace: time.Second})
	k := &kubelet{kube: kube, node: node.Name}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := k.follow(ctx); err != nil && ctx.Err() == nil {
				t.Logf("kubelet begins anew: %v", err)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return k
}

// follow answers every version of every pod of the Node until the watch ends or something fails.
func (k *kubelet) follow(ctx context.Context) error {
	watcher, err := k.kube.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", k.node).String(),
	})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("watch ends with %v", event.Object)
		}
		// A Pod that another writer changed or deleted meanwhile comes with the next event.
		if err := k.answer(ctx, pod.DeepCopy()); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (k *kubelet) answer(ctx context.Context, pod *corev1.Pod) error {
	pods := k.kube.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp == nil && pod.Status.PodIP == "":
		k.addresses++
		pod.Status.Phase = corev1.PodRunning
		pod.Status.PodIP = fmt.Sprintf("10.3.%d.%d", k.addresses/250, k.addresses%250+1)
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
		setReady(pod, corev1.ConditionTrue)
	case pod.DeletionTimestamp != nil && isReady(pod):
		setReady(pod, corev1.ConditionFalse)
	case pod.DeletionTimestamp != nil:
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	default:
		return nil
	}
	_, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

func setReady(pod *corev1.Pod, status corev1.ConditionStatus) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}}
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
