package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/trivet-dev/trivet/internal/certs"
)

const (
	migrateLimit = 5 * time.Minute
	managerPod   = "kube-controller-manager"
	// apiServerRestart limits how long upstream's controllers follow no Pod while the
	// kube-apiserver beside them is replaced: they end, and start again.
	apiServerRestart = 2 * time.Minute
	withoutAddress   = 5 * time.Second
)

var (
	askedStep  = regexp.MustCompile(`^step (\d+) of \d+: (.*)`)
	provenStep = regexp.MustCompile(`^[√‼] step (\d+): `)
	// managerChange is what the command asks for on a kube-controller-manager.
	managerChange = regexp.MustCompile(`Pod ` + managerPod + `-(\w+): --controllers=(\S+) \(now`)
)

// migration says when each step was asked for and proven.
type migration struct{ asked, proven map[int]time.Time }

// gap is the time from a change to the proof of a step. For a switch, which
// the command makes itself and asks of no person, it begins with the proof.
func (m migration) gap(from, to int) time.Duration {
	began := m.asked[from]
	if began.IsZero() {
		began = m.proven[from]
	}
	return m.proven[to].Sub(began)
}

// migrate runs `trivet migrate` and does what it asks for: actions has what a person does for each
// step. A step without an action needs none.
func (f *fixture) migrate(t *testing.T, arguments string, actions map[int]func(t *testing.T, change string)) migration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), migrateLimit)
	defer cancel()
	line := "trivet migrate " + arguments
	command, err := f.typed(ctx, line)
	if err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	command.Stdout, command.Stderr = writer, writer
	began := time.Now()
	t.Logf("$ %s", line)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	m := migration{asked: map[int]time.Time{}, proven: map[int]time.Time{}}
	type asked struct {
		step   int
		change string
	}
	steps := make(chan asked, len(actions)+1)
	go func() { // a change takes time, and the command does not wait for its end
		defer close(steps)
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			t.Logf("%8s  %s", milliseconds(time.Since(began)), lines.Text())
			if found := provenStep.FindStringSubmatch(lines.Text()); found != nil {
				step, _ := strconv.Atoi(found[1])
				m.proven[step] = time.Now()
			}
			found := askedStep.FindStringSubmatch(lines.Text())
			if found == nil {
				continue
			}
			step, _ := strconv.Atoi(found[1])
			if !m.asked[step].IsZero() {
				continue
			}
			m.asked[step] = time.Now()
			if actions[step] != nil {
				steps <- asked{step: step, change: found[2]}
			}
		}
		_, _ = io.Copy(io.Discard, reader)
	}()
	for s := range steps { // until the command has ended
		actions[s.step](t, s.change)
	}
	if err := command.Wait(); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	for step := range actions {
		if m.asked[step].IsZero() || m.proven[step].IsZero() {
			t.Fatalf("%s: step %d was not asked for and proven", line, step)
		}
	}
	figure(t, "$ "+line, milliseconds(time.Since(began)), "-")
	return m
}

// changeManager makes the change of kube-controller-manager for which the command asks.
func (f *fixture) changeManager(t *testing.T, change string) {
	t.Helper()
	found := managerChange.FindStringSubmatch(change)
	if found == nil {
		t.Fatalf("no change of kube-controller-manager in %q", change)
	}
	f.editPod(t, found[1], managerPod, "--controllers", found[2])
}

// slicesvc in dry run takes over EndpointSlices by its switch, is upgraded and rolled back, and
// gives them back, under load.
func TestInstalled_MigrateSlicesUpgradeAndRollBack(t *testing.T) {
	f := bareCluster(t)
	dryRun := []string{"servers.slicesvc.loops=", "servers.slicesvc.dryRun={endpointslices}"}
	f.upgrade(t, dryRun...)
	t.Run("to trivet", func(t *testing.T) {
		l := f.load(t, "slices-there")
		began := time.Now()
		m := f.migrate(t, "slices --to trivet", map[int]func(*testing.T, string){1: f.changeManager})
		figure(t, "no program writes slices, from the change of kube-controller-manager to the proof of the switch", milliseconds(m.gap(1, 2)), "-")
		l.check(t, began, "slices to trivet", m.gap(1, 2)+sliceBound)
	})
	t.Run("upgrade and rollback", func(t *testing.T) {
		l := f.load(t, "upgraded")
		began := time.Now()
		f.upgrade(t, append(slices.Clone(dryRun), "log.level=debug", "servers.slicesvc.flags.max-endpoints-per-slice=50")...)
		upgraded := time.Now()
		figure(t, "helm upgrade, all Pods replaced", milliseconds(upgraded.Sub(began)), "-")
		f.run(t, "helm rollback trivet -n trivet-system --wait")
		figure(t, "helm rollback, all Pods replaced", milliseconds(time.Since(upgraded)), "-")
		l.check(t, began, "helm upgrade and rollback", upgradeStale)
		f.awaitCheck(t)
	})
	t.Run("to upstream", func(t *testing.T) {
		l := f.load(t, "slices-back")
		began := time.Now()
		m := f.migrate(t, "slices --to upstream", map[int]func(*testing.T, string){2: f.changeManager})
		figure(t, "no program writes slices, on the way back", milliseconds(m.gap(1, 2)), "-")
		l.check(t, began, "slices to upstream", m.gap(1, 2)+sliceBound)
	})
	f.checkNoProbeService(t)
	f.upgrade(t)
}

