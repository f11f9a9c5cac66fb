package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// TestCluster_PodsOfADeploymentRunAndAreEndpoints is the way from a kubelet to a slice: scheduler,
// containers, readiness, slicesvc.
func TestCluster_PodsOfADeploymentRunAndAreEndpoints(t *testing.T) {
	cluster := liveCluster(t)
	kube, err := cluster.Client(cluster.Nodes()[0])
	if err != nil {
		t.Fatal(err)
	}
	namespace := newNamespace(t, kube)
	deploy(t, kube, namespace, "web", 4)
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return err
		}
		var want []string
		nodes := map[string]bool{}
		for i := range pods.Items {
			if pod := &pods.Items[i]; pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" {
				want, nodes[pod.Spec.NodeName] = append(want, pod.Status.PodIP), true
			}
		}
		if len(want) != 4 || !nodes["w1"] || !nodes["w2"] {
			return fmt.Errorf("running Pods: %v on nodes %v, want 4 on w1 and w2", want, nodes)
		}
		got, err := readyAddresses(ctx, kube, namespace, "web")
		if err != nil {
			return err
		}
		if slices.Sort(want); !slices.Equal(got, want) {
			return fmt.Errorf("ready endpoints are %v, Pods have %v", got, want)
		}
		return nil
	})
}

// TestCluster_AgentsBeatByBothWays shows that leasesvc hears of w1 by the kubelet's own Lease
// writes through the endpoint, and of w2 by an agent's probes.
func TestCluster_AgentsBeatByBothWays(t *testing.T) {
	cluster := liveCluster(t)
	kube, err := cluster.Client(cluster.Nodes()[0])
	if err != nil {
		t.Fatal(err)
	}
	published := []string{cluster.Nodes()[0].Address.String(), cluster.Nodes()[1].Address.String()}
	eventually(t, time.Minute, func(ctx context.Context) error {
		addresses, err := readyAddresses(ctx, kube, metav1.NamespaceDefault, "kubernetes")
		if err != nil {
			return err
		}
		if !slices.Equal(addresses, published) {
			return fmt.Errorf("endpoints of default/kubernetes are %v, want %v", addresses, published)
		}
		return nil
	})
	// With write policy on-change leasesvc renews a Lease by its own rule: 500 s for it, 40 s for
	// kubelets.
	eventually(t, 2*time.Minute, func(ctx context.Context) error {
		for name, want := range map[string]bool{"cp1": false, "w1": true} {
			lease, err := kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if lease.Spec.LeaseDurationSeconds == nil {
				return fmt.Errorf("the Lease of %s has no duration", name)
			}
			if got := *lease.Spec.LeaseDurationSeconds > 40; got != want {
				return fmt.Errorf("the Lease of %s lasts %d s: written by leasesvc %v, want %v", name, *lease.Spec.LeaseDurationSeconds, got, want)
			}
		}
		return nil
	})
}

// newNamespace makes a namespace that the end of the test removes.
func newNamespace(t *testing.T, kube kubernetes.Interface) string {
	t.Helper()
	created, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := kube.CoreV1().Namespaces().Delete(ctx, created.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return created.Name
}

// deploy creates a Deployment, spread over the workers, and its Service.
func deploy(t *testing.T, kube kubernetes.Interface, namespace, name string, replicas int32) {
	t.Helper()
	labels := map[string]string{"app": name}
	grace := int64(1)
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: &grace,
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						TopologyKey: corev1.LabelHostname, MaxSkew: 1, WhenUnsatisfiable: corev1.ScheduleAnyway,
						LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
					}},
					Containers: []corev1.Container{{Name: "main", Image: podImage, ImagePullPolicy: corev1.PullNever}},
				},
			},
		},
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	_, deploymentErr := kube.AppsV1().Deployments(namespace).Create(t.Context(), deployment, metav1.CreateOptions{})
	_, serviceErr := kube.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{})
	if err := errors.Join(deploymentErr, serviceErr); err != nil {
		t.Fatal(err)
	}
}

// readyAddresses returns the ready endpoints of a Service, sorted.
func readyAddresses(ctx context.Context, kube kubernetes.Interface, namespace, service string) ([]string, error) {
	list, err := kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return nil, err
	}
	var addresses []string
	for i := range list.Items {
		for _, endpoint := range list.Items[i].Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				addresses = append(addresses, endpoint.Addresses...)
			}
		}
	}
	slices.Sort(addresses)
	return addresses, nil
}

// eventually calls check until it returns nil.
func eventually(t *testing.T, timeout time.Duration, check func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("after %v: %v", timeout, last)
	}
}
