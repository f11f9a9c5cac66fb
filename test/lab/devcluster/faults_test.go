package devcluster

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func put(t *testing.T, c *Cluster, key, value string) {
	t.Helper()
	client, err := c.EtcdClient()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	whileElecting(t, func() error {
		_, err := client.Put(t.Context(), key, value)
		return err
	})
}

// whileElecting repeats a request that etcd gives up while its members elect a leader.
func whileElecting(t *testing.T, request func() error) {
	t.Helper()
	for begin := time.Now(); ; {
		err := request()
		switch {
		case err == nil:
			return
		case t.Context().Err() != nil || time.Since(begin) > time.Minute:
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func get(t *testing.T, c *Cluster, key string) string {
	t.Helper()
	client, err := c.EtcdClient()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var answer *clientv3.GetResponse
	whileElecting(t, func() error {
		answer, err = client.Get(t.Context(), key)
		return err
	})
	if len(answer.Kvs) == 0 {
		return ""
	}
	return string(answer.Kvs[0].Value)
}

func TestCluster_RestartedServersKeepDataAndAddress(t *testing.T) {
	t.Parallel()
	cluster := begin(t, Config{})
	kube := kubernetes.NewForConfigOrDie(cluster.RESTConfig())
	configMaps := kube.CoreV1().ConfigMaps("default")
	if _, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, restart := range []struct {
		name        string
		stop, start func() error
	}{
		{"apiserver", cluster.StopAPIServer, cluster.StartAPIServer},
		{"etcd", cluster.StopEtcd, cluster.StartEtcd},
	} {
		running := cluster.pids()
		if err := errors.Join(restart.stop(), restart.stop()); err != nil {
			t.Fatalf("stop %s: %v", restart.name, err)
		}
		if left := cluster.pids(); len(left) != len(running)-1 {
			t.Errorf("processes before and after the stop of %s: %v, %v", restart.name, running, left)
		}
		if err := errors.Join(restart.start(), restart.start()); err != nil {
			t.Fatalf("start %s: %v", restart.name, err)
		}
		eventually(t, time.Minute, func() error {
			_, err := configMaps.Get(t.Context(), "kept", metav1.GetOptions{})
			return err
		})
	}
	if err := cluster.Err(); err != nil {
		t.Errorf("a stop that was asked for is reported: %v", err)
	}
}

func TestCluster_KilledServerIsReportedByName(t *testing.T) {
	t.Parallel()
	cluster := begin(t, Config{EtcdOnly: true})
	if err := cluster.Err(); err != nil {
		t.Fatalf("error of a healthy cluster: %v", err)
	}
	if err := syscall.Kill(cluster.pids()[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-cluster.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("Done is still open 10 s after a server was killed")
	}
	if err := cluster.Err(); err == nil || !strings.Contains(err.Error(), "etcd") || !strings.Contains(err.Error(), "killed") {
		t.Errorf("error %v, want one that says that etcd was killed", err)
	}
	if err := cluster.StartEtcd(); err != nil {
		t.Errorf("start the dead server again: %v", err)
	}
	put(t, cluster, "/again", "yes")
}

func TestCluster_StopEndsAFrozenServer(t *testing.T) {
	temp := ownTempDir(t)
	cluster := begin(t, Config{EtcdOnly: true})
	pids := cluster.pids()
	if err := syscall.Kill(pids[0], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := gone(pids...); err != nil {
		t.Error(err)
	}
	requireEmpty(t, temp)
}

func TestCluster_UserHasOnlyTheRightsOfItsCertificate(t *testing.T) {
	t.Parallel()
	cluster := begin(t, Config{})
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(path, "viewer", "nobodies"); err != nil {
		t.Fatal(err)
	}
	viewer, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = kubernetes.NewForConfigOrDie(viewer).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "viewer"`) {
		t.Errorf("list pods as a user without rights: %v, want forbidden to viewer", err)
	}

	admin, err := clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubernetes.NewForConfigOrDie(admin).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("list pods as administrator: %v", err)
	}

	// A Kubernetes certificate must not open etcd, where no RBAC would ask.
	pair, err := cluster.creds.clusterCA.client(time.Now(), adminName, adminGroup)
	if err != nil {
		t.Fatal(err)
	}
	intruder, err := newProbe(cluster.creds.etcdCA, pair)
	if err != nil {
		t.Fatal(err)
	}
	if err := intruder.get(t.Context(), cluster.etcdURL()+"/readyz"); err == nil {
		t.Error("etcd accepts a certificate of the Kubernetes authority")
	}
}

func TestCluster_EtcdOnlyRefusesAPIServerMethods(t *testing.T) {
	cluster := begin(t, Config{EtcdOnly: true})
	if config, path := cluster.RESTConfig(), cluster.Kubeconfig(); config != nil || path != "" {
		t.Errorf("access to an apiserver that does not exist: %v, %q", config, path)
	}
	for _, err := range []error{cluster.StartAPIServer(), cluster.StopAPIServer(), cluster.WriteKubeconfig("unused", "user")} {
		if !errors.Is(err, errNoServer) {
			t.Errorf("error %v, want %v", err, errNoServer)
		}
	}
}
