package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/deploy"
	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/internal/roles"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/gobuild"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// migrateThere makes the test of a whole migration run, which mostly waits: two minutes.
var migrateThere = flag.Bool("migrate", false, "migrate EndpointSlices between a real kube-controller-manager and slicesvc")

// probeLabel marks the Services by which `trivet migrate` looks at the cluster.
const probeLabel = "trivet.dev/migration-probe"

// installation is all servers in a cluster, for `trivet check` and `trivet migrate`.
type installation struct {
	t       *testing.T
	cluster *devcluster.Cluster
	kube    kubernetes.Interface
	servers map[string]*running
	name    string
}

func install(t *testing.T, name string) *installation {
	t.Helper()
	i := &installation{t: t, cluster: testkit.Cluster(t), kube: testkit.Kube(t), servers: map[string]*running{}, name: name}
	i.start("leasesvc")
	i.start("bootstrapsvc")
	i.start("slicesvc")
	i.start("gateway", "--http-listen=")
	for _, server := range i.servers {
		testkit.Eventually(t, time.Minute, server.ready)
	}
	return i
}

func (i *installation) start(server string, args ...string) {
	i.t.Helper()
	i.servers[server] = serve(i.t, i.cluster, server, append(args, "--cluster="+i.name)...)
}

// command returns a command line with gateway and kubeconfig. The last flag of a name counts.
func (i *installation) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	i.t.Helper()
	return trivet(ctx, i.t, i.servers["gateway"].grpc, append([]string{name, "--kubeconfig=" + i.cluster.Kubeconfig()}, args...)...)
}

// checked are the results of `trivet check` by ID.
type checked struct {
	Worst  string
	Checks []struct{ ID, State, Found, Hint string }
	code   int
}

// states returns the IDs of checks in a state.
func (c checked) states(state string) []string {
	var ids []string
	for _, check := range c.Checks {
		if check.State == state {
			ids = append(ids, check.ID)
		}
	}
	return ids
}

// is returns nil if a check has a state and its finding contains a text.
func (c checked) is(id, state, text string) error {
	for _, check := range c.Checks {
		if check.ID == id {
			if check.State != state || !strings.Contains(check.Found, text) {
				return fmt.Errorf("check %s is %s: %s; want %s with %q", id, check.State, check.Found, state, text)
			}
			return nil
		}
	}
	return fmt.Errorf("there is no check %s", id)
}

// names returns nil if the remedy of a check has a command line.
func (c checked) names(id, line string) error {
	for _, check := range c.Checks {
		if check.ID == id && strings.Contains(check.Hint, "`"+line+"`") {
			return nil
		}
	}
	return fmt.Errorf("the remedy of check %s does not name `%s`: %+v", id, line, c.Checks)
}

func (i *installation) check(t *testing.T, args ...string) checked {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := i.command(ctx, "check", append(args, "--output=json")...)
	var stderr strings.Builder
	command.Stderr = &stderr
	output, err := command.Output()
	var c checked
	if exited := (*exec.ExitError)(nil); errors.As(err, &exited) {
		c.code = exited.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(output, &c); err != nil {
		t.Fatalf("trivet check %v: %v\n%s%s", args, err, output, stderr.String())
	}
	return c
}

func (i *installation) eventually(t *testing.T, id, state, text string, args ...string) checked {
	t.Helper()
	var last checked
	testkit.Eventually(t, time.Minute, func() error {
		last = i.check(t, args...)
		return last.is(id, state, text)
	})
	return last
}

func (i *installation) etcdFlags() []string {
	ca, cert, key := i.cluster.EtcdFiles()
	return []string{
		"--etcd-endpoints=" + strings.Join(i.cluster.EtcdEndpoints(), ","), "--cluster=" + i.name,
		"--etcd-ca-file=" + ca, "--etcd-cert-file=" + cert, "--etcd-key-file=" + key,
	}
}

// startManager runs kube-controller-manager with some controllers and leader election, until the
// returned function is called.
func (i *installation) startManager(t *testing.T, controllers string) (stop func()) {
	t.Helper()
	binary, err := filepath.Abs(filepath.Join("..", "..", ".assets", "kube-controller-manager"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skip("kube-controller-manager is not built: run `make assets-rivals`")
	}
	output := &testkit.LogBuffer{}
	command := exec.Command(binary, "--kubeconfig="+i.cluster.Kubeconfig(), "--controllers="+controllers, "--secure-port=0",
		"--leader-elect-lease-duration=6s", "--leader-elect-renew-deadline=4s", "--leader-elect-retry-period=1s")
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = command.Process.Kill()
			_ = command.Wait()
		}
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			text := output.String()
			t.Logf("kube-controller-manager said:\n%s", text[max(0, len(text)-4<<10):])
		}
	})
	return stop
}

