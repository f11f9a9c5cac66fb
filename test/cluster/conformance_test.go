package cluster

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/cluster/internal/recorder"
	"github.com/trivet-dev/trivet/test/cluster/internal/recording"
	"github.com/trivet-dev/trivet/test/cluster/internal/scenario"
	"github.com/trivet-dev/trivet/test/lab/nodecluster"
)

// options are the arguments of the test binary.
type options struct {
	record, recordings, assets, binaries *string
	update                               *bool
}

var arguments = options{
	record:     flag.String("record", "", "sides to record anew, each on a cluster of its own: upstream,ours; needs root"),
	recordings: flag.String("recordings", "testdata/recordings", "directory of the recordings, one file for each side"),
	assets:     flag.String("assets", "../../.assets", "directory with the static binaries of Kubernetes, etcd and containerd"),
	binaries:   flag.String("binaries", "../../bin/static", "directory with the static binaries of Trivet"),
	update:     flag.Bool("update", false, "write docs/upstream-recordings.md from the recordings"),
}

const (
	page       = "../../docs/upstream-recordings.md"
	podImage   = "localhost/pause:1"
	upTimeout  = 8 * time.Minute
	runTimeout = 20 * time.Minute
)

// side is a cluster with one set of controllers.
type side struct {
	name      string
	configure func(*nodecluster.Config)
}

func sides() []side {
	return []side{
		{"upstream", (*nodecluster.Config).UseUpstream},
		{"ours", func(*nodecluster.Config) {}},
	}
}

// The cluster of nodecluster.DefaultConfig.
const nodes, servers = 4, 2

func steps() []scenario.Step {
	const first, second, other, otherAddress = "w1", "w2", "cp2", "10.77.0.12"
	return slices.Concat(
		scenario.Workloads(first),
		scenario.APIServers(other, otherAddress, servers),
		scenario.Nodes(first, second),
	)
}

// TestRecord records each side that -record names. Its result is a file; the next test compares.
func TestRecord(t *testing.T) {
	if *arguments.record == "" {
		t.Skip("needs -record and root: run `make recordings`")
	}
	for name := range strings.SplitSeq(*arguments.record, ",") {
		i := slices.IndexFunc(sides(), func(s side) bool { return s.name == name })
		if i < 0 {
			t.Fatalf("-record: %q is neither upstream nor ours", name)
		}
		t.Run(name, func(t *testing.T) { record(t, sides()[i]) })
	}
}

func record(t *testing.T, s side) {
	cluster := start(t, s)
	config := cluster.RESTConfig(cluster.Nodes()[0])
	config.WarningHandler = rest.NoWarnings{} // "Endpoints is deprecated", at every call
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	r := recorder.New(kube, metav1.NamespaceDefault, scenario.Namespace)
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	watching, stopped := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.Run(watching) }()
	defer cancel()
	stage := scenario.Stage{
		Kube: kube, Recorder: r, Machines: &machines{cluster: cluster, manifests: map[string][]byte{}},
		Logger: loggerOf(t), Image: podImage,
	}
	runErr := stage.Run(ctx, scenario.AtRest(nodes, servers), steps())
	result := r.Finish()
	stopped()
	if err := <-done; err != nil {
		t.Error(err)
	}
	result.Side, result.Versions = s.name, versions(t, kube)
	if s.name == "ours" {
		result.Versions["Trivet"] = revision(t)
	}
	// What was seen until a failure helps to explain it.
	file := filepath.Join(*arguments.recordings, s.name+".jsonl")
	if runErr != nil {
		t.Errorf("the scenario stopped: %v", runErr)
		file = filepath.Join(t.ArtifactDir(), s.name+".jsonl")
	}
	save(t, result, file)
}

