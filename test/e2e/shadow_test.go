package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// shadowChurn is how long objects change while a real kube-controller-manager writes and all loops
// with a counterpart are in dry run. It also takes a minute to start and to spoil objects.
var shadowChurn = flag.Duration("shadow", 0, "compare dry runs with a real kube-controller-manager while objects change for so long; 0 for not at all")

// shadow runs `trivet shadow` and returns its exit code and output.
func (i *installation) shadow(t *testing.T, timeout time.Duration, args ...string) (code int, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	command := trivet(ctx, t, i.servers["gateway"].grpc, append([]string{"shadow"}, args...)...)
	text, err := command.CombinedOutput()
	if exited := (*exec.ExitError)(nil); errors.As(err, &exited) {
		return exited.ExitCode(), string(text)
	} else if err != nil {
		t.Fatal(err)
	}
	return 0, string(text)
}

// awaitShadow waits for an exit code and a text.
func (i *installation) awaitShadow(t *testing.T, want int, text string, args ...string) {
	t.Helper()
	testkit.Eventually(t, 2*time.Minute, func() error {
		if code, output := i.shadow(t, time.Minute, args...); code != want || !strings.Contains(output, text) {
			return fmt.Errorf("trivet shadow %s: exit code %d, want %d with %q:\n%s", strings.Join(args, " "), code, want, text, output)
		}
		return nil
	})
}

func TestShadow_BesideARealKubeControllerManager(t *testing.T) {
	if *shadowChurn == 0 {
		t.Skip("run it with -args -shadow=10m")
	}
	const settle = "--dry-run-settle=10s"
	i := &installation{t: t, cluster: testkit.Cluster(t), kube: testkit.Kube(t), servers: map[string]*running{}, name: "shadowed"}
	stop := i.startManager(t, "endpointslice-controller,endpointslice-mirroring-controller,node-lifecycle-controller")
	i.start("leasesvc", "--dry-run=node-health", settle)
	i.start("slicesvc", "--dry-run=endpointslices", settle)
	i.start("gateway", "--http-listen=")
	for _, server := range i.servers {
		testkit.Eventually(t, time.Minute, server.ready)
	}
	namespace := testkit.Namespace(t, i.kube)
	node := i.shadowNode(t, namespace)
	for _, service := range []string{"a", "b", "c"} {
		makeService(t, i.kube, namespace, service)
	}
	i.awaitShadow(t, 0, "compared", "slices")
	i.awaitShadow(t, 0, "compared", "nodes")

	ctx, cancel := context.WithTimeout(t.Context(), *shadowChurn)
	defer cancel()
	changed := make(chan int, 1)
	go func() { changed <- i.churn(ctx, namespace, node) }()
	for _, of := range []string{"slices", "nodes"} {
		code, output := i.shadow(t, *shadowChurn+time.Minute, of, "--for="+(*shadowChurn/2).String())
		t.Logf("trivet shadow %s: exit code %d\n%s", of, code, output)
		if code != 0 {
			t.Errorf("trivet shadow %s finds a difference that is not explained beside kube-controller-manager", of)
		}
	}
	<-ctx.Done()
	t.Logf("%d changes in %v", <-changed, *shadowChurn)

	stop()
	i.spoilSlice(t, namespace)
	i.awaitShadow(t, 1, "spoiler", "slices")
	i.spoilNode(t, node)
	i.awaitShadow(t, 1, "node.kubernetes.io/disk-pressure:NoSchedule", "nodes")
}

// shadowNode creates a Node that is ready, without a kubelet.
func (i *installation) shadowNode(t *testing.T, name string) string {
	t.Helper()
	node, err := i.kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.kube.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	if err := i.heartbeat(t.Context(), node.Name); err != nil {
		t.Fatal(err)
	}
	return node.Name
}

// heartbeat posts the status of a Node as a kubelet does.
func (i *installation) heartbeat(ctx context.Context, name string) error {
	node, err := i.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	now := metav1.Now()
	node.Status.Conditions = nil
	for kind, status := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, LastHeartbeatTime: now, LastTransitionTime: now})
	}
	_, err = i.kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{FieldManager: "kubelet"})
	return err
}

// churn creates, flips and deletes Pods of the Services, keeps the Node alive, and returns how many
// changes it made until ctx ends.
func (i *installation) churn(ctx context.Context, namespace, node string) (changes int) {
	pods := i.kube.CoreV1().Pods(namespace)
	var names []string
	beat := time.Now()
	for number := 0; ctx.Err() == nil; number++ {
		if time.Since(beat) > 5*time.Second {
			beat = time.Now()
			_ = i.heartbeat(ctx, node)
		}
		switch {
		case len(names) < 30:
			name := fmt.Sprintf("pod-%d", number)
			created, err := pods.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": string(rune('a' + number%3))}},
				Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "image"}}},
			}, metav1.CreateOptions{})
			if err == nil {
				names = append(names, name)
				setReady(created, fmt.Sprintf("10.2.%d.%d", number/250%250, number%250+1), true)
				_, err = pods.UpdateStatus(ctx, created, metav1.UpdateOptions{})
			}
			if err == nil {
				changes++
			}
		case number%4 == 0:
			at := rand.IntN(len(names))
			if pods.Delete(ctx, names[at], metav1.DeleteOptions{GracePeriodSeconds: new(int64)}) == nil {
				changes++
			}
			names = append(names[:at], names[at+1:]...)
		default:
			pod, err := pods.Get(ctx, names[rand.IntN(len(names))], metav1.GetOptions{})
			if err != nil || len(pod.Status.Conditions) == 0 {
				break
			}
			setReady(pod, pod.Status.PodIP, pod.Status.Conditions[0].Status != corev1.ConditionTrue)
			if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err == nil {
				changes++
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	return changes
}

func setReady(pod *corev1.Pod, ip string, ready bool) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}}
}

// spoilSlice turns a condition of an endpoint.
func (i *installation) spoilSlice(t *testing.T, namespace string) {
	t.Helper()
	client := i.kube.DiscoveryV1().EndpointSlices(namespace)
	list, err := client.List(t.Context(), metav1.ListOptions{LabelSelector: labels.Set{discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}.String()})
	if err != nil {
		t.Fatal(err)
	}
	for _, slice := range list.Items {
		if len(slice.Endpoints) == 0 {
			continue
		}
		condition := &slice.Endpoints[0].Conditions
		condition.Ready = new(condition.Ready == nil || !*condition.Ready)
		if _, err := client.Update(t.Context(), &slice, metav1.UpdateOptions{FieldManager: "spoiler"}); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("no slice has an endpoint")
}

// spoilNode adds a taint that no condition asks for.
func (i *installation) spoilNode(t *testing.T, name string) {
	t.Helper()
	node, err := i.kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule})
	if _, err := i.kube.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{FieldManager: "spoiler"}); err != nil {
		t.Fatal(err)
	}
}
