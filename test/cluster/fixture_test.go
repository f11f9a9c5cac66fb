package cluster

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/trivet-dev/trivet/test/lab/nodecluster"
)

var (
	runOnCluster = flag.Bool("cluster", false, "start a cluster with real nodes for the tests that need one; needs root")
	clusterDir   = flag.String("cluster.dir", "", "directory of a running cluster, which stays, for the same tests; needs root")
)

const (
	webImage      = "localhost/web:1"
	healthTimeout = 3 * time.Minute
	agentAdmin    = "127.0.0.1:7605" // of each node
)

// fixture is a cluster that tests of a run share. A test leaves it healthy.
type fixture struct {
	*nodecluster.Cluster
	kube  kubernetes.Interface // of the first node, or of any ready one in a cluster of upstream's
	owned string               // the directory, if this run has started the cluster
}

// onceFixture is a cluster that starts with the first test that needs it.
type onceFixture struct {
	once    sync.Once
	fixture *fixture
	err     error
}

// shared is the cluster with Trivet, and bare the one in which tests install it.
var shared, bare onceFixture

// sharedCluster returns the cluster of this run, healthy, and has the test wait at its end until
// the cluster is healthy again.
func sharedCluster(t *testing.T) *fixture {
	t.Helper()
	if !*runOnCluster && *clusterDir == "" {
		t.Skip("needs -cluster and root: run `make test-cluster`")
	}
	return shared.forTest(t, func() (*fixture, error) { return openOrStart(*clusterDir, func(*nodecluster.Config) {}) })
}

func (o *onceFixture) forTest(t *testing.T, start func() (*fixture, error)) *fixture {
	t.Helper()
	o.once.Do(func() { o.fixture, o.err = start() })
	if o.err != nil {
		t.Fatal(o.err)
	}
	f := o.fixture
	if err := f.awaitHealthy(t.Context()); err != nil {
		t.Fatalf("before the test: %v", err)
	}
	t.Cleanup(func() {
		if err := f.awaitHealthy(context.Background()); err != nil {
			t.Errorf("after the test: %v", err)
		}
	})
	return f
}

func openOrStart(dir string, configure func(*nodecluster.Config)) (*fixture, error) {
	ctx, cancel := context.WithTimeout(context.Background(), upTimeout)
	defer cancel()
	// A signal ends the start and not this process, which then removes what exists of the cluster.
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	f := &fixture{}
	var err error
	if dir != "" {
		f.Cluster, err = nodecluster.Open(dir)
	} else {
		err = f.start(ctx, configure)
	}
	if err == nil {
		err = f.connect()
	}
	if err == nil {
		err = f.loadWeb(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, f.end())
	}
	go f.endOnSignal()
	return f, nil
}

// connect makes the client. The tests that restart each kube-apiserver use any ready one.
func (f *fixture) connect() error {
	config := f.RESTConfig(f.Nodes()[0])
	if f.WithoutTrivet() {
		var err error
		if config, err = clientcmd.BuildConfigFromFlags("", f.Kubeconfig()); err != nil {
			return err
		}
		config.QPS = -1
	}
	config.WarningHandler = rest.NoWarnings{} // "Endpoints is deprecated", at every call
	var err error
	f.kube, err = kubernetes.NewForConfig(config)
	return err
}

// endOnSignal keeps an interrupted run from leaving its cluster.
func (f *fixture) endOnSignal() {
	received := make(chan os.Signal, 1)
	signal.Notify(received, os.Interrupt, syscall.SIGTERM)
	fmt.Fprintln(os.Stderr, "ending the cluster because of signal:", <-received)
	if err := f.end(); err != nil {
		fmt.Fprintln(os.Stderr, "end the cluster:", err)
	}
	os.Exit(1)
}

func (f *fixture) start(ctx context.Context, configure func(*nodecluster.Config)) error {
	assets, err := filepath.Abs(*arguments.assets)
	if err != nil {
		return err
	}
	binaries, err := filepath.Abs(*arguments.binaries)
	if err != nil {
		return err
	}
	if f.owned, err = os.MkdirTemp("", "cluster-test-"); err != nil {
		return err
	}
	config := nodecluster.DefaultConfig(filepath.Join(f.owned, "cluster"), assets, binaries)
	config.Logger = slog.New(slog.NewTextHandler(os.Stdout, nil))
	configure(&config)
	f.Cluster, err = nodecluster.Start(ctx, config)
	return err
}

// end ends a cluster that this run has started.
func (f *fixture) end() error {
	if f == nil || f.owned == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if f.Cluster != nil {
		if err := errors.Join(f.Down(ctx), nothingLeft(f.Cluster)); err != nil {
			return err
		}
	}
	return os.RemoveAll(f.owned)
}

// nothingLeft looks for mounts, cgroups, processes and files of an ended cluster.
func nothingLeft(c *nodecluster.Cluster) error {
	var problems []error
	if _, err := os.Stat(c.Dir()); !errors.Is(err, os.ErrNotExist) {
		problems = append(problems, fmt.Errorf("%s is left (%w)", c.Dir(), err))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	problems = append(problems, err)
	if strings.Contains(string(mounts), c.Dir()) {
		problems = append(problems, fmt.Errorf("mounts below %s are left", c.Dir()))
	}
	for _, node := range c.Nodes() {
		for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			left, err := filepath.Glob(pattern + node.Cgroup())
			problems = append(problems, err)
			if len(left) > 0 {
				problems = append(problems, fmt.Errorf("cgroups of node %s are left: %v", node.Name, left))
			}
		}
		if left, err := node.Processes(""); err != nil || len(left) > 0 {
			problems = append(problems, fmt.Errorf("processes of node %s are left: %v (%w)", node.Name, left, err))
		}
	}
	return errors.Join(problems...)
}

