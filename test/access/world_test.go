package access

import (
	"fmt"
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

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/roles"
	"github.com/trivet-dev/trivet/internal/rpcclient"
	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	tenantNamespace = "tenant"
	agentAccount    = "trivet-agent"
	audience        = "trivet"
)

// world has the four servers with their real certificates and roles, and what issues credentials.
type world struct {
	lab  *worldtest.World
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
	lab := worldtest.New(t, worldtest.Config{Name: "access", Plain: true, Roles: []string{"base", "components/node-health"}})
	w := &world{lab: lab, dir: lab.Dir, kube: lab.Kube, addresses: map[string]string{}, http: map[string]func() string{}, log: &testkit.LogBuffer{}}
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
	w.addresses[program.Name] = w.run(t, program, "").GRPCAddress
}

// run starts a server and returns where it listens. Without a kubeconfig it has the rights of its
// roles.
func (w *world) run(t testing.TB, program process.Program, kubeconfig string) term.Member {
	t.Helper()
	program.Build = w.seen(program.Build)
	server := w.lab.RunInProcess(t, program, w.log, func(cfg *process.Config) {
		cfg.RPC.Insecure, cfg.RPC.PeerCAFile = false, w.ownFile
		cfg.RPC.TLS = w.files(t, w.own, certs.ServerLeaf(program.Name, roles.Namespace, "cluster.local"), w.clients)
		if kubeconfig != "" {
			cfg.Kube.Kubeconfig = kubeconfig
		}
		if program.Name == worldtest.Leasesvc {
			cfg.Loops = append(cfg.Loops, "node-health")
		}
		if w.limits != nil {
			cfg.Limits = w.limits
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
	worldtest.Await(t, time.Minute, worldtest.OneOfEach(conn))
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
