package slicesvc_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/internal/tracing"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// testTimeout is long enough for a busy machine.
const testTimeout = 60 * time.Second

// fixture is a namespace of a real cluster with a running slicesvc, which sees only this namespace
// and the Nodes of the test.
type fixture struct {
	t         *testing.T
	clients   kubernetes.Interface // without a fence
	namespace string
	candidate *termtest.Candidate
	client    slicev1.SliceServiceClient
	tracer    tracing.Tracer
	config    slicesvc.Config
	stop      func()
}

func TestMain(m *testing.M) { testkit.Main(m) }

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, testkit.Cluster(t).RESTConfig())
}

func newFixtureOn(t *testing.T, config *rest.Config) *fixture {
	t.Helper()
	return newTracedFixture(t, config, tracing.Tracer{})
}

func newTracedFixture(t *testing.T, config *rest.Config, tracer tracing.Tracer, changes ...func(*slicesvc.Config)) *fixture {
	t.Helper()
	config.WarningHandler = rest.NoWarnings{}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, clients: clients, namespace: testkit.Namespace(t, clients), tracer: tracer, config: slicesvc.DefaultConfig()}
	for _, change := range changes {
		change(&f.config)
	}
	f.startService(config)
	return f
}

// startService starts a replica that may write only during the candidate's terms.
func (f *fixture) startService(config *rest.Config) {
	f.t.Helper()
	clients, err := slicesvc.Connect(kubeconn.Fence(testkit.ObjectsOf(config, f.namespace)))
	if err != nil {
		f.t.Fatal(err)
	}
	f.candidate = termtest.NewCandidate(member(), slicesvc.DefaultConfig().Shards)
	deps := slicesvc.Deps{
		Member:     member(),
		Kube:       clients,
		Leadership: f.candidate,
		Tracer:     f.tracer,
		Logger:     slog.New(slog.NewTextHandler(f.t.Output(), nil)),
		Ready:      observe.NewChecks(),
	}
	_, f.client, f.stop = runWith(f.t, f.config, deps)
	ready(f.t, deps)
}

func (f *fixture) ctx() context.Context { return f.t.Context() }

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// service creates a Service web of port http 80 to 8080.
func (f *fixture) service(changes ...func(*corev1.Service)) *corev1.Service {
	f.t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, change := range changes {
		change(service)
	}
	created, err := f.clients.CoreV1().Services(f.namespace).Create(f.ctx(), service, metav1.CreateOptions{})
	f.must(err)
	return created
}

func (f *fixture) updateService(change func(*corev1.Service)) {
	f.t.Helper()
	services := f.clients.CoreV1().Services(f.namespace)
	service, err := services.Get(f.ctx(), "web", metav1.GetOptions{})
	f.must(err)
	change(service)
	_, err = services.Update(f.ctx(), service, metav1.UpdateOptions{})
	f.must(err)
}

// node creates a node, which is not in a namespace and so is named after it.
func (f *fixture) node(suffix, zone string) string {
	f.t.Helper()
	name := f.namespace + "-" + suffix
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: testkit.NodeLabels(f.namespace)}}
	node.Labels[corev1.LabelTopologyZone] = zone
	_, err := f.clients.CoreV1().Nodes().Create(f.ctx(), node, metav1.CreateOptions{})
	f.must(err)
	f.t.Cleanup(func() {
		if err := f.clients.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			f.t.Errorf("delete node: %v", err)
		}
	})
	return name
}

