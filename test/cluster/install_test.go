package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/test/lab/nodecluster"
)

var runInstall = flag.Bool("install", false, "start a cluster of upstream's components alone for the tests that install Trivet; needs root, kubectl, helm and the chart")

const (
	// installLimit is the time from the first command of the document to a green check.
	installLimit = 5 * time.Minute
	commandLimit = 6 * time.Minute
	// managerRestart limits how long no EndpointSlice changes while kube-controller-manager is
	// replaced: its Lease ends after 15 s, and the kubelet starts it again.
	managerRestart = 75 * time.Second

	installDocument = "../../docs/install.md"
	installSection  = "## Helm, with your etcd"
	home            = "/root" // of the machine at which a person types
	workFolder      = home + "/trivet"
	upgradeCommand  = "helm upgrade trivet dist/trivet-0.1.0.tgz -n trivet-system -f values.yaml --wait"
)

// installation is that of the bare cluster, once in a run.
var installation struct {
	once sync.Once
	done bool
}

// bareCluster returns the cluster of upstream's components in which the tests install Trivet, and
// installs it as docs/install.md says if no test has.
func bareCluster(t *testing.T) *fixture {
	t.Helper()
	if !*runInstall {
		t.Skip("needs -install and root: run `make test-install`")
	}
	f := bare.forTest(t, func() (*fixture, error) {
		f, err := openOrStart("", (*nodecluster.Config).UseUpstream)
		if err == nil {
			err = f.equipPerson()
		}
		return f, err
	})
	installation.once.Do(func() {
		f.install(t)
		installation.done = true
	})
	if !installation.done {
		t.Fatal("the installation has failed")
	}
	return f
}

// equipPerson writes what a person has on the first control-plane machine: the programs, and of the
// repository what the commands of the document name.
func (f *fixture) equipPerson() error {
	charts, err := filepath.Glob("../../dist/trivet-*.tgz")
	if err != nil || len(charts) == 0 {
		return fmt.Errorf("no chart in dist (%w): run `make chart`", err)
	}
	if _, err := os.Stat("/usr/bin/kubectl"); err != nil {
		return fmt.Errorf("nodes have the programs of /usr, and kubectl is not there: %w", err)
	}
	values, err := documentedValues(f.Nodes()[0].Address.String())
	if err != nil {
		return err
	}
	root := f.Nodes()[0].RootDir()
	copied := map[string]string{
		filepath.Join(*arguments.binaries, "trivet"): home + "/bin/trivet",
		"../../.tools/bin/helm":                      home + "/bin/helm",
		newest(charts):                               workFolder + "/dist/trivet-0.1.0.tgz", // as the document has it
		"../../deploy/base/namespace.yaml":           workFolder + "/deploy/base/namespace.yaml",
	}
	var problems []error
	for from, to := range copied {
		content, err := os.ReadFile(from)
		file := filepath.Join(root, to)
		problems = append(problems, err, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, content, 0o755))
	}
	return errors.Join(append(problems, os.WriteFile(filepath.Join(root, workFolder, "values.yaml"), []byte(values), 0o600))...)
}

func newest(files []string) string {
	return slices.MaxFunc(files, func(a, b string) int { return modified(a).Compare(modified(b)) })
}

