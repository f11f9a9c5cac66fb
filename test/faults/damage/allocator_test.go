package damage

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// probeService returns a Service that requests exactly this address or port from kube-apiserver's
// allocator.
func probeService(name, wanted string) *corev1.Service {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	service.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	if _, err := netip.ParseAddr(wanted); err == nil {
		service.Spec.ClusterIP = wanted
		return service
	}
	service.Spec.Type = corev1.ServiceTypeNodePort
	port, _ := strconv.ParseInt(wanted, 10, 32) // 0, which the allocator always grants, for an invalid port: the test fails then
	service.Spec.Ports[0].NodePort = int32(port)
	return service
}

func probeName(wanted string) string {
	return "probe-" + strings.NewReplacer(".", "-", ":", "-").Replace(wanted)
}

// checkRefused returns an error unless the allocator refuses the address or port as already
// allocated.
func checkRefused(t *testing.T, kube kubernetes.Interface, namespace, wanted string) error {
	t.Helper()
	services := kube.CoreV1().Services(namespace)
	given, err := services.Create(t.Context(), probeService(probeName(wanted), wanted), metav1.CreateOptions{})
	if err == nil {
		deletion := services.Delete(t.Context(), given.Name, metav1.DeleteOptions{})
		return fmt.Errorf("%s is in use, and the allocator granted it to another Service (delete: %v)", wanted, deletion)
	}
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "already allocated") {
		return fmt.Errorf("the allocator does not refuse %s as already allocated: %w", wanted, err)
	}
	return nil
}

// checkGranted fails the test unless the allocator grants the address or port within waitTimeout.
// The caches of kube-apiserver can lag.
func checkGranted(t *testing.T, kube kubernetes.Interface, namespace, wanted string) {
	t.Helper()
	services := kube.CoreV1().Services(namespace)
	testkit.Eventually(t, waitTimeout, func() error {
		_, err := services.Create(t.Context(), probeService(probeName(wanted), wanted), metav1.CreateOptions{})
		return err
	})
	if err := services.Delete(t.Context(), probeName(wanted), metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
