package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// Only a real kube-apiserver allocates addresses.
func TestAddress_FaultsOnARealAPIServerAreUndone(t *testing.T) {
	kube := testkit.Kube(t)
	namespace := testkit.Namespace(t, kube)
	f := New(Config{Services: 1, Namespace: namespace}, kube, slog.New(slog.DiscardHandler))
	if err := f.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := namespace + "/" + serviceName(0)
	for fault, breaks := range map[string]func(context.Context, string) (string, error){
		"deleted": f.DeleteAddress, "duplicate": f.DuplicateAddress,
	} {
		for range 2 { // each again, as after an answer that was lost
			address, err := breaks(t.Context(), name)
			if err != nil {
				t.Fatalf("%s: %v", fault, err)
			}
			found, err := kube.NetworkingV1().IPAddresses().Get(t.Context(), address, metav1.GetOptions{})
			if fault == "deleted" && !apierrors.IsNotFound(err) || fault == "duplicate" && err == nil && found.Spec.ParentRef.Name != serviceName(0)+duplicateSuffix {
				t.Errorf("%s: IPAddress %v, %v", fault, found, err)
			}
		}
		for range 2 {
			if err := f.RestoreAddress(t.Context(), name); err != nil {
				t.Fatalf("restore %s: %v", fault, err)
			}
		}
		s, err := f.serviceOf(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		found, err := kube.NetworkingV1().IPAddresses().Get(t.Context(), s.Spec.ClusterIP, metav1.GetOptions{})
		if err != nil || found.Spec.ParentRef.Name != serviceName(0) || found.Labels["ipaddress.kubernetes.io/managed-by"] == "" {
			t.Errorf("restored %s: %v, %v", fault, found, err)
		}
		if _, err := kube.CoreV1().Services(namespace).Get(t.Context(), serviceName(0)+duplicateSuffix, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("restored %s: the second Service is left (%v)", fault, err)
		}
	}
}

func TestSetPodsReady_ChangesThePodsOfOneService(t *testing.T) {
	kube := fake.NewClientset()
	f := New(Config{Nodes: 1, Services: 2, Pods: 4, Namespace: "demo"}, kube, slog.New(slog.DiscardHandler))
	if err := f.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, ready := range []bool{false, true} {
		names, err := f.SetPodsReady(t.Context(), "demo/app-001", ready)
		if err != nil || len(names) != 2 {
			t.Fatalf("SetPodsReady = %v, %v", names, err)
		}
		pods, err := kube.CoreV1().Pods("demo").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.Items {
			want := ready || p.Labels[appLabel] == "app-000"
			for _, condition := range p.Status.Conditions {
				if condition.Type == corev1.PodReady && (condition.Status == corev1.ConditionTrue) != want {
					t.Errorf("Pod %s is ready: %s, want %t", p.Name, condition.Status, want)
				}
			}
		}
	}
}

// A restore that another writer outruns must not report success and leave a Pod that is not ready.
func TestSetPodsReady_AConflictIsTriedAgain(t *testing.T) {
	kube := fake.NewClientset()
	f := New(Config{Nodes: 1, Services: 1, Pods: 1, Namespace: "demo"}, kube, slog.New(slog.DiscardHandler))
	if err := f.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	conflicts := 0
	kube.PrependReactor("update", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts++
		return conflicts == 1, nil, apierrors.NewConflict(corev1.Resource("pods"), "any", errors.New("changed"))
	})
	if _, err := f.SetPodsReady(t.Context(), "demo/app-000", false); err != nil {
		t.Fatal(err)
	}
	pods, err := kube.CoreV1().Pods("demo").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d Pods, %v", len(pods.Items), err)
	}
	for _, condition := range pods.Items[0].Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status != corev1.ConditionFalse {
			t.Errorf("the Pod is ready: %s", condition.Status)
		}
	}
}

// A killed run restores nothing. With its data, the next run does.
func TestCreate_UndoesTheDuplicatesOfAKilledRun(t *testing.T) {
	kube := fake.NewClientset()
	f := New(Config{Nodes: 1, Services: 1, Pods: 1, Namespace: "demo"}, kube, slog.New(slog.DiscardHandler))
	if err := f.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := kube.CoreV1().Services("demo").Get(t.Context(), "app-000", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Spec.ClusterIP, s.Spec.IPFamilies = "10.0.0.7", []corev1.IPFamily{corev1.IPv4Protocol}
	if _, err := kube.CoreV1().Services("demo").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.DuplicateAddress(t.Context(), "demo/app-000"); err != nil {
		t.Fatal(err)
	}
	if err := f.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().Services("demo").Get(t.Context(), "app-000"+duplicateSuffix, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the second Service is left (%v)", err)
	}
	if _, err := kube.NetworkingV1().IPAddresses().Get(t.Context(), "10.0.0.7", metav1.GetOptions{}); err != nil {
		t.Errorf("the address of the Service: %v", err)
	}
}

func TestKeepNodesReady_LeavesSilentNodes(t *testing.T) {
	kube := fake.NewClientset()
	f := New(Config{Nodes: 3, Namespace: "demo"}, kube, slog.New(slog.DiscardHandler))
	if err := f.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range f.Nodes() {
		n, err := kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		if _, err := kube.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- f.KeepNodesReady(ctx, 10*time.Millisecond, func(node string) bool { return node == nodeName(1) })
	}()
	testkit.Eventually(t, time.Minute, func() error {
		nodes, err := kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var errs []error
		for i := range nodes.Items {
			if got, want := isReady(&nodes.Items[i]), nodes.Items[i].Name != nodeName(1); got != want {
				errs = append(errs, fmt.Errorf("Node %s is ready: %t", nodes.Items[i].Name, got))
			}
		}
		return errors.Join(errs...)
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