// start starts a cluster that ends with the test.
func start(t *testing.T, s side) *nodecluster.Cluster {
	t.Helper()
	config := nodecluster.DefaultConfig(filepath.Join(t.TempDir(), "cluster"), absolute(t, *arguments.assets), absolute(t, *arguments.binaries))
	config.Logger = loggerOf(t)
	s.configure(&config)
	ctx, cancel := context.WithTimeout(t.Context(), upTimeout)
	defer cancel()
	cluster, err := nodecluster.Start(ctx, config)
	if cluster != nil {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := cluster.Down(ctx); err != nil {
				t.Errorf("end the cluster: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}

func loggerOf(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func save(t *testing.T, r recording.Recording, file string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	to, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Save(to), to.Close()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d changes are in %s", len(r.Changes), file)
}

// machines does to the nodes of a cluster what the scenario asks for.
type machines struct {
	cluster   *nodecluster.Cluster
	manifests map[string][]byte // of stopped kube-apiservers, by node
}

const apiServerPod = "kube-apiserver"

// StopKubelet implements scenario.Machines.
func (m *machines) StopKubelet(_ context.Context, name string) error {
	node, err := m.cluster.Node(name)
	if err != nil {
		return err
	}
	return node.KillKubelet()
}

// StartKubelet implements scenario.Machines.
func (m *machines) StartKubelet(_ context.Context, name string) error {
	node, err := m.cluster.Node(name)
	if err != nil {
		return err
	}
	return node.ReleaseKubelet()
}

// StopAPIServer implements scenario.Machines.
func (m *machines) StopAPIServer(_ context.Context, name string) error {
	node, err := m.cluster.Node(name)
	if err != nil {
		return err
	}
	if m.manifests[name], err = node.Pod(apiServerPod); err != nil {
		return err
	}
	return node.RemovePod(apiServerPod)
}

// KillAPIServer implements scenario.Machines. Without its kubelet, it does not start again.
func (m *machines) KillAPIServer(_ context.Context, name string) error {
	node, err := m.cluster.Node(name)
	if err != nil {
		return err
	}
	return errors.Join(node.KillKubelet(), node.Signal(apiServerPod, syscall.SIGKILL))
}

// StartAPIServer implements scenario.Machines.
func (m *machines) StartAPIServer(_ context.Context, name string) error {
	node, err := m.cluster.Node(name)
	if err != nil {
		return err
	}
	if manifest := m.manifests[name]; manifest != nil {
		delete(m.manifests, name)
		return node.SetPod(apiServerPod, manifest)
	}
	return node.ReleaseKubelet()
}

// versions says what ran, and on which machine.
func versions(t *testing.T, kube kubernetes.Interface) map[string]string {
	t.Helper()
	nodes, err := kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) == 0 {
		t.Fatalf("list nodes: %d, %v", len(nodes.Items), err)
	}
	info := nodes.Items[0].Status.NodeInfo
	found := map[string]string{
		"Kubernetes": info.KubeletVersion, "container runtime": info.ContainerRuntimeVersion, "kernel": info.KernelVersion,
		"machine": fmt.Sprintf("%d CPUs, %s/%s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH),
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		found["load average at the end"] = strings.Join(strings.Fields(string(load))[:3], " ")
	}
	return found
}

// revision is what Trivet's binaries say about their version.
func revision(t *testing.T) string {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), filepath.Join(absolute(t, *arguments.binaries), "leasesvc"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(string(said), "leasesvc "))
}

// The recordings differ as intended and in nothing else, and the page shows it.
func TestRecordings_DifferAsIntended(t *testing.T) {
	var loaded []recording.Recording
	for _, s := range sides() {
		file, err := os.Open(filepath.Join(*arguments.recordings, s.name+".jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		r, err := recording.Load(bufio.NewReader(file))
		if err != nil {
			t.Fatalf("%s: %v", file.Name(), err)
		}
		loaded = append(loaded, r)
	}
	comparison := recording.Compare(loaded[0], loaded[1], rules())
	for _, problem := range comparison.Problems() {
		t.Error(problem)
	}
	text := pageOf(t, comparison)
	if *arguments.update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Log(text)
	saved, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if *arguments.recordings == "testdata/recordings" {
		if diff := cmp.Diff(string(saved), text); diff != "" {
			t.Errorf("%s is not what the recordings say; run this test with -args -update (-page +recordings):\n%s", page, diff)
		}
	}
}