// pod creates a running, ready pod of app=web.
func (f *fixture) pod(name, node string, ips []string, changes ...func(*corev1.Pod)) {
	f.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "main", Image: "image"}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	created, err := f.clients.CoreV1().Pods(f.namespace).Create(f.ctx(), pod, metav1.CreateOptions{})
	f.must(err)
	created.Status = corev1.PodStatus{
		Phase:      corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
	}
	for _, ip := range ips {
		created.Status.PodIPs = append(created.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	created.Status.PodIP = created.Status.PodIPs[0].IP
	_, err = f.clients.CoreV1().Pods(f.namespace).UpdateStatus(f.ctx(), created, metav1.UpdateOptions{})
	f.must(err)
}

// status changes the status of a pod.
func (f *fixture) status(name string, change func(*corev1.PodStatus)) {
	f.t.Helper()
	pod, err := f.clients.CoreV1().Pods(f.namespace).Get(f.ctx(), name, metav1.GetOptions{})
	f.must(err)
	change(&pod.Status)
	_, err = f.clients.CoreV1().Pods(f.namespace).UpdateStatus(f.ctx(), pod, metav1.UpdateOptions{})
	f.must(err)
}

func unready(status *corev1.PodStatus) {
	status.Conditions[0].Status = corev1.ConditionFalse
	status.Conditions[0].LastTransitionTime = metav1.Now()
}

// slices lists the slices of Service web that slicesvc writes.
func (f *fixture) slices() []discoveryv1.EndpointSlice {
	f.t.Helper()
	selector := labels.Set{
		discoveryv1.LabelServiceName: "web",
		discoveryv1.LabelManagedBy:   slicesvc.UpstreamManagedBy,
	}
	list, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).List(f.ctx(), metav1.ListOptions{LabelSelector: selector.String()})
	f.must(err)
	return list.Items
}

// describe returns a line for each slice, sorted: family, ports, and endpoints with the first
// letters of their true conditions: Ready, Serving, Terminating.
func describe(all []discoveryv1.EndpointSlice) []string {
	lines := make([]string, 0, len(all))
	for _, slice := range all {
		endpoints := make([]string, 0, len(slice.Endpoints))
		for i := range slice.Endpoints {
			endpoints = append(endpoints, describeEndpoint(&slice.Endpoints[i]))
		}
		slices.Sort(endpoints)
		lines = append(lines, fmt.Sprintf("%s %s: %s", slice.AddressType, desired.PortText(slice.Ports), strings.Join(endpoints, ", ")))
	}
	slices.Sort(lines)
	return lines
}

func describeEndpoint(endpoint *discoveryv1.Endpoint) string {
	seen, _ := desired.FromObject(endpoint)
	text := seen.PodName + " " + seen.Addresses
	if seen.Hostname != "" {
		text += " " + seen.Hostname
	}
	if seen.Zone != "" {
		text += " " + seen.Zone
	}
	text += " "
	for _, condition := range []struct {
		status bool
		letter string
	}{{seen.Ready, "R"}, {seen.Serving, "S"}, {seen.Terminating, "T"}} {
		if condition.status {
			text += condition.letter
		}
	}
	return text
}

// expect waits until the slices are as described.
func (f *fixture) expect(want ...string) {
	f.t.Helper()
	testkit.Eventually(f.t, testTimeout, func() error {
		if diff := gocmp.Diff(want, describe(f.slices())); diff != "" {
			return fmt.Errorf("slices (-want +got):\n%s", diff)
		}
		return nil
	})
}

// expectFill waits until the slices have that many endpoints, the fullest first.
func (f *fixture) expectFill(want ...int) {
	f.t.Helper()
	testkit.Eventually(f.t, testTimeout, func() error {
		fill := make([]int, 0, len(want))
		for _, slice := range f.slices() {
			fill = append(fill, len(slice.Endpoints))
		}
		slices.Sort(fill)
		slices.Reverse(fill)
		if diff := gocmp.Diff(want, fill); diff != "" {
			return fmt.Errorf("endpoints in slices (-want +got):\n%s", diff)
		}
		return nil
	})
}

// names returns the names of the slices, sorted.
func (f *fixture) names() []string {
	f.t.Helper()
	var names []string
	for _, slice := range f.slices() {
		names = append(names, slice.Name)
	}
	slices.Sort(names)
	return names
}

// serviceSlices calls GetServiceSlices for Service web.
func (f *fixture) serviceSlices() (*slicev1.ServiceSlices, error) {
	answer, err := f.client.GetServiceSlices(f.ctx(), &slicev1.GetServiceSlicesRequest{
		Name: "namespaces/" + f.namespace + "/serviceslices/web",
	})
	return answer.GetServiceSlices(), err
}
