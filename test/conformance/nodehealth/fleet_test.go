package nodehealth

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/conformance/internal/simtest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// fleet is how many Nodes there are: the even ones stream, and the kubelets of the odd ones
	// write Leases.
	fleet = 12
	// patience is how long something may take that is due.
	patience = time.Minute
	// toleration is how long a pod stays on a Node that is unreachable.
	toleration = 2 * time.Second
)

// member is one Node with a pod, which stays alive until it is stopped.
type member struct {
	name, namespace string
	stop            func()
}

// muster makes all Nodes, lets them live, and puts a pod on each. The pods have no kubelet that
// would have to agree to their end.
func muster(t *testing.T, kube kubernetes.Interface, l *simtest.Leasesvc) []*member {
	t.Helper()
	namespace := testkit.Namespace(t, kube)
	members := make([]*member, fleet)
	for i := range members {
		m := &member{name: fmt.Sprintf("manager-%02d", i), namespace: namespace}
		node := simtest.CreateNode(t, kube, m.name)
		if i%2 == 0 {
			m.stop = l.Beat(m.name)
		} else {
			_, m.stop = simtest.StartKubelet(t, simtest.KubeletConfig{Kube: kube, Node: node, Pace: time.Second})
		}
		m.place(t, kube)
		members[i] = m
	}
	return members
}

// place puts a pod on the Node that is ready, and that leaves soon after the Node is unreachable.
func (m *member) place(t *testing.T, kube kubernetes.Interface) {
	t.Helper()
	seconds, atOnce := int64(toleration/time.Second), int64(0)
	pod, err := kube.CoreV1().Pods(m.namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: m.name},
		Spec: corev1.PodSpec{
			NodeName: m.name, TerminationGracePeriodSeconds: &atOnce,
			Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app:1"}},
			Tolerations: []corev1.Toleration{{
				Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if _, err := kube.CoreV1().Pods(m.namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// reportReady says of the Node that it is ready, as its kubelet does when it is back.
func (m *member) reportReady(t *testing.T, kube kubernetes.Interface) {
	t.Helper()
	now := time.Now().UTC().Format(time.RFC3339)
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","lastHeartbeatTime":%q,"lastTransitionTime":%q}]}}`, now, now)
	if _, err := kube.CoreV1().Nodes().Patch(t.Context(), m.name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}
