package testkit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestCluster_IsSharedByTheWholeBinary(t *testing.T) {
	if first, second := testkit.Cluster(t), testkit.Cluster(t); first != second {
		t.Errorf("two clusters: %p and %p", first, second)
	}
}

func TestEtcd_StoresAndReads(t *testing.T) {
	client := testkit.Etcd(t)
	if _, err := client.Put(t.Context(), "/testkit/"+t.Name(), "stored"); err != nil {
		t.Fatal(err)
	}
	answer, err := client.Get(t.Context(), "/testkit/"+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Kvs) != 1 || string(answer.Kvs[0].Value) != "stored" {
		t.Errorf("read back %v, want one value %q", answer.Kvs, "stored")
	}
}

func TestNamespace_IsDeletedWithItsObjects(t *testing.T) {
	kube := testkit.Kube(t)
	var name string
	t.Run("use", func(t *testing.T) {
		name = testkit.Namespace(t, kube)
		_, err1 := kube.CoreV1().Services(name).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		_, err2 := kube.CoreV1().Pods(name).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web-0"},
			Spec:       corev1.PodSpec{NodeName: "somewhere", Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		}, metav1.CreateOptions{})
		_, err3 := kube.DiscoveryV1().EndpointSlices(name).Create(t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: "web-slice"},
			AddressType: discoveryv1.AddressTypeIPv4,
		}, metav1.CreateOptions{})
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := kube.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get the namespace after its test: %v, want not found", err)
	}
	if left := objectsIn(t.Context(), t, name); left != 0 {
		t.Errorf("%d objects outlived their namespace", left)
	}
}

func objectsIn(ctx context.Context, t *testing.T, namespace string) int {
	t.Helper()
	kube := testkit.Kube(t)
	services, err1 := kube.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	pods, err2 := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	slices, err3 := kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return len(services.Items) + len(pods.Items) + len(slices.Items)
}

func TestEventually_ReturnsWithTheFirstSuccess(t *testing.T) {
	calls := 0
	testkit.Eventually(t, time.Minute, func() error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if calls != 3 {
		t.Errorf("condition called %d times, want 3", calls)
	}
}