// leasesvc judges nodes, and gives that back.
func TestInstalled_MigrateNodes(t *testing.T) {
	f := bareCluster(t)
	t.Run("to trivet", func(t *testing.T) {
		l := f.load(t, "nodes-there")
		began := time.Now()
		f.migrate(t, "nodes --to trivet", map[int]func(*testing.T, string){
			1: f.changeManager,
			2: func(t *testing.T, _ string) { f.upgrade(t, "servers.leasesvc.nodeHealth=true") },
		})
		l.check(t, began, "nodes to trivet", managerRestart)
		f.awaitCheck(t)
	})
	t.Run("to upstream", func(t *testing.T) {
		l := f.load(t, "nodes-back")
		began := time.Now()
		f.migrate(t, "nodes --to upstream", map[int]func(*testing.T, string){
			1: func(t *testing.T, _ string) { f.upgrade(t) },
			2: f.changeManager,
		})
		l.check(t, began, "nodes to upstream", managerRestart)
	})
}

// bootstrapsvc runs beside each kube-apiserver and takes over the endpoints of default/kubernetes,
// one kube-apiserver after the other, and gives them back.
func TestInstalled_MigrateEndpoints(t *testing.T) {
	f := bareCluster(t)
	const beside = "servers.bootstrapsvc.mode=StaticPod"
	const adopt = "servers.bootstrapsvc.flags.adopt-master-leases=true"
	etcd := fmt.Sprintf(" --etcd-endpoints https://%s:2379 --etcd-ca-file /etc/kubernetes/pki/etcd/ca.crt"+
		" --etcd-cert-file /etc/kubernetes/pki/apiserver-etcd-client.crt --etcd-key-file /etc/kubernetes/pki/apiserver-etcd-client.key", f.Nodes()[0].Address)
	setReconcilers := func(value string) func(*testing.T, string) {
		return func(t *testing.T, _ string) {
			for _, node := range []string{otherNode, stayingNode} {
				f.editPod(t, node, apiServerPod, "--endpoint-reconciler-type", value)
				mustEventually(t, replaceLimit, func(ctx context.Context) error { return f.Ready(ctx, f.node(t, node)) })
			}
		}
	}
	f.run(t, "kubectl label --overwrite namespace trivet-system pod-security.kubernetes.io/enforce=privileged")
	t.Run("to trivet", func(t *testing.T) {
		l, e := f.load(t, "endpoints-there"), watchEndpoints(t, f)
		began := time.Now()
		f.migrate(t, "endpoints --to trivet"+etcd, map[int]func(*testing.T, string){
			1: func(t *testing.T, _ string) {
				f.upgrade(t, beside)
				f.writeSidecars(t, beside, adopt)
			},
			2: setReconcilers("none"),
			3: func(t *testing.T, _ string) { f.writeSidecars(t, beside) },
		})
		e.awaitWith(t, f.node(t, otherNode), time.Minute)
		e.checkPublished(t, began)
		l.check(t, began, "endpoints to trivet", apiServerRestart)
		f.awaitCheck(t)
	})
	t.Run("to upstream", func(t *testing.T) {
		l, e := f.load(t, "endpoints-back"), watchEndpoints(t, f)
		began := time.Now()
		f.migrate(t, "endpoints --to upstream"+etcd, map[int]func(*testing.T, string){
			1: func(t *testing.T, _ string) { f.writeSidecars(t, beside, adopt) },
			2: setReconcilers("lease"),
			3: func(t *testing.T, _ string) {
				for _, node := range []string{stayingNode, otherNode} {
					if err := f.node(t, node).RemovePod("bootstrapsvc"); err != nil {
						t.Fatal(err)
					}
				}
				f.upgrade(t)
			},
		})
		e.awaitWith(t, f.node(t, otherNode), time.Minute)
		e.checkPublished(t, began)
		l.check(t, began, "endpoints to upstream", apiServerRestart)
	})
	f.run(t, "kubectl label --overwrite namespace trivet-system pod-security.kubernetes.io/enforce=restricted")
}

// checkPublished looks at each version of default/kubernetes since then. The last reconciler of
// upstream's that stops removes all addresses, and bootstrapsvc restores them.
func (h *endpointHistory) checkPublished(t *testing.T, then time.Time) {
	t.Helper()
	longest, empty := time.Duration(0), map[string]time.Time{}
	for _, c := range h.since(then) {
		if c.object.GetName() != kubernetesService || c.kind != kindSlice && c.kind != kindEndpoints {
			continue
		}
		since, was := empty[c.kind]
		switch is := c.deleted || len(publishedBy(c.object)) == 0; {
		case is && !was:
			empty[c.kind] = c.at
		case !is && was:
			longest = max(longest, c.at.Sub(since))
			delete(empty, c.kind)
		}
	}
	for kind, since := range empty {
		t.Errorf("the %s has had no address for %v", kind, time.Since(since))
	}
	figure(t, "default/kubernetes without an address, longest", milliseconds(longest), "≤ "+withoutAddress.String())
	if longest > withoutAddress {
		t.Errorf("default/kubernetes had no address for %v, want %v at most", longest, withoutAddress)
	}
}

