package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/roles"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/term"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	tenantNamespace = "tenant"
	agentAccount    = "trivet-agent"
	audience        = "trivet"
)

// world has the four servers with their real certificates and roles, and what issues credentials.
type world struct {
	dir  string
	kube kubernetes.Interface // an administrator's
	// own is the authority of Trivet's servers. foreign is another one whose client certificates
	// count, as that of the cluster does.
	own, foreign *certs.Authority
	ownFile      string
	clients      string            // file with both
	issued       int               // certificates
	addresses    map[string]string // of the gRPC servers
	// http has the addresses of the HTTP servers: the admin server of each program, and "page".
	http   map[string]func() string
	limits quota.Table // of each caller; nil: those of a server
	log    *testkit.LogBuffer
}

// newWorld starts the servers and returns once all of them are ready.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := newEmptyWorld(t)
	w.startAll(t)
	return w
}

// startAll starts the four servers and returns once all of them are ready.
func (w *world) startAll(t testing.TB) {
	t.Helper()
	if err := roles.Apply(t.Context(), testkit.Cluster(t).RESTConfig(), deploy.Files(), "base", "components/node-health"); err != nil {
		t.Fatal(err)
	}
	w.makeSubjects(t)
	lease, bootstrap, slice, gate := leasesvc.DefaultConfig(), bootstrapsvc.DefaultConfig(), slicesvc.DefaultConfig(), gateway.DefaultConfig()
	bootstrap.AdvertiseAddress, gate.HTTPListen = "192.0.2.1", "127.0.0.1:0"
	for _, program := range []process.Program{
		leasesvc.Program(&lease), bootstrapsvc.Program(&bootstrap), slicesvc.Program(&slice), gateway.Program(&gate),
	} {
		w.start(t, program)
	}
	w.awaitReady(t)
}

// newEmptyWorld starts no server.
func newEmptyWorld(t testing.TB) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), kube: testkit.Kube(t), addresses: map[string]string{}, http: map[string]func() string{}, log: &testkit.LogBuffer{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the servers said:\n%s", w.log)
		}
	})
	w.own, w.foreign = authority(t, "trivet"), authority(t, "cluster")
	w.ownFile = w.file(t, "own.crt", w.own.CertPEM())
	w.clients = w.file(t, "clients.crt", certs.Bundle(w.own, w.foreign))
	return w
}

