package conformance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/endpoint"
	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/upstream"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
)

const (
	node         = "node-1"
	token        = "abcdef.0123456789abcdef"
	bootstrapper = "system:bootstrappers"
)

// fixture is a kube-apiserver, an endpoint before it, and a leasesvc that the test turns off.
type fixture struct {
	t        *testing.T
	cluster  *devcluster.Cluster
	admin    kubernetes.Interface
	node     *corev1.Node
	dir      string
	address  string
	leasesvc *leasesvc
	pool     *upstream.Pool
	// writeKubeconfig writes a kubeconfig that leads to the kube-apiserver of the kubelet.
	writeKubeconfig func(path, user string, groups ...string) error
	endpoint        *endpoint.Endpoint
	stop            func()
}

func newFixture(t *testing.T, args ...string) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cluster, err := devcluster.Start(ctx, devcluster.Config{APIServerArgs: append([]string{"--enable-bootstrap-token-auth=true"}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	admin, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, cluster: cluster, admin: admin, dir: t.TempDir(), address: "127.0.0.1:0", leasesvc: &leasesvc{}, writeKubeconfig: cluster.WriteKubeconfig}
	f.node, err = admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.allowBootstrap(ctx)
	return f
}

// allowBootstrap makes a bootstrap token, as kubeadm does.
func (f *fixture) allowBootstrap(ctx context.Context) {
	f.t.Helper()
	_, secretErr := f.admin.CoreV1().Secrets("kube-system").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
	}, metav1.CreateOptions{})
	_, bindErr := f.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: bootstrapper}},
	}, metav1.CreateOptions{})
	if err := errors.Join(secretErr, bindErr); err != nil {
		f.t.Fatal(err)
	}
}

// certificateFile has the certificate and the key of the kubelet.
func (f *fixture) certificateFile() string { return filepath.Join(f.dir, "kubelet-client-current.pem") }

// issue gives the kubelet a certificate.
func (f *fixture) issue() {
	f.t.Helper()
	cert, key, err := f.cluster.ClientCertificate("system:node:"+node, "system:nodes")
	if err == nil {
		err = os.WriteFile(f.certificateFile(), append(cert, key...), 0o600)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// start starts the endpoint, after stop at the same address.
func (f *fixture) start() {
	f.t.Helper()
	path := filepath.Join(f.dir, "kubelet.conf")
	if err := f.writeKubeconfig(path, "system:node:"+node, "system:nodes"); err != nil {
		f.t.Fatal(err)
	}
	file, err := kubeconfig.Load(path)
	if err != nil {
		f.t.Fatal(err)
	}
	file.CertData, file.KeyData = nil, nil
	file.CertFile, file.KeyFile = f.certificateFile(), f.certificateFile()
	logger := slog.New(slog.NewTextHandler(f.t.Output(), nil))
	f.pool, err = upstream.New(upstream.Config{Kubeconfig: file, Node: node, StateDir: f.dir, Discover: true, Logger: logger})
	if err != nil {
		f.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.address = listener.Addr().String()
	f.endpoint, err = endpoint.New(endpoint.Config{
		Node: node, Listener: listener, Upstream: f.pool, Kubeconfig: file, StateDir: f.dir, Heartbeats: f.leasesvc, Logger: logger,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for _, run := range []func(context.Context) error{f.pool.Run, f.endpoint.Run} {
		group.Go(func() {
			if err := run(ctx); err != nil {
				f.t.Error(err)
			}
		})
	}
	f.stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	f.t.Cleanup(f.stop)
}

// config is the configuration of a kubelet's client: protobuf, and a timeout for its heartbeats.
func (f *fixture) config() *rest.Config {
	return &rest.Config{
		Host:            "https://" + f.address,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(f.dir, "endpoint-ca.crt"), CertFile: f.certificateFile(), KeyFile: f.certificateFile()},
		ContentConfig:   rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"},
		Timeout:         10 * time.Second,
		QPS:             -1,
	}
}

func (f *fixture) client(config *rest.Config) kubernetes.Interface {
	f.t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		f.t.Fatal(err)
	}
	return client
}

// leasesvc acknowledges heartbeats while it is not gone.
type leasesvc struct {
	mu      sync.Mutex // guards the fields below
	gone    bool
	reports int
}

// Beat implements endpoint.Heartbeats.
func (l *leasesvc) Beat(context.Context, time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports++
	if l.gone {
		return errors.New("gone")
	}
	return nil
}

// CutOff implements endpoint.Heartbeats.
func (l *leasesvc) CutOff(time.Time) {}

func (l *leasesvc) setGone(gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = gone
}

// more returns a condition: so many further heartbeats.
func (l *leasesvc) more(count int) func() error {
	read := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.reports
	}
	want := read() + count
	return func() error {
		if got := read(); got < want {
			return fmt.Errorf("%d heartbeats, want %d", got, want)
		}
		return nil
	}
}