// loadWeb gives the image of Pods of tests to all nodes.
func (f *fixture) loadWeb(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "cluster-test-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	archive := filepath.Join(dir, "web.tar")
	program := filepath.Join(*arguments.binaries, "web")
	if err := nodecluster.WriteImage(archive, webImage, program); err != nil {
		return err
	}
	for _, node := range f.Nodes() {
		if err := node.LoadImage(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

// awaitHealthy waits until nodes and static Pods are ready, kube-apiservers answer, and no taint of
// a lost node is left.
func (f *fixture) awaitHealthy(ctx context.Context) error {
	if err := f.WaitReady(ctx, healthTimeout); err != nil {
		return err
	}
	return eventually(ctx, healthTimeout, func(ctx context.Context) error {
		for _, node := range f.Nodes() {
			if _, err := node.Pod(apiServerPod); err != nil {
				continue // a worker
			}
			if err := f.Ready(ctx, node); err != nil {
				return fmt.Errorf("kube-apiserver of %s: %w", node.Name, err)
			}
		}
		nodes, err := f.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range nodes.Items {
			if lost := lossTaints(&nodes.Items[i]); len(lost) > 0 {
				return fmt.Errorf("node %s still has taints %v", nodes.Items[i].Name, lost)
			}
		}
		return nil
	})
}

func lossTaints(node *corev1.Node) []string {
	var found []string
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeUnreachable || taint.Key == corev1.TaintNodeNotReady {
			found = append(found, taint.Key+":"+string(taint.Effect))
		}
	}
	return found
}

// node returns a node by its name.
func (f *fixture) node(t *testing.T, name string) *nodecluster.Node {
	t.Helper()
	node, err := f.Node(name)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// namespace makes one with a ServiceAccount. It is gone when the test ends.
func (f *fixture) namespace(t *testing.T, name string) string {
	t.Helper()
	ctx := t.Context()
	spaces := f.kube.CoreV1().Namespaces()
	if _, err := spaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		err := spaces.Delete(ctx, name, metav1.DeleteOptions{})
		if err == nil {
			err = eventually(ctx, healthTimeout, func(ctx context.Context) error {
				_, err := spaces.Get(ctx, name, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				return fmt.Errorf("namespace %s is still there: %w", name, err)
			})
		}
		if err != nil {
			t.Error(err)
		}
	})
	mustEventually(t, time.Minute, func(ctx context.Context) error {
		_, err := f.kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return name
}

// get reads a page that a program serves on a node's or a Pod's address, from a node.
func (f *fixture) get(ctx context.Context, node, method, url string) (string, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return f.DialFrom(ctx, node, address)
		},
	}}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, response.Status, text)
	}
	return string(text), err
}

// metric returns the sum of a metric of a node's agent over all series that have these labels, each
// `name="value"`.
func (f *fixture) metric(ctx context.Context, node, name string, labels ...string) (float64, error) {
	text, err := f.get(ctx, node, http.MethodGet, "http://"+agentAdmin+"/metrics")
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), " ")
		metric, rest, _ := strings.Cut(series, "{")
		if metric != name || slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(rest, label) }) {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+number, true
	}
	if !found && len(labels) == 0 {
		return 0, fmt.Errorf("the agent of %s has no metric %s", node, name)
	}
	return sum, nil
}

// eventually calls check until it returns nil, and returns its last error after timeout.
func eventually(ctx context.Context, timeout time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		once, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := check(once)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("after %v: %w", timeout, err)
		}
	}
}

func mustEventually(t *testing.T, timeout time.Duration, check func(context.Context) error) {
	t.Helper()
	if err := eventually(t.Context(), timeout, check); err != nil {
		t.Fatal(err)
	}
}

// figures are printed at the end of a run.
var figures struct {
	mu   sync.Mutex
	rows []string
}

// figure adds a row: what was measured, the value, and what the design asks for or the test's
// bound.
func figure(t *testing.T, what, value, bound string) {
	t.Helper()
	t.Logf("%s: %s (%s)", what, value, bound)
	figures.mu.Lock()
	defer figures.mu.Unlock()
	figures.rows = append(figures.rows, what+"\t"+value+"\t"+bound)
}

// milliseconds is a duration as figures show it.
func milliseconds(d time.Duration) string { return d.Round(time.Millisecond).String() }

// finish prints the figures of the run and ends its clusters.
func finish(out io.Writer) error {
	figures.mu.Lock()
	defer figures.mu.Unlock()
	if len(figures.rows) > 0 {
		table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
		fmt.Fprintln(table, "\nFigure\tMeasured\tBound")
		for _, row := range figures.rows {
			fmt.Fprintln(table, row)
		}
		if err := table.Flush(); err != nil {
			return errors.Join(err, shared.fixture.end(), bare.fixture.end())
		}
	}
	return errors.Join(shared.fixture.end(), bare.fixture.end())
}
