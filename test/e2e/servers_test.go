package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestServers_EachServesAClusterByItself(t *testing.T) {
	cluster := testkit.Cluster(t)
	for _, name := range []string{"leasesvc", "bootstrapsvc", "slicesvc"} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, cluster, name, "--cluster="+name+"-alone")
			testkit.Eventually(t, 30*time.Second, server.ready)
			checkOutside(t, server)
			if code := server.stop(t, syscall.SIGTERM, 30*time.Second); code != 0 {
				t.Errorf("exit code = %d after SIGTERM, want 0", code)
			}
		})
	}
}

func TestServers_StandbyTakesOverWhenTheLeaderIsKilled(t *testing.T) {
	cluster, kube := testkit.Cluster(t), testkit.Kube(t)
	namespace := testkit.Namespace(t, kube)
	first := serve(t, cluster, "slicesvc", "--cluster=takeover")
	testkit.Eventually(t, 30*time.Second, first.ready)
	makeService(t, kube, namespace, "before")
	testkit.Eventually(t, 20*time.Second, func() error { return hasSlice(t, kube, namespace, "before") })

	second := serve(t, cluster, "slicesvc", "--cluster=takeover")
	testkit.Eventually(t, 30*time.Second, second.ready)
	first.stop(t, syscall.SIGKILL, 10*time.Second)
	makeService(t, kube, namespace, "after")
	testkit.Eventually(t, 20*time.Second, func() error { return hasSlice(t, kube, namespace, "after") })
}

func makeService(t *testing.T, kube kubernetes.Interface, namespace, name string) {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if _, err := kube.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func hasSlice(t *testing.T, kube kubernetes.Interface, namespace, service string) error {
	slices, err := kube.DiscoveryV1().EndpointSlices(namespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		return err
	}
	if len(slices.Items) != 1 {
		return fmt.Errorf("Service %s has %d slices, want its placeholder", service, len(slices.Items))
	}
	return nil
}

func TestServers_EveryMistakeIsToldAtOnce(t *testing.T) {
	server := run(t, "slicesvc", "--listen=0.0.0.0:7603", "--insecure", "--max-endpoints-per-slice=0",
		"--loops=endless", "--nonsense=1", "--kubeconfig=/does/not/exist")
	<-server.Exited()
	if code := server.ExitCode(); code != 64 {
		t.Errorf("exit code = %d, want 64", code)
	}
	for _, flag := range []string{"--insecure", "--max-endpoints-per-slice", "--nonsense", "/does/not/exist", "endless"} {
		if !strings.Contains(server.output(), flag) {
			t.Errorf("the mistake about %s is not told", flag)
		}
	}
}

func TestServers_UnreachableDependenciesKeepThemUnreadyWithReasons(t *testing.T) {
	cluster := testkit.Cluster(t)
	admin := testkit.FreeAddress(t)
	server := run(t, "slicesvc", "--listen=127.0.0.1:0", "--admin-listen="+admin, "--insecure",
		"--kubeconfig="+cluster.Kubeconfig(), "--etcd-endpoints=http://127.0.0.1:1")
	server.admin = admin
	testkit.Eventually(t, 20*time.Second, func() error {
		_, body, err := fetch("http://" + admin + "/readyz")
		if err != nil {
			return err
		}
		if !strings.Contains(body, "etcd") {
			return fmt.Errorf("readyz does not name etcd: %s", body)
		}
		return nil
	})
	if code := server.stop(t, syscall.SIGTERM, 30*time.Second); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
}