// writeSidecars gives bootstrapsvc its files and its manifest on each control-plane machine.
func (f *fixture) writeSidecars(t *testing.T, values ...string) {
	t.Helper()
	line := "helm template trivet dist/trivet-0.1.0.tgz -n trivet-system -f values.yaml --set staticPods.print=true --show-only templates/static-pods/bootstrapsvc.yaml"
	for _, value := range values {
		line += " --set '" + value + "'"
	}
	manifest := f.run(t, line)
	for _, name := range []string{stayingNode, otherNode} {
		f.writeSidecarFiles(t, name)
		if err := f.node(t, name).SetPod("bootstrapsvc", []byte(manifest)); err != nil {
			t.Fatal(err)
		}
		mustEventually(t, replaceLimit, func(ctx context.Context) error {
			pod, err := f.kube.CoreV1().Pods(trivetNamespace).Get(ctx, "bootstrapsvc-"+name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			adopts := strings.Contains(strings.Join(pod.Spec.Containers[0].Args, " "), "adopt-master-leases=true")
			if !podIsReady(pod) || adopts != strings.Contains(manifest, "adopt-master-leases=true") {
				return fmt.Errorf("Pod %s is not ready, or has the former arguments", pod.Name)
			}
			return nil
		})
	}
}

// writeSidecarFiles copies the Secrets of the installation to a machine, and makes the kubeconfig,
// as docs/deployment.md says.
func (f *fixture) writeSidecarFiles(t *testing.T, name string) {
	t.Helper()
	const serversGroup = 65532
	root := f.node(t, name).RootDir()
	write := func(file string, content []byte) {
		t.Helper()
		path := filepath.Join(root, "/etc/trivet", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o640); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, 0, serversGroup); err != nil {
			t.Fatal(err)
		}
	}
	secret := func(name string) map[string][]byte {
		t.Helper()
		found, err := f.kube.CoreV1().Secrets(trivetNamespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return found.Data
	}
	trust, err := f.kube.CoreV1().ConfigMaps(trivetNamespace).Get(t.Context(), "trivet-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key, text := range trust.Data {
		write("trust/"+key, []byte(text))
	}
	for key, content := range secret("trivet-bootstrapsvc-etcd") {
		write("etcd/bootstrapsvc/"+key, content)
	}
	own := secret("trivet-bootstrapsvc-tls")
	write("bootstrapsvc/"+corev1.TLSCertKey, own[corev1.TLSCertKey])
	write("bootstrapsvc/"+corev1.TLSPrivateKeyKey, own[corev1.TLSPrivateKeyKey])
	write("bootstrapsvc/kubeconfig", userKubeconfig(t, filepath.Join(root, "/etc/kubernetes/pki"), "trivet:bootstrapsvc"))
}

// userKubeconfig returns what `kubeadm kubeconfig user` prints on a control-plane machine.
func userKubeconfig(t *testing.T, pki, user string) []byte {
	t.Helper()
	var files [2][]byte
	for i, file := range []string{"ca.crt", "ca.key"} {
		var err error
		if files[i], err = os.ReadFile(filepath.Join(pki, file)); err != nil {
			t.Fatal(err)
		}
	}
	authority, err := certs.ParseAuthority(files[0], files[1])
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(certs.ClientLeaf(user), 24*time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"cluster": {Server: "https://127.0.0.1:6443", CertificateAuthorityData: files[0]}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: pair.CertPEM, ClientKeyData: pair.KeyPEM}},
		Contexts:       map[string]*clientcmdapi.Context{user: {Cluster: "cluster", AuthInfo: user}},
		CurrentContext: user,
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// checkNoProbeService looks for Services that `trivet migrate` has made and not removed.
func (f *fixture) checkNoProbeService(t *testing.T) {
	t.Helper()
	left, err := f.kube.CoreV1().Services(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{LabelSelector: "trivet.dev/migration-probe"})
	if err != nil {
		t.Fatal(err)
	}
	if len(left.Items) > 0 {
		t.Errorf("%d probe Services are left", len(left.Items))
	}
}

// Upstream carries every duty again after `helm uninstall`. The test is the last one: the next test
// would find no installation.
func TestInstalled_UninstallLeavesUpstreamWorking(t *testing.T) {
	f := bareCluster(t)
	l := f.load(t, "uninstalled")
	began := time.Now()
	f.run(t, "helm uninstall trivet -n trivet-system --wait")
	mustEventually(t, time.Minute, func(ctx context.Context) error {
		pods, err := f.kube.CoreV1().Pods(trivetNamespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d Pods are left", len(pods.Items))
		}
		return err
	})
	l.check(t, began, "uninstalled", upgradeStale)
	watchEndpoints(t, f).awaitWith(t, f.node(t, otherNode), time.Minute)
}