// All checks pass on real servers, and each fault is found by its check and named as what it is.
func TestCheck_FindsEachFaultOnRealServers(t *testing.T) {
	testkit.LongTest(t, 3)
	i := install(t, "checked")

	t.Run("an installation without faults", func(t *testing.T) {
		ok := i.eventually(t, "verdict", "ok", "")
		if bad := slices.Concat(ok.states("failed"), ok.states("unknown"), ok.states("warning")); len(bad) > 0 || ok.code != 0 {
			t.Errorf("exit code %d; these need attention: %v\n%+v", ok.code, bad, ok.Checks)
		}
		if err := ok.is("writers-slices", "ok", "slicesvc writes"); err != nil {
			t.Error(err)
		}
	})
	t.Run("before an install", i.preChecks)
	t.Run("a person with the documented role", i.personOnCall)
	t.Run("a roll-out that is stuck", i.stuckRollOut)
	t.Run("an etcd without users", func(t *testing.T) {
		if err := i.check(t, i.etcdFlags()...).is("etcd-rights", "warning", "are not Trivet's"); err != nil {
			t.Error(err)
		}
	})
	t.Run("a wrong authority", func(t *testing.T) {
		foreign, _, _ := i.cluster.EtcdFiles()
		c := i.check(t, "--ca-file="+foreign)
		if err := c.is("gateway", "failed", "certificate signed by unknown authority"); err != nil || c.code != 1 {
			t.Errorf("exit code %d: %v", c.code, err)
		}
		if failed := c.states("failed"); len(failed) != 1 {
			t.Errorf("%v failed, though only the gateway gave an answer", failed)
		}
	})
	t.Run("removed rights", func(t *testing.T) {
		const binding = "trivet:slicesvc"
		if err := i.kube.RbacV1().ClusterRoleBindings().Delete(t.Context(), binding, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		defer i.applyRoles()
		c := i.eventually(t, "rights-slicesvc", "failed", "endpointslices")
		if err := c.is("rights-leasesvc", "ok", ""); err != nil {
			t.Error(err)
		}
		i.applyRoles() // as the remedy says
		i.eventually(t, "rights-slicesvc", "ok", "")
	})
	t.Run("certificates that have expired", i.expiredCertificates)
	t.Run("upstream's loop beside ours", i.rival)
	t.Run("a server that is down", func(t *testing.T) {
		i.servers["slicesvc"].stop(t, syscall.SIGKILL, 10*time.Second)
		c := i.eventually(t, "shards", "failed", "slicesvc")
		if c.code != 1 {
			t.Errorf("exit code %d, want 1", c.code)
		}
		c = i.eventually(t, "replicas", "failed", "slicesvc has no replica")
		if err := c.is("gateway", "ok", ""); err != nil {
			t.Error(err)
		}
		if err := c.names("shards", "trivet shards"); err != nil {
			t.Error(err)
		}
		i.start("slicesvc") // as the remedy says
		i.eventually(t, "shards", "ok", "")
	})
}

// personOnCall has the role of docs/checks.md, and no other right at kube-apiserver.
func (i *installation) personOnCall(t *testing.T) {
	const person = "checked-on-call"
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "checks.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, documented, _ := strings.Cut(string(text), "```yaml\n")
	documented, _, _ = strings.Cut(documented, "```")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := i.cluster.WriteKubeconfig(kubeconfig, person); err != nil {
		t.Fatal(err)
	}
	without := i.check(t, "--kubeconfig="+kubeconfig)
	if len(without.states("unknown")) < 5 {
		t.Errorf("without the role, undetermined is only %v", without.states("unknown"))
	}
	for _, check := range without.Checks {
		if check.State == "unknown" && !strings.Contains(check.Hint, "trivet-checker") {
			t.Errorf("check %s does not name the role: %s %s", check.ID, check.Found, check.Hint)
		}
	}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: person}}
	for _, object := range strings.Split(documented, "---\n") {
		var role rbacv1.Role // a ClusterRole has the same fields
		if err := yaml.UnmarshalStrict([]byte(object), &role); err != nil {
			t.Fatalf("%v in %s", err, object)
		}
		meta := metav1.ObjectMeta{Name: role.Name}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.Kind, Name: role.Name}
		if role.Kind == "ClusterRole" {
			_, err = i.kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: role.Rules}, metav1.CreateOptions{})
			_, bindErr := i.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
			err = errors.Join(err, bindErr)
		} else {
			_, err = i.kube.RbacV1().Roles(role.Namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: role.Rules}, metav1.CreateOptions{})
			_, bindErr := i.kube.RbacV1().RoleBindings(role.Namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects}, metav1.CreateOptions{})
			err = errors.Join(err, bindErr)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, time.Minute, func() error { // the authorizer learns roles with a delay
		c := i.check(t, "--kubeconfig="+kubeconfig)
		if bad := slices.Concat(c.states("failed"), c.states("unknown"), c.states("warning")); len(bad) > 0 || c.code != 0 {
			return fmt.Errorf("exit code %d; these need attention: %v\n%+v", c.code, bad, c.Checks)
		}
		return c.is("certificates", "ok", "You may not read the Secrets")
	})
}