func modified(file string) time.Time {
	info, err := os.Stat(file)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// blocks returns the code blocks of a language in a section of a document.
func blocks(file, section, language string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	_, rest, found := strings.Cut(string(text), "\n"+section+"\n")
	if !found {
		return nil, fmt.Errorf("%s has no section %q", file, section)
	}
	part, _, _ := strings.Cut(rest, "\n## ")
	var all []string
	for _, match := range regexp.MustCompile("(?ms)^ *```"+language+"\n(.*?)^ *```$").FindAllStringSubmatch(part, -1) {
		all = append(all, unindented(match[1]))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("section %q of %s has no block of %s", section, file, language)
	}
	return all, nil
}

// unindented removes the indentation of the first line from all lines.
func unindented(text string) string {
	indentation := text[:len(text)-len(strings.TrimLeft(text, " "))]
	return strings.ReplaceAll(strings.TrimPrefix(text, indentation), "\n"+indentation, "\n")
}

// documentedValues are the values.yaml of the document for this cluster.
func documentedValues(etcd string) (string, error) {
	general, err := blocks(installDocument, "## Before", "yaml")
	if err != nil {
		return "", err
	}
	own, err := blocks(installDocument, installSection, "yaml")
	return forThisCluster(strings.Join(append(general, own...), ""), etcd), err
}

// forThisCluster replaces the image and the addresses of the document.
func forThisCluster(text, etcd string) string {
	return strings.NewReplacer("REGISTRY/trivet", "docker.io/library/trivet", "TAG", "devel",
		`, "https://10.0.0.2:2379"`, "", "10.0.0.1", etcd).Replace(text)
}

// typed is a command on the first control-plane machine, with an administrator's kubeconfig.
func (f *fixture) typed(ctx context.Context, line string) (*exec.Cmd, error) {
	command, err := f.Nodes()[0].Command(ctx, "bash", "-c", "cd "+workFolder+" && "+line)
	if err != nil {
		return nil, err
	}
	command.Env = append(command.Env, "HOME="+home, "KUBECONFIG=/etc/kubernetes/admin.conf", "PATH="+home+"/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	return command, nil
}

// run runs a command to its end and returns its standard output.
func (f *fixture) run(t *testing.T, line string) string {
	t.Helper()
	output, err := f.try(t, line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return output
}

func (f *fixture) try(t *testing.T, line string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit+*shadowTime)
	defer cancel()
	command, err := f.typed(ctx, line)
	if err != nil {
		return "", err
	}
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	began := time.Now()
	err = command.Run()
	t.Logf("$ %s   # %s\n%s%s", line, milliseconds(time.Since(began)), stdout.String(), stderr.String())
	return stdout.String(), err
}

// install types the commands of the document, and then `trivet check`, which must be green.
func (f *fixture) install(t *testing.T) {
	t.Helper()
	scripts, err := blocks(installDocument, installSection, "sh")
	if err != nil {
		t.Fatal(err)
	}
	before, err := f.try(t, "trivet check --pre")
	if err != nil || strings.Contains(before, "×") {
		t.Errorf("the cluster is not fit for an install: %v", err)
	}
	commands := strings.Split(strings.TrimSpace(scripts[0]), "\n")
	began := time.Now()
	for _, line := range commands {
		typed := time.Now()
		f.run(t, forThisCluster(line, f.Nodes()[0].Address.String()))
		figure(t, "$ "+line, milliseconds(time.Since(typed)), "-")
	}
	took := time.Since(began)
	figure(t, "installed and green, from the first command", milliseconds(took), "≤ "+installLimit.String())
	if took > installLimit {
		t.Errorf("the commands took %v, want %v at most", took, installLimit)
	}
}

// README.md has the commands of docs/install.md; a comment may follow one.
func TestInstall_READMEHasTheCommandsOfTheDocument(t *testing.T) {
	commands := func(file, section string) []string {
		found, err := blocks(file, section, "sh")
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for line := range strings.Lines(found[0]) {
			line, _, _ = strings.Cut(line, " # ")
			lines = append(lines, strings.TrimSpace(line))
		}
		return lines
	}
	if diff := cmp.Diff(commands(installDocument, installSection), commands("../../README.md", "## Install")); diff != "" {
		t.Errorf("commands of docs/install.md (-) and README.md (+):\n%s", diff)
	}
}

// The commands of the document lead to a green check beside upstream, without a second writer.
func TestInstall_AsDocumented(t *testing.T) {
	f := bareCluster(t)
	pods, err := f.kube.CoreV1().Pods(trivetNamespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ready := 0
	for i := range pods.Items {
		if podIsReady(&pods.Items[i]) {
			ready++
		}
	}
	if ready != 8 {
		t.Errorf("%d Pods are ready, want two of each server", ready)
	}
}

// awaitCheck waits until `trivet check` has no failure and no warning.
func (f *fixture) awaitCheck(t *testing.T) {
	t.Helper()
	f.run(t, "trivet check --wait 3m")
}

// upgrade changes values of the release.
func (f *fixture) upgrade(t *testing.T, values ...string) {
	t.Helper()
	f.run(t, upgrading(values...))
}

func upgrading(values ...string) string {
	line := upgradeCommand
	for _, value := range values {
		line += " --set '" + value + "'"
	}
	return line
}

// loaded is a namespace whose Pods become ready and unready, and are deleted.
type loaded struct {
	*history
	f   *fixture
	end func() (flipped, deleted int)
}

func (f *fixture) load(t *testing.T, name string) *loaded {
	t.Helper()
	namespace := f.namespace(t, name)
	h := watchAll(t, f.kube, namespace)
	f.deploy(t, namespace)
	h.await(t, rolloutLimit, func() error { return atRest(h, webReplicas) })
	return &loaded{history: h, f: f, end: f.startFlips(t, h)}
}

// check ends the load, waits until slices are right, and looks at all that was since then.
func (l *loaded) check(t *testing.T, began time.Time, what string, bound time.Duration) {
	t.Helper()
	mustEventually(t, time.Minute, func(context.Context) error { // what was done may be faster than the load
		if lags := sliceLags(l.since(time.Time{}), began, time.Now()); len(lags.stale) == 0 || len(lags.missing) == 0 {
			return errors.New("the load has not made Pods ready and unready yet")
		}
		return nil
	})
	flips, deletions := l.end()
	l.f.makeReady(t, l.history)
	l.await(t, bound+time.Minute, func() error { return atRest(l.history, webReplicas) })
	figure(t, what+", under load", fmt.Sprintf("%s, %d readiness flips, %d Pods deleted", milliseconds(time.Since(began)), flips, deletions), "0 wrong slices, 0 nodes declared")
	checkSlices(t, l.history, began, what, bound)
	checkNoNodeDeclared(t, l.history, began)
}

// podArgument returns the value of an argument of a static Pod's manifest on a node.
func podArgument(flag string) *regexp.Regexp {
	return regexp.MustCompile(regexp.QuoteMeta(flag) + `=([^\s'"]*)`)
}

// editPod changes an argument in the manifest of a static Pod, as a person does with an editor, and
// waits until the kubelet has replaced the Pod.
func (f *fixture) editPod(t *testing.T, node, pod, flag, value string) {
	t.Helper()
	n := f.node(t, node)
	text, err := n.Pod(pod)
	if err != nil {
		t.Fatal(err)
	}
	argument := podArgument(flag)
	if found := argument.FindAll(text, -1); len(found) != 1 {
		t.Fatalf("the manifest of %s on %s has %s %d times", pod, node, flag, len(found))
	}
	if err := n.SetPod(pod, argument.ReplaceAll(text, []byte(flag+"="+strings.ReplaceAll(value, "$", "$$")))); err != nil {
		t.Fatal(err)
	}
	mustEventually(t, replaceLimit, func(ctx context.Context) error {
		found, err := f.kube.CoreV1().Pods(metav1.NamespaceSystem).Get(ctx, pod+"-"+node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.Contains(found.Spec.Containers[0].Args, flag+"="+value) || !podIsReady(found) || !containersRun(found) {
			return fmt.Errorf("Pod %s has not been replaced", found.Name)
		}
		return nil
	})
}

func containersRun(pod *corev1.Pod) bool {
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running == nil })
}
