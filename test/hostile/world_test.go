package hostile

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trivet-dev/trivet/gateway"
	"github.com/trivet-dev/trivet/internal/process"
	"github.com/trivet-dev/trivet/services/bootstrapsvc"
	"github.com/trivet-dev/trivet/services/leasesvc"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/lab/worldtest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var long = flag.Bool("hostile.long", false, "create objects at their largest size, and check the page in headless Chromium")

const (
	clusterName = "hostile"
	// timeout is long enough for a busy machine.
	timeout = time.Minute
	// neighbourBound is how long a change of another namespace may take while hostile objects come
	// and go, on a busy machine. The quiet latency is milliseconds.
	neighbourBound = 10 * time.Second
)

// world is the services with a gateway on a control plane, and two namespaces.
type world struct {
	*testing.T
	lab *worldtest.World
	// whole is the test that the steps are parts of: their objects stay until its end.
	whole *testing.T
	dir   string
	// kube writes protobuf, which may hold text that JSON cannot.
	kube kubernetes.Interface
	// tenant is the namespace of the hostile objects, neighbour another one.
	tenant, neighbour string
	node              string
	grpcAddress       string
	httpAddress       string
	gateway           *grpc.ClientConn
	// admin and grpc have the addresses of the services, conns the connections to them.
	admin, grpc map[string]string
	conns       map[string]*grpc.ClientConn
	log         *testkit.LogBuffer
	flips       int
}

// newWorld starts the services and returns once they hold all shards.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, whole: t, dir: t.TempDir(), log: &testkit.LogBuffer{}, admin: map[string]string{}, grpc: map[string]string{}, conns: map[string]*grpc.ClientConn{}}
	w.lab = worldtest.New(t, worldtest.Config{Plain: true, Roles: []string{"base", "components/node-health", "components/endpointslice-mirroring"}})
	config := w.lab.Cluster.RESTConfig()
	config.ContentType, config.WarningHandler, config.QPS = runtime.ContentTypeProtobuf, rest.NoWarnings{}, -1
	var err error
	w.kube, err = kubernetes.NewForConfig(config)
	w.must(err)
	t.Cleanup(func() {
		if strings.Contains(w.log.String(), "panic") {
			t.Error("a server has panicked")
		}
		if t.Failed() {
			t.Logf("the servers said:\n%s", w.log)
		}
	})
	w.tenant, w.neighbour = testkit.Namespace(t, w.kube), testkit.Namespace(t, w.kube)
	w.lab.Name = clusterName + "-" + w.tenant
	w.node = w.makeNode("honest", func(*corev1.Node) {})
	lease, bootstrap, slice, gate := leasesvc.DefaultConfig(), bootstrapsvc.DefaultConfig(), slicesvc.DefaultConfig(), gateway.DefaultConfig()
	lease.Shards, slice.Shards = 8, 8
	bootstrap.AdvertiseAddress, gate.HTTPListen = "192.0.2.1", "127.0.0.1:0"
	for _, program := range []process.Program{
		leasesvc.Program(&lease), bootstrapsvc.Program(&bootstrap), slicesvc.Program(&slice), gateway.Program(&gate),
	} {
		w.start(program)
	}
	w.awaitReady()
	w.awaitHTTP()
	w.keepAlive()
	w.makeService(w.neighbour, "web", nil)
	for i := range 3 {
		w.makePod(w.neighbour, fmt.Sprintf("web-%d", i), nil, fmt.Sprintf("10.7.0.%d", i+1))
	}
	return w
}

