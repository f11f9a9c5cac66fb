package devcluster

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestStart_ServesUntilStop(t *testing.T) {
	temp := ownTempDir(t)
	t.Setenv("ETCD_NAME", "foreign") // with this name etcd would refuse to start
	before := time.Now()
	cluster := begin(t, Config{})
	t.Logf("ready after %v", time.Since(before))

	kube := kubernetes.NewForConfigOrDie(cluster.RESTConfig())
	list, err := kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, namespace := range list.Items {
		names = append(names, namespace.Name)
	}
	if want := []string{"default", "kube-node-lease", "kube-public", "kube-system"}; !slices.Equal(names, want) {
		t.Errorf("namespaces are %v, want %v", names, want)
	}
	requirePrivate(t, cluster.creds.dir)

	pids := cluster.pids()
	if len(pids) != 2 {
		t.Fatalf("processes are %v, want two", pids)
	}
	if err := errors.Join(cluster.Stop(), cluster.Stop()); err != nil {
		t.Fatal(err)
	}
	if err := gone(pids...); err != nil {
		t.Error(err)
	}
	requireEmpty(t, temp)
	select {
	case <-cluster.Done():
	default:
		t.Error("Done is open after Stop")
	}
	if err := cluster.Err(); err != nil {
		t.Errorf("Err after an orderly stop: %v", err)
	}
	if err := cluster.StartAPIServer(); !errors.Is(err, errStopped) {
		t.Errorf("start after Stop: %v, want %v", err, errStopped)
	}
}

// requirePrivate checks that only the owner can read keys and kubeconfigs.
func requirePrivate(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, want none for others", entry.Name(), info.Mode())
		}
	}
}

func TestStart_CancelledHalfwayLeavesNothing(t *testing.T) {
	temp := ownTempDir(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("changed my mind")
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		eventually(t, startTimeout, func() error { return exists(filepath.Join(temp, "*", apiServerName+".log")) })
		cancel(reason)
	}()
	cluster, err := Start(ctx, Config{})
	<-watching
	if !errors.Is(err, reason) {
		t.Errorf("cancelled start returned %v, %v, want an error with the cause %q", cluster, err, reason)
	}
	requireEmpty(t, temp)
	requireNoChild(t)
}

func exists(pattern string) error {
	found, err := filepath.Glob(pattern)
	if err == nil && len(found) == 0 {
		return errors.New("no file like " + pattern)
	}
	return err
}

func TestStart_BadFlagReturnsLogAndLeavesNothing(t *testing.T) {
	temp := ownTempDir(t)
	_, err := Start(t.Context(), Config{APIServerArgs: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "kube-apiserver") || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("error %v, want one with the server's name and its complaint", err)
	}
	requireEmpty(t, temp)
	requireNoChild(t)
}

func TestStart_MissingBinariesAreNamedWithTheRemedy(t *testing.T) {
	temp, assets := ownTempDir(t), t.TempDir()
	t.Setenv(assetsEnvironment, "")
	_, err := Start(t.Context(), Config{AssetsDir: assets})
	missing := new(MissingBinaryError)
	if !errors.As(err, &missing) {
		t.Fatalf("error %v, want a MissingBinaryError", err)
	}
	for _, want := range []string{filepath.Join(assets, etcdName), filepath.Join(assets, apiServerName), "make assets"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not mention %q", err, want)
		}
	}
	requireEmpty(t, temp)
}

func TestStart_EnvironmentNamesTheAssets(t *testing.T) {
	elsewhere := t.TempDir()
	t.Setenv(assetsEnvironment, elsewhere)
	_, err := Start(t.Context(), Config{EtcdOnly: true, AssetsDir: t.TempDir()})
	missing := new(MissingBinaryError)
	if !errors.As(err, &missing) || missing.Path != filepath.Join(elsewhere, etcdName) {
		t.Errorf("error %v, want the binary missed in %s", err, elsewhere)
	}
}

func TestStart_ErrorNamesPortInUseAndField(t *testing.T) {
	temp := ownTempDir(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	for _, test := range []struct {
		cfg  Config
		want PortTakenError
	}{
		{Config{EtcdPort: port}, PortTakenError{Server: etcdName, Field: "Config.EtcdPort", Port: port}},
		{Config{APIServerPort: port}, PortTakenError{Server: apiServerName, Field: "Config.APIServerPort", Port: port}},
	} {
		_, err := Start(t.Context(), test.cfg)
		taken := new(PortTakenError)
		if !errors.As(err, &taken) || *taken != test.want {
			t.Errorf("%+v: error %v, want %v", test.cfg, err, &test.want)
		}
	}
	requireEmpty(t, temp)
	requireNoChild(t)
}

func TestStart_NamesEveryMistakeOfItsConfig(t *testing.T) {
	_, err := Start(t.Context(), Config{ServiceCIDR: "10.0.0.0", AdvertiseAddress: "here", EtcdPort: -1, APIServerPort: 70000})
	for _, field := range []string{"Config.ServiceCIDR", "Config.AdvertiseAddress", "Config.EtcdPort", "Config.APIServerPort"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not mention %s", err, field)
		}
	}
}

func TestStart_DualStackServices(t *testing.T) {
	t.Parallel()
	cluster := begin(t, Config{ServiceCIDR: "10.0.0.0/16,fd00:10::/112"})
	kube := kubernetes.NewForConfigOrDie(cluster.RESTConfig())
	policy := corev1.IPFamilyPolicyRequireDualStack
	service, err := kube.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "dual"},
		Spec:       corev1.ServiceSpec{IPFamilyPolicy: &policy, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(service.Spec.ClusterIPs) != 2 || !strings.HasPrefix(service.Spec.ClusterIPs[1], "fd00:10::") {
		t.Errorf("ClusterIPs are %v, want one of each family", service.Spec.ClusterIPs)
	}
}

func TestStart_DataDirIsKeptAndLocked(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	first := begin(t, Config{EtcdOnly: true, DataDir: dir})
	put(t, first, "/kept", "yes")
	if _, err := Start(t.Context(), Config{EtcdOnly: true, DataDir: dir}); err == nil || !strings.Contains(err.Error(), "is used by another") {
		t.Errorf("second cluster in the same directory: %v, want a refusal", err)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	second := begin(t, Config{EtcdOnly: true, DataDir: dir})
	if value := get(t, second, "/kept"); value != "yes" {
		t.Errorf("value after a new start is %q, want %q", value, "yes")
	}
}
