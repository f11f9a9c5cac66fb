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
	"github.com/trivet-dev/trivet/internal/testkit"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
)

// patience is for a machine that does other things, too.
const patience = 60 * time.Second

// world is a namespace of a real cluster with slicesvc at work.
type world struct {
	t         *testing.T
	kube      kubernetes.Interface // the test's own hands: no fence
	namespace string
	candidate *termtest.Candidate
	client    slicev1.SliceServiceClient
	stop      func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, testkit.Cluster(t).RESTConfig())
}

func newWorldOn(t *testing.T, config *rest.Config) *world {
	t.Helper()
	config.WarningHandler = rest.NoWarnings{}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, kube: kube, namespace: testkit.Namespace(t, kube)}
	w.startService(config)
	return w
}

// startService starts a replica that may write only during the candidate's terms.
func (w *world) startService(config *rest.Config) {
	w.t.Helper()
	cluster, err := slicesvc.Connect(kubeconn.Fence(config))
	if err != nil {
		w.t.Fatal(err)
	}
	w.candidate = termtest.NewCandidate(member(), slicesvc.DefaultConfig().Shards)
	deps := slicesvc.Deps{
		Member:     member(),
		Cluster:    cluster,
		Leadership: w.candidate,
		Logger:     slog.New(slog.NewTextHandler(w.t.Output(), nil)),
		Ready:      observe.NewChecks(),
	}
	_, w.client, w.stop = run(w.t, deps)
	ready(w.t, deps)
}

func (w *world) ctx() context.Context { return w.t.Context() }

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// service creates a Service web of port http 80 to 8080.
func (w *world) service(changes ...func(*corev1.Service)) *corev1.Service {
	w.t.Helper()
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
	created, err := w.kube.CoreV1().Services(w.namespace).Create(w.ctx(), service, metav1.CreateOptions{})
	w.must(err)
	return created
}

func (w *world) updateService(change func(*corev1.Service)) {
	w.t.Helper()
	services := w.kube.CoreV1().Services(w.namespace)
	service, err := services.Get(w.ctx(), "web", metav1.GetOptions{})
	w.must(err)
	change(service)
	_, err = services.Update(w.ctx(), service, metav1.UpdateOptions{})
	w.must(err)
}

// node creates a node, which is not in a namespace and so is named after it.
func (w *world) node(suffix, zone string) string {
	w.t.Helper()
	name := w.namespace + "-" + suffix
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
	_, err := w.kube.CoreV1().Nodes().Create(w.ctx(), node, metav1.CreateOptions{})
	w.must(err)
	w.t.Cleanup(func() {
		if err := w.kube.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			w.t.Errorf("delete node: %v", err)
		}
	})
	return name
}

// pod creates a running, ready pod of app=web.
func (w *world) pod(name, node string, ips []string, changes ...func(*corev1.Pod)) {
	w.t.Helper()
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
	created, err := w.kube.CoreV1().Pods(w.namespace).Create(w.ctx(), pod, metav1.CreateOptions{})
	w.must(err)
	created.Status = corev1.PodStatus{
		Phase:      corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
	}
	for _, ip := range ips {
		created.Status.PodIPs = append(created.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	created.Status.PodIP = created.Status.PodIPs[0].IP
	_, err = w.kube.CoreV1().Pods(w.namespace).UpdateStatus(w.ctx(), created, metav1.UpdateOptions{})
	w.must(err)
}

// status changes the status of a pod.
func (w *world) status(name string, change func(*corev1.PodStatus)) {
	w.t.Helper()
	pod, err := w.kube.CoreV1().Pods(w.namespace).Get(w.ctx(), name, metav1.GetOptions{})
	w.must(err)
	change(&pod.Status)
	_, err = w.kube.CoreV1().Pods(w.namespace).UpdateStatus(w.ctx(), pod, metav1.UpdateOptions{})
	w.must(err)
}

func unready(status *corev1.PodStatus) {
	status.Conditions[0].Status = corev1.ConditionFalse
	status.Conditions[0].LastTransitionTime = metav1.Now()
}

// slices lists the slices of Service web that are kept by slicesvc.
func (w *world) slices() []discoveryv1.EndpointSlice {
	w.t.Helper()
	selector := labels.Set{
		discoveryv1.LabelServiceName: "web",
		discoveryv1.LabelManagedBy:   slicesvc.UpstreamManagedBy,
	}
	list, err := w.kube.DiscoveryV1().EndpointSlices(w.namespace).List(w.ctx(), metav1.ListOptions{LabelSelector: selector.String()})
	w.must(err)
	return list.Items
}

// describe tells the slices in sorted lines, one for each slice: family,
// ports, and endpoints with the letters of their conditions that are true:
// Ready, Serving, Terminating.
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
	seen, _ := desired.Observe(endpoint)
	text := seen.PodName + " " + seen.Addresses
	if seen.Hostname != "" {
		text += " " + seen.Hostname
	}
	if seen.Zone != "" {
		text += " " + seen.Zone
	}
	text += " "
	for _, condition := range []struct {
		is     bool
		letter string
	}{{seen.Ready, "R"}, {seen.Serving, "S"}, {seen.Terminating, "T"}} {
		if condition.is {
			text += condition.letter
		}
	}
	return text
}

// expect waits until the slices are as described.
func (w *world) expect(want ...string) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() error {
		if diff := gocmp.Diff(want, describe(w.slices())); diff != "" {
			return fmt.Errorf("slices (-want +got):\n%s", diff)
		}
		return nil
	})
}

// expectFill waits until the slices hold that many endpoints, the fullest first.
func (w *world) expectFill(want ...int) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() error {
		fill := make([]int, 0, len(want))
		for _, slice := range w.slices() {
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

// names gives the names of the slices, sorted.
func (w *world) names() []string {
	w.t.Helper()
	var names []string
	for _, slice := range w.slices() {
		names = append(names, slice.Name)
	}
	slices.Sort(names)
	return names
}

// shown asks slicesvc for Service web.
func (w *world) shown() (*slicev1.ServiceSlices, error) {
	answer, err := w.client.GetServiceSlices(w.ctx(), &slicev1.GetServiceSlicesRequest{
		Name: "namespaces/" + w.namespace + "/services/web",
	})
	return answer.GetServiceSlices(), err
}
