package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trivet-dev/trivet/test/cluster/internal/recording"
)

// Namespace is where the workloads of scenarios are.
const Namespace = "recorded"

// Action is what a step does.
type Action interface {
	run(ctx context.Context, s *Stage) error
}

type (
	// Nothing lets the cluster rest.
	Nothing struct{}
	// Deploy creates the namespace, a Deployment and its Service.
	Deploy struct {
		Name     string
		Replicas int32
	}
	// Scale changes the number of Pods of a Deployment.
	Scale struct {
		Name     string
		Replicas int32
	}
	// RunGated creates a Pod of a Service on a node. The Pod is ready while its gate is open.
	RunGated struct{ Name, App, Node string }
	// SetGate opens or closes the gate of a Pod.
	SetGate struct {
		Name string
		Open bool
	}
	// DeletePod deletes a Pod by name.
	DeletePod struct{ Name string }
	// DeletePodOn deletes a Pod of an app on a node.
	DeletePodOn struct{ App, Node string }
	// RemoveLabel removes a label of a Node.
	RemoveLabel struct{ Node, Label string }
	// Drain cordons a Node and evicts the Pods of the namespace.
	Drain struct{ Node string }
	// Uncordon lets new Pods run on a Node again.
	Uncordon struct{ Node string }
	// DeleteNode deletes the Node object.
	DeleteNode struct{ Node string }
	// StopKubelet is that of Machines.
	StopKubelet struct{ Node string }
	// StartKubelet is that of Machines.
	StartKubelet struct{ Node string }
	// StopAPIServer is that of Machines.
	StopAPIServer struct{ Node string }
	// KillAPIServer is that of Machines.
	KillAPIServer struct{ Node string }
	// StartAPIServer is that of Machines.
	StartAPIServer struct{ Node string }
)

const (
	gate = "trivet.dev/recorded"
	// tolerated is how long a Pod stays on a Node that is not ready or unreachable.
	tolerated = int64(2)
	// terminationGrace is how long a container may take to end.
	terminationGrace = int64(1)
)

func (Nothing) run(context.Context, *Stage) error { return nil }

func (a Deploy) run(ctx context.Context, s *Stage) error {
	if err := s.createNamespace(ctx); err != nil {
		return err
	}
	selector := map[string]string{recording.AppLabel: a.Name}
	_, err := s.Kube.CoreV1().Services(Namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: a.Name},
		Spec: corev1.ServiceSpec{
			Selector: selector,
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Service: %w", err)
	}
	_, err = s.Kube.AppsV1().Deployments(Namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: a.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &a.Replicas,
			Selector: &metav1.LabelSelector{MatchLabels: selector},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: selector}, Spec: s.podSpec()},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Deployment: %w", err)
	}
	return nil
}

// createNamespace also waits for the ServiceAccount, without which no Pod is admitted. The wait is
// before anything that is compared.
func (s *Stage) createNamespace(ctx context.Context) error {
	_, err := s.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace: %w", err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := s.Kube.CoreV1().ServiceAccounts(Namespace).Get(ctx, "default", metav1.GetOptions{})
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the ServiceAccount of the namespace: %w", err)
		}
	}
}

func (s *Stage) podSpec() corev1.PodSpec {
	grace, seconds := terminationGrace, tolerated
	spec := corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		Containers:                    []corev1.Container{{Name: "app", Image: s.Image, ImagePullPolicy: corev1.PullNever}},
	}
	for _, key := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
		})
	}
	return spec
}

func (a Scale) run(ctx context.Context, s *Stage) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, a.Replicas)
	_, err := s.Kube.AppsV1().Deployments(Namespace).Patch(ctx, a.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return wrapped("scale Deployment", err)
}

func (a RunGated) run(ctx context.Context, s *Stage) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: a.Name, Labels: map[string]string{recording.AppLabel: a.App}},
		Spec:       s.podSpec(),
	}
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: a.Node}
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
	_, err := s.Kube.CoreV1().Pods(Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return wrapped("create Pod", err)
}

func (a SetGate) run(ctx context.Context, s *Stage) error {
	status := corev1.ConditionFalse
	if a.Open {
		status = corev1.ConditionTrue
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.PodCondition{{Type: gate, Status: status}}}})
	if err != nil {
		return fmt.Errorf("encode condition: %w", err)
	}
	_, err = s.Kube.CoreV1().Pods(Namespace).Patch(ctx, a.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return wrapped("set gate of Pod", err)
}

func (a DeletePod) run(ctx context.Context, s *Stage) error {
	return wrapped("delete Pod", s.Kube.CoreV1().Pods(Namespace).Delete(ctx, a.Name, metav1.DeleteOptions{}))
}

func (a DeletePodOn) run(ctx context.Context, s *Stage) error {
	pods, err := s.podsOn(ctx, a.Node)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if pod.Labels[recording.AppLabel] == a.App && pod.DeletionTimestamp == nil {
			return DeletePod{Name: pod.Name}.run(ctx, s)
		}
	}
	return fmt.Errorf("node %s has no Pod of %s", a.Node, a.App)
}

func (s *Stage) podsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := s.Kube.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("list Pods of node %s: %w", node, err)
	}
	return list.Items, nil
}

func (a RemoveLabel) run(ctx context.Context, s *Stage) error {
	return s.patchNode(ctx, a.Node, map[string]any{"metadata": map[string]any{"labels": map[string]any{a.Label: nil}}})
}

func (a Drain) run(ctx context.Context, s *Stage) error {
	if err := s.patchNode(ctx, a.Node, map[string]any{"spec": map[string]any{"unschedulable": true}}); err != nil {
		return err
	}
	pods, err := s.podsOn(ctx, a.Node)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		err := s.Kube.CoreV1().Pods(Namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: Namespace}})
		if err != nil {
			return fmt.Errorf("evict Pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

func (a Uncordon) run(ctx context.Context, s *Stage) error {
	return s.patchNode(ctx, a.Node, map[string]any{"spec": map[string]any{"unschedulable": nil}})
}

func (s *Stage) patchNode(ctx context.Context, node string, change map[string]any) error {
	patch, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = s.Kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return wrapped("patch node", err)
}

func (a DeleteNode) run(ctx context.Context, s *Stage) error {
	return wrapped("delete node", s.Kube.CoreV1().Nodes().Delete(ctx, a.Node, metav1.DeleteOptions{}))
}

func (a StopKubelet) run(ctx context.Context, s *Stage) error {
	return wrapped("stop kubelet", s.Machines.StopKubelet(ctx, a.Node))
}

func (a StartKubelet) run(ctx context.Context, s *Stage) error {
	return wrapped("start kubelet", s.Machines.StartKubelet(ctx, a.Node))
}

func (a StopAPIServer) run(ctx context.Context, s *Stage) error {
	return wrapped("stop kube-apiserver", s.Machines.StopAPIServer(ctx, a.Node))
}

func (a KillAPIServer) run(ctx context.Context, s *Stage) error {
	return wrapped("kill kube-apiserver", s.Machines.KillAPIServer(ctx, a.Node))
}

func (a StartAPIServer) run(ctx context.Context, s *Stage) error {
	return wrapped("start kube-apiserver", s.Machines.StartAPIServer(ctx, a.Node))
}

func wrapped(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