func authority(t testing.TB, name string) *certs.Authority {
	t.Helper()
	a, err := certs.NewAuthority(name, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (w *world) file(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// files issues a certificate and returns the files of its owner.
func (w *world) files(t testing.TB, issuer *certs.Authority, leaf certs.Leaf, peers string) identity.Files {
	t.Helper()
	pair, err := issuer.Issue(leaf, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w.issued++
	name := fmt.Sprintf("issued-%d", w.issued)
	return identity.Files{
		CertFile: w.file(t, name+".crt", pair.CertPEM), KeyFile: w.file(t, name+".key", pair.KeyPEM), CAFile: peers,
	}
}

// start runs a server under its service account, as deploy/ does.
func (w *world) start(t testing.TB, program process.Program) {
	t.Helper()
	user, groups := roles.User(program.Name)
	kubeconfig := filepath.Join(w.dir, "kubeconfig-"+program.Name)
	if err := testkit.Cluster(t).WriteKubeconfig(kubeconfig, user, groups...); err != nil {
		t.Fatal(err)
	}
	w.addresses[program.Name] = w.run(t, program, kubeconfig).GRPCAddress
}

// run starts a server and returns where it listens.
func (w *world) run(t testing.TB, program process.Program, kubeconfig string) term.Member {
	t.Helper()
	cluster := testkit.Cluster(t)
	cfg := process.DefaultConfig(program)
	cfg.Cluster = "access"
	cfg.RPC.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.RPC.TLS = w.files(t, w.own, certs.ServerLeaf(program.Name, roles.Namespace, "cluster.local"), w.clients)
	cfg.RPC.PeerCAFile = w.ownFile
	cfg.Kube.Kubeconfig = kubeconfig
	cfg.Etcd.Endpoints = cluster.EtcdEndpoints()
	cfg.Etcd.CAFile, cfg.Etcd.CertFile, cfg.Etcd.KeyFile = cluster.EtcdFiles()
	if program.Name == "leasesvc" {
		cfg.Loops = append(cfg.Loops, "node-health")
	}
	if w.limits != nil {
		cfg.Limits = w.limits
	}
	cfg.Runtime = process.Runtime{LogLevel: observe.NewLogLevel(cfg.Log), Flags: map[string]string{"cluster": cfg.Cluster}}
	program.Build = w.seen(program.Build)
	server, err := process.New(cfg, program, slog.New(slog.NewTextHandler(io.Writer(w.log), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", program.Name, err)
		}
	})
	w.http[program.Name] = func() string { return server.Member().AdminAddress }
	return server.Member()
}

// seen remembers where a service serves its page.
func (w *world) seen(build func(process.Deps) (process.Service, error)) func(process.Deps) (process.Service, error) {
	return func(deps process.Deps) (process.Service, error) {
		service, err := build(deps)
		if page, ok := service.(interface{ HTTPAddress() string }); ok {
			w.http["page"] = page.HTTPAddress
		}
		return service, err
	}
}

// awaitReady asks the gateway as its own kind of peer, which needs no review.
func (w *world) awaitReady(t testing.TB) {
	t.Helper()
	conn, err := rpcclient.Dial(w.addresses["gateway"], rpcclient.Config{TLS: w.files(t, w.own, certs.ClientLeaf("trivet:test", certs.ServerGroup), w.ownFile)}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	testkit.Eventually(t, time.Minute, func() error {
		reply, err := gatewayv1.NewClusterServiceClient(conn).GetClusterStatus(t.Context(), &gatewayv1.GetClusterStatusRequest{})
		if err != nil {
			return err
		}
		var problems []error
		for _, service := range reply.GetStatus().GetServices() {
			replicas := service.GetReplicas()
			if service.GetLedShardCount() < service.GetShardCount() || len(replicas) != 1 || !replicas[0].GetStatus().GetReady() {
				problems = append(problems, fmt.Errorf("%s is not ready: %v", service.GetService(), service))
			}
		}
		if len(reply.GetStatus().GetServices()) != len(w.addresses) {
			problems = append(problems, errors.New("not all servers are registered"))
		}
		return errors.Join(problems...)
	})
}

// makeSubjects makes the Nodes, the agents' Pods, and the bindings of users to the shipped roles.
func (w *world) makeSubjects(t testing.TB) {
	t.Helper()
	for _, node := range []string{ownNode, otherNode} {
		_, err := w.kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
		must(t, err)
	}
	_, err := w.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantNamespace}}, metav1.CreateOptions{})
	must(t, err)
	_, err = w.kube.CoreV1().ServiceAccounts(roles.Namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: agentAccount}}, metav1.CreateOptions{})
	must(t, err)
	for _, user := range []string{"viewer", "operator"} {
		_, err := w.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "test-" + user}, RoleRef: roleRef("trivet-" + user), Subjects: subjects(user),
		}, metav1.CreateOptions{})
		must(t, err)
	}
	_, err = w.kube.RbacV1().RoleBindings(tenantNamespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test-tenant"}, RoleRef: roleRef("trivet-viewer"), Subjects: subjects("tenant"),
	}, metav1.CreateOptions{})
	must(t, err)
}

func roleRef(name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
}

func subjects(user string) []rbacv1.Subject {
	return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}
}

// must takes an object of an earlier run of the same binary.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// agentToken returns a token of the agent's account, bound to a Pod on a node.
func (w *world) agentToken(t testing.TB, node string, audiences ...string) string {
	t.Helper()
	name := "agent-" + node
	pod, err := w.kube.CoreV1().Pods(roles.Namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: agentAccount, SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}, Containers: []corev1.Container{{Name: "agent", Image: "agent", SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}}}},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		pod, err = w.kube.CoreV1().Pods(roles.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	reply, err := w.kube.CoreV1().ServiceAccounts(roles.Namespace).CreateToken(t.Context(), agentAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: audiences, BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return reply.Status.Token
}