// stuckRollOut has a Deployment whose new Pod never joins, beside the replicas that serve on.
func (i *installation) stuckRollOut(t *testing.T) {
	const name = "slicesvc"
	labels := map[string]string{"app.kubernetes.io/name": name}
	one := int32(1)
	yes, no := true, false
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{Name: "server", Image: "i", SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}}},
	}}
	deployments, pods := i.kube.AppsV1().Deployments(roles.Namespace), i.kube.CoreV1().Pods(roles.Namespace)
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}
	if _, err := deployments.Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name + "-new", Labels: labels}, Spec: template.Spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = deployments.Delete(context.Background(), name, metav1.DeleteOptions{})
		_ = pods.Delete(context.Background(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	}()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "server", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 64, Reason: "Error"}},
	}}
	if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c := i.check(t)
	if err := errors.Join(c.is("workloads", "failed", "slicesvc-new: container server waits (CrashLoopBackOff): it ended with exit code 64"), c.is("replicas", "ok", "")); err != nil || c.code != 1 {
		t.Errorf("exit code %d: %v", c.code, err)
	}
}

// expiredCertificates has a server whose certificates of both authorities have expired. The
// remedies of check and command renew them.
func (i *installation) expiredCertificates(t *testing.T) {
	const server = "slicesvc"
	now, secrets := time.Now(), i.kube.CoreV1().Secrets(roles.Namespace)
	etcd, err := certs.NewAuthority("etcd", 10000*time.Hour, now)
	if err != nil {
		t.Fatal(err)
	}
	key, err := etcd.KeyPEM()
	folder := t.TempDir()
	etcdFlags := []string{"--etcd-ca-cert=" + filepath.Join(folder, "ca.crt"), "--etcd-ca-key=" + filepath.Join(folder, "ca.key")}
	err = errors.Join(err, os.WriteFile(filepath.Join(folder, "ca.crt"), etcd.CertPEM(), 0o600), os.WriteFile(filepath.Join(folder, "ca.key"), key, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	apply := func(args ...string) (string, error) {
		t.Helper()
		command := exec.CommandContext(t.Context(), gobuild.Command(t, "trivet"), append([]string{"certs", "apply", "--kubeconfig=" + i.cluster.Kubeconfig()}, args...)...)
		output, err := command.CombinedOutput()
		return string(output), err
	}
	t.Cleanup(func() {
		ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=trivet-certs"}
		err := errors.Join(secrets.DeleteCollection(context.Background(), metav1.DeleteOptions{}, ours),
			i.kube.CoreV1().ConfigMaps(roles.Namespace).DeleteCollection(context.Background(), metav1.DeleteOptions{}, ours))
		if err != nil {
			t.Error(err)
		}
	})
	if output, err := apply(etcdFlags...); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	i.eventually(t, "certificates", "ok", "")

	authority, err := secrets.Get(t.Context(), "trivet-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own, err := certs.Decode(authority.Data)
	if err != nil {
		t.Fatal(err)
	}
	expire := func(name string, authority *certs.Authority, leaf certs.Leaf) {
		t.Helper()
		pair, err := authority.Issue(leaf, 30*time.Minute, now.Add(-40*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		secret, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = pair.CertPEM, pair.KeyPEM
		if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	expire("trivet-"+server+"-tls", own.Signing, certs.ServerLeaf(server, roles.Namespace, "cluster.local"))
	expire("trivet-"+server+"-etcd", etcd, certs.EtcdClientLeaf(server, roles.Namespace))
	c := i.check(t)
	err = errors.Join(c.is("certificates", "failed", "trivet-"+server+"-tls"), c.names("certificates", "trivet certs apply"),
		c.names("certificates", "--etcd-ca-cert"), c.names("certificates", "--etcd-ca-key"))
	if err != nil {
		t.Error(err)
	}

	output, err := apply()
	if err == nil || !strings.Contains(output, "--etcd-ca-cert and --etcd-ca-key") {
		t.Errorf("without the authority of etcd: %v, want a failure that names its flags\n%s", err, output)
	}
	if err := i.check(t).is("certificates", "failed", "trivet-"+server+"-etcd"); err != nil {
		t.Error(err)
	}
	if output, err := apply(etcdFlags...); err != nil {
		t.Errorf("with the authority of etcd: %v\n%s", err, output)
	}
	if err := i.check(t).is("certificates", "ok", ""); err != nil {
		t.Error(err)
	}
}

func (i *installation) applyRoles() {
	if err := roles.Apply(context.Background(), i.cluster.RESTConfig(), deploy.Files(), "base", "components/node-health"); err != nil {
		i.t.Error(err)
	}
}

func (i *installation) preChecks(t *testing.T) {
	c := i.check(t, append(i.etcdFlags(), "--pre", "--node=no")...)
	for _, id := range []string{"pre-kube-version", "pre-kube-apis", "pre-rights", "pre-clock", "pre-etcd-members", "pre-etcd-transactions", "pre-etcd-certificates", "pre-upstream-endpoints"} {
		if err := c.is(id, "ok", ""); err != nil {
			t.Error(err)
		}
	}
	left, err := testkit.Etcd(t).Get(t.Context(), "/trivet/"+i.name+"/check/", clientv3.WithPrefix())
	if err != nil || len(left.Kvs) > 0 {
		t.Errorf("the check left %v in etcd (%v)", left, err)
	}
	stranger := filepath.Join(t.TempDir(), "kubeconfig")
	if err := i.cluster.WriteKubeconfig(stranger, "stranger"); err != nil {
		t.Fatal(err)
	}
	ca, _, _ := i.cluster.EtcdFiles()
	c = i.check(t, "--pre", "--node=no", "--kubeconfig="+stranger, "--etcd-endpoints="+i.cluster.EtcdEndpoints()[0], "--etcd-ca-file="+ca, "--timeout=3s")
	for id, want := range map[string][2]string{
		"pre-rights":            {"failed", "You may not"},
		"pre-etcd-members":      {"failed", "certificate required"},
		"pre-etcd-transactions": {"unknown", "could not be determined"},
		"pre-upstream-slices":   {"unknown", "forbidden"},
	} {
		if err := c.is(id, want[0], want[1]); err != nil {
			t.Error(err)
		}
	}
	if c.code != 1 {
		t.Errorf("exit code %d, want 1", c.code)
	}
}

// rival runs upstream's controller beside slicesvc. Both create slices of new Services.
func (i *installation) rival(t *testing.T) {
	namespace := testkit.Namespace(t, i.kube)
	stop := i.startManager(t, "endpointslice-controller,node-lifecycle-controller")
	defer stop()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := i.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := i.kube.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	number := 0
	testkit.Eventually(t, time.Minute, func() error {
		number++
		makeService(t, i.kube, namespace, fmt.Sprintf("fought-%d", number))
		time.Sleep(500 * time.Millisecond) // both controllers see the Service meanwhile
		return i.check(t).is("writers-slices", "failed", "Two programs write")
	})
	c := i.eventually(t, "pre-upstream-nodes", "warning", "kube-controller-manager registered Node", "--pre", "--node=no")
	for id, want := range map[string][2]string{
		"pre-upstream-slices":  {"warning", "kube-controller-manager wrote"},
		"pre-upstream-manager": {"ok", "leads since"},
	} {
		if err := c.is(id, want[0], want[1]); err != nil {
			t.Error(err)
		}
	}

	// An interrupted migration leaves no Service, and says where it was.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := i.command(ctx, "migrate", "slices", "--to=trivet", "--probe-namespace="+namespace)
	output := &testkit.LogBuffer{}
	command.Stdout, command.Stderr = output, output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if !strings.Contains(output.String(), "kube-controller-manager created the EndpointSlice of a new Service") {
			return fmt.Errorf("trivet migrate said:\n%s", output)
		}
		return nil
	})
	if err := command.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); command.ProcessState.ExitCode() != 130 || !strings.Contains(output.String(), "interrupted before the proof of step 1") {
		t.Errorf("exit code %d (%v):\n%s", command.ProcessState.ExitCode(), err, output)
	}
	i.noProbeLeft(t, namespace)
}

func (i *installation) noProbeLeft(t *testing.T, namespace string) {
	t.Helper()
	services, err := i.kube.CoreV1().Services(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: probeLabel})
	if err != nil || len(services.Items) > 0 {
		t.Errorf("%d probe Services are left (%v)", len(services.Items), err)
	}
	found, err := i.kube.DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, slice := range found.Items {
		if strings.Contains(slice.Labels[discoveryv1.LabelServiceName], "migration-probe") {
			t.Errorf("EndpointSlice %s of a probe Service is left", slice.Name)
		}
	}
}

// A migration of EndpointSlices there and back ends with the proof of each step, waits for a step
// that is not done, and keeps the slices of a Service all the time.
func TestMigrate_SlicesThereAndBack(t *testing.T) {
	if !*migrateThere {
		t.Skip("it takes two minutes: -args -migrate")
	}
	i := install(t, "migrated")
	namespace := testkit.Namespace(t, i.kube)
	i.servers["slicesvc"].stop(t, syscall.SIGTERM, 30*time.Second)
	stop := i.startManager(t, "endpointslice-controller")
	makeService(t, i.kube, namespace, "kept")
	testkit.Eventually(t, 30*time.Second, func() error { return hasSlice(t, i.kube, namespace, "kept") })
	before := i.slice(t, namespace)

	there := i.migrate(t, "slices", "trivet", "--probe-namespace="+namespace)
	there.says(t, "Turn off upstream's endpointslice-controller", "created the EndpointSlice of a new Service")
	stop()
	stop = i.startManager(t, "ttl-after-finished-controller")
	there.says(t, "√ step 1: kube-controller-manager created no EndpointSlice", "step 2 of 3")
	i.start("slicesvc")
	there.succeeds(t, "√ step 2", "√ step 3: slicesvc alone created", "√ slices: trivet carries the duty")

	back := i.migrate(t, "slices", "upstream", "--probe-namespace="+namespace)
	back.says(t, "the loop is on in")
	i.servers["slicesvc"].stop(t, syscall.SIGTERM, 30*time.Second)
	back.says(t, "√ step 1", "creates no EndpointSlice for a new Service")
	stop()
	i.startManager(t, "endpointslice-controller")
	back.succeeds(t, "√ step 2: kube-controller-manager created", "√ slices: upstream carries the duty")

	i.noProbeLeft(t, namespace)
	if after := i.slice(t, namespace); after.UID != before.UID {
		t.Errorf("the slice of the Service was replaced: %s, then %s", before.Name, after.Name)
	}
}

// A migration of endpoints waits for --adopt-master-leases, then for each kube-apiserver with its
// own reconciler, which its key in etcd names, and then for the end of the adoption.
func TestMigrate_EndpointsWaitForEachKubeAPIServer(t *testing.T) {
	if !*migrateThere {
		t.Skip("it starts a second kube-apiserver: -args -migrate")
	}
	i := install(t, "reconciled")
	const address = "10.99.7.1"
	peer, err := i.cluster.AddAPIServer(t.Context(), devcluster.PeerConfig{AdvertiseAddress: address, Args: []string{"--endpoint-reconciler-type=lease"}})
	if err != nil {
		t.Fatal(err)
	}
	i.eventually(t, "pre-upstream-endpoints", "warning", address, append(i.etcdFlags(), "--pre", "--node=no")...)
	flags := append(i.etcdFlags(), "--node=no")
	i.eventually(t, "writers-endpoints", "failed", "Two programs write", flags...)

	m := i.migrate(t, "endpoints", "trivet", slices.DeleteFunc(i.etcdFlags(), isCluster)...)
	m.says(t, "no replica of bootstrapsvc runs with --adopt-master-leases")
	i.servers["bootstrapsvc"].stop(t, syscall.SIGTERM, 30*time.Second)
	i.start("bootstrapsvc", "--adopt-master-leases")
	m.says(t, "1 kube-apiserver without a replica of bootstrapsvc")
	if err := peer.Stop(); err != nil {
		t.Fatal(err)
	}
	m.says(t, "√ step 1", "√ step 2: no kube-apiserver renews a key")
	i.servers["bootstrapsvc"].stop(t, syscall.SIGTERM, 30*time.Second)
	i.start("bootstrapsvc")
	m.succeeds(t, "√ step 3: bootstrapsvc alone writes", "√ endpoints: trivet carries the duty")
	i.eventually(t, "writers-endpoints", "ok", "bootstrapsvc alone writes", flags...)
}

// A migration of node health there and back is proven by the Events of upstream's controller at its
// start.
func TestMigrate_NodesThereAndBack(t *testing.T) {
	if !*migrateThere {
		t.Skip("it takes three minutes: -args -migrate")
	}
	i := install(t, "judged")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testkit.Namespace(t, i.kube)}}
	if _, err := i.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := i.kube.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	stop := i.startManager(t, "node-lifecycle-controller")

	there := i.migrate(t, "nodes", "trivet")
	there.says(t, "Now: kube-controller-manager registered Node "+node.Name)
	stop()
	stop = i.startManager(t, "ttl-after-finished-controller")
	there.says(t, "√ step 1", "has registered no Node", "step 2 of 3")
	i.servers["leasesvc"].stop(t, syscall.SIGTERM, 30*time.Second)
	i.start("leasesvc", "--loops=*,node-health")
	there.succeeds(t, "√ step 2", "√ step 3: leasesvc alone writes", "√ nodes: trivet carries the duty")

	back := i.migrate(t, "nodes", "upstream")
	back.says(t, "the loop is on in")
	i.servers["leasesvc"].stop(t, syscall.SIGTERM, 30*time.Second)
	i.start("leasesvc")
	back.says(t, "√ step 1", "step 2 of 2")
	stop()
	i.startManager(t, "node-lifecycle-controller")
	back.succeeds(t, "√ step 2: kube-controller-manager registered Node", "√ nodes: upstream carries the duty")
}