// start runs a server with the rights of its roles, and ends it after the test.
func (w *world) start(program process.Program) {
	w.Helper()
	server := w.lab.RunInProcess(w, program, w.log, func(cfg *process.Config) {
		switch program.Name {
		case worldtest.Leasesvc:
			cfg.Loops = append(cfg.Loops, "node-health", "taint-eviction")
		case worldtest.Slicesvc:
			cfg.Loops = append(cfg.Loops, "endpointslice-mirroring")
		}
	})
	w.admin[program.Name], w.grpc[program.Name] = server.Member().AdminAddress, server.Member().GRPCAddress
	if program.Name == worldtest.Gateway {
		w.grpcAddress = server.Member().GRPCAddress
		var err error
		w.gateway, err = grpc.NewClient(w.grpcAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
		w.must(err)
		w.Cleanup(func() { _ = w.gateway.Close() })
	}
}

// awaitHTTP waits for the line of the log that says where the gateway serves its page.
func (w *world) awaitHTTP() {
	w.Helper()
	testkit.Eventually(w, timeout, func() error {
		_, after, found := strings.Cut(w.log.String(), `msg="serving page and HTTP API"`)
		_, after, _ = strings.Cut(after, "address=")
		address, _, ended := strings.Cut(after, " ")
		if !found || !ended {
			return errors.New("the gateway does not serve its page")
		}
		w.httpAddress = address
		return nil
	})
}

func (w *world) awaitReady() {
	w.Helper()
	worldtest.Await(w.T, timeout, worldtest.OneOfEach(w.gateway))
}

// keepAlive renews the Lease of the honest Node until the test ends, as its kubelet does.
func (w *world) keepAlive() {
	w.Helper()
	leases := w.kube.CoordinationV1().Leases("kube-node-lease")
	seconds, now := int32(40), metav1.NowMicro()
	lease, err := leases.Create(w.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: w.node}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &w.node, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}, metav1.CreateOptions{})
	w.must(err)
	ctx, stop := context.WithCancel(context.Background())
	var renewing sync.WaitGroup
	renewing.Go(func() {
		ticker := time.NewTicker(3 * time.Second)
		defer ticker.Stop()
		for ctx.Err() == nil {
			now := metav1.NowMicro()
			lease.Spec.RenewTime = &now
			if renewed, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err == nil {
				lease = renewed
			} else if current, err := leases.Get(ctx, w.node, metav1.GetOptions{}); err == nil {
				lease = current
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
	w.Cleanup(func() {
		stop()
		renewing.Wait()
		_ = leases.Delete(context.Background(), w.node, metav1.DeleteOptions{})
	})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// makeNode creates a Node with a Ready condition and deletes it after the test.
func (w *world) makeNode(suffix string, change func(*corev1.Node)) string {
	w.Helper()
	name := w.tenant + "-" + suffix
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	change(node)
	made, err := w.kube.CoreV1().Nodes().Create(w.Context(), node, metav1.CreateOptions{})
	w.must(err)
	w.whole.Cleanup(func() { _ = w.kube.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	made.Status.Conditions = node.Status.Conditions
	_, err = w.kube.CoreV1().Nodes().UpdateStatus(w.Context(), made, metav1.UpdateOptions{})
	w.must(err)
	return name
}

// makeService creates a Service that selects the Pods whose label app has its name.
func (w *world) makeService(namespace, name string, change func(*corev1.Service)) *corev1.Service {
	w.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if change != nil {
		change(service)
	}
	made, err := w.kube.CoreV1().Services(namespace).Create(w.Context(), service, metav1.CreateOptions{})
	w.must(err)
	return made
}

// makePod creates a ready Pod with addresses. Its label app is its name without the number.
func (w *world) makePod(namespace, name string, change func(*corev1.Pod), addresses ...string) {
	w.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name[:strings.LastIndex(name, "-")]}},
		Spec:       corev1.PodSpec{NodeName: w.node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	for _, address := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: address})
	}
	if len(addresses) > 0 {
		pod.Status.PodIP = addresses[0]
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if change != nil {
		change(pod)
	}
	made, err := w.kube.CoreV1().Pods(namespace).Create(w.Context(), pod, metav1.CreateOptions{})
	w.must(err)
	made.Status = pod.Status
	_, err = w.kube.CoreV1().Pods(namespace).UpdateStatus(w.Context(), made, metav1.UpdateOptions{})
	w.must(err)
}

// setReady changes the Ready condition of a Pod.
func (w *world) setReady(namespace, name string, ready bool) {
	w.Helper()
	pod, err := w.kube.CoreV1().Pods(namespace).Get(w.Context(), name, metav1.GetOptions{})
	w.must(err)
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	if ready {
		pod.Status.Conditions[0].Status = corev1.ConditionTrue
	}
	_, err = w.kube.CoreV1().Pods(namespace).UpdateStatus(w.Context(), pod, metav1.UpdateOptions{})
	w.must(err)
}

// endpoints returns the endpoints of a Service: "address ready" for each, sorted.
func (w *world) endpoints(namespace, service string) ([]string, error) {
	list, err := w.kube.DiscoveryV1().EndpointSlices(namespace).List(w.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return nil, err
	}
	var all []string
	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			all = append(all, fmt.Sprint(strings.Join(endpoint.Addresses, ","), " ", *endpoint.Conditions.Ready))
		}
	}
	slices.Sort(all)
	return all, nil
}

func (w *world) expectEndpoints(namespace, service string, want ...string) {
	w.Helper()
	testkit.Eventually(w, timeout, func() error {
		got, err := w.endpoints(namespace, service)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("the endpoints of %s are %v, want %v", service, got, want)
		}
		return err
	})
}

// neighbourFollows fails unless a change of a Pod of the other namespace reaches its slices within
// the bound. It returns the worst of some latencies.
func (w *world) neighbourFollows() time.Duration {
	w.Helper()
	var worst time.Duration
	for range 5 {
		w.flips++
		ready := w.flips%2 == 0
		began := time.Now()
		w.setReady(w.neighbour, "web-0", ready)
		want := []string{fmt.Sprint("10.7.0.1 ", ready), "10.7.0.2 true", "10.7.0.3 true"}
		testkit.Eventually(w, neighbourBound, func() error {
			got, err := w.endpoints(w.neighbour, "web")
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("the neighbour's endpoints are %v, want %v", got, want)
			}
			return err
		})
		worst = max(worst, time.Since(began))
	}
	return worst
}

// mostSeries returns the number of series of the metric that has the most, without histograms.
func (w *world) mostSeries(service string) int {
	w.Helper()
	reply, err := http.Get("http://" + w.admin[service] + "/metrics")
	w.must(err)
	defer reply.Body.Close()
	series := map[string]int{}
	lines := bufio.NewScanner(reply.Body)
	for lines.Scan() {
		name, _, labelled := strings.Cut(lines.Text(), "{")
		if labelled && !strings.HasSuffix(name, "_bucket") {
			series[name]++
		}
	}
	w.must(lines.Err())
	if len(series) == 0 {
		w.Fatalf("%s has no metric", service)
	}
	return slices.Max(slices.Collect(maps.Values(series)))
}