func isCluster(flag string) bool { return strings.HasPrefix(flag, "--cluster=") }

func (i *installation) slice(t *testing.T, namespace string) discoveryv1.EndpointSlice {
	t.Helper()
	found, err := i.kube.DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kept"})
	if err != nil || len(found.Items) != 1 {
		t.Fatalf("%d slices (%v), want 1", len(found.Items), err)
	}
	return found.Items[0]
}

// migration is a running `trivet migrate`.
type migration struct {
	command *exec.Cmd
	output  *testkit.LogBuffer
}

func (i *installation) migrate(t *testing.T, duty, to string, args ...string) migration {
	t.Helper()
	m := migration{command: i.command(t.Context(), "migrate", append([]string{duty, "--to=" + to}, args...)...), output: &testkit.LogBuffer{}}
	m.command.Stdout, m.command.Stderr = m.output, m.output
	if err := m.command.Start(); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m migration) says(t *testing.T, texts ...string) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, func() error {
		for _, text := range texts {
			if !strings.Contains(m.output.String(), text) {
				return fmt.Errorf("no %q in:\n%s", text, m.output)
			}
		}
		return nil
	})
}

func (m migration) succeeds(t *testing.T, texts ...string) {
	t.Helper()
	m.says(t, texts...)
	if err := m.command.Wait(); err != nil {
		t.Errorf("trivet migrate: %v\n%s", err, m.output)
	}
}
