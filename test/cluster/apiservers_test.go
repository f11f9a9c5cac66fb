package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/test/lab/nodecluster"
)

// Bounds of docs/deployment.md and of bootstrapsvc's flags, with as much again for a machine that
// is busy.
const (
	refusingLeaves = 8 * time.Second  // three probes, one second apart, and the write
	silentLeaves   = 20 * time.Second // --unready-delay and as many probes
	readyReturns   = 15 * time.Second // after /readyz answers
	apiServerStart = 90 * time.Second
)

const stayingNode, otherNode = "cp1", "cp2" // the control plane; the histories' own server is that of the first

func TestServers_KilledAPIServerLeavesTheEndpointsAndComesBack(t *testing.T) {
	f := sharedCluster(t)
	endpoints, other := watchEndpoints(t, f), f.node(t, otherNode)
	began := time.Now()
	if err := other.Signal(apiServerPod, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	left := endpoints.awaitStaying(t, refusingLeaves)
	figure(t, "kube-apiserver killed, address out of slice and Endpoints", milliseconds(left.Sub(began)), refusingLeaves.String())
	ready := awaitAPIServer(t, f, other)
	back := endpoints.awaitWith(t, other, readyReturns)
	endpoints.checkAbsent(t, other, left, ready)
	figure(t, "kube-apiserver ready again after its kill, address back", milliseconds(back.Sub(ready)), readyReturns.String())
	endpoints.checkNeverEmpty(t, began)
	checkNoNodeDeclared(t, endpoints.history, began)
}

func TestServers_FrozenAPIServerLeavesTheEndpointsAndComesBack(t *testing.T) {
	f := sharedCluster(t)
	endpoints, other := watchEndpoints(t, f), f.node(t, otherNode)
	began := time.Now()
	if err := other.Signal(apiServerPod, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	thaw := sync.OnceValue(func() error { return other.Signal(apiServerPod, syscall.SIGCONT) })
	t.Cleanup(func() { _ = thaw() })
	left := endpoints.awaitStaying(t, silentLeaves)
	figure(t, "kube-apiserver frozen, address out of slice and Endpoints", milliseconds(left.Sub(began)), silentLeaves.String())
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	ready := awaitAPIServer(t, f, other)
	back := endpoints.awaitWith(t, other, readyReturns)
	endpoints.checkAbsent(t, other, left, ready)
	figure(t, "kube-apiserver ready again after its freeze, address back", milliseconds(back.Sub(ready)), readyReturns.String())
	endpoints.checkNeverEmpty(t, began)
	checkNoNodeDeclared(t, endpoints.history, began)
}

// A Pod that follows the endpoints, with a new connection for each request, sees neither the stop
// of a kube-apiserver nor its start.
func TestServers_StopOfAnAPIServerFailsNoRequestThroughTheEndpoints(t *testing.T) {
	f := sharedCluster(t)
	endpoints, other := watchEndpoints(t, f), f.node(t, otherNode)
	manifest, err := other.Pod(apiServerPod)
	if err != nil {
		t.Fatal(err)
	}
	client := newEndpointClient(t, f, "w1")
	through := client.start(t, func() []string { return endpoints.slice() })
	direct := client.start(t, func() []string { return []string{other.Address.String()} })

	began := time.Now()
	if err := other.RemovePod(apiServerPod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.SetPod(apiServerPod, manifest); err != nil {
			t.Error(err)
		}
	})
	left := endpoints.awaitStaying(t, 30*time.Second)
	mustEventually(t, time.Minute, func(context.Context) error {
		if len(direct.failures()) == 0 {
			return errors.New("kube-apiserver still serves, so this test proves nothing")
		}
		return nil
	})
	refused := direct.failures()[0]
	figure(t, "kube-apiserver stopped, from the address that is out to the first request that it refuses", milliseconds(refused.at.Sub(left)), "> 0")
	if !left.Before(refused.at) {
		t.Errorf("the address left %v after the stop, but kube-apiserver refused after %v: %v", left.Sub(began), refused.at.Sub(began), refused.err)
	}
	direct.stop()
	if err := other.SetPod(apiServerPod, manifest); err != nil {
		t.Fatal(err)
	}
	awaitAPIServer(t, f, other)
	endpoints.awaitWith(t, other, readyReturns)
	// The address is used again, too.
	served := through.count(other.Address.String())
	mustEventually(t, 30*time.Second, func(context.Context) error {
		if now := through.count(other.Address.String()); now < served+10 {
			return fmt.Errorf("%d requests to the address that came back", now-served)
		}
		return nil
	})
	through.stop()
	for _, failed := range through.failures() {
		t.Errorf("%v after the stop, a request to %s failed: %v", failed.at.Sub(began), failed.address, failed.err)
	}
	figure(t, "kube-apiserver stopped and started, requests through the endpoints",
		fmt.Sprintf("%d, %d failed", through.count(""), len(through.failures())), "0 failed")
	endpoints.checkNeverEmpty(t, began)
	checkNoNodeDeclared(t, endpoints.history, began)
}

// endpointHistory is the history of default/kubernetes.
type endpointHistory struct {
	*history
	staying string
}

func watchEndpoints(t *testing.T, f *fixture) *endpointHistory {
	t.Helper()
	return &endpointHistory{history: watchAll(t, f.kube, metav1.NamespaceDefault), staying: f.node(t, stayingNode).Address.String()}
}

const kubernetesService = "kubernetes"

// publishedBy returns the ready addresses of an EndpointSlice or of Endpoints.
func publishedBy(object metav1.Object) []string {
	var addresses []string
	switch object := object.(type) {
	case *discoveryv1.EndpointSlice:
		for _, endpoint := range object.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				addresses = append(addresses, endpoint.Addresses...)
			}
		}
	case *corev1.Endpoints:
		for _, subset := range object.Subsets {
			for _, address := range subset.Addresses {
				addresses = append(addresses, address.IP)
			}
		}
	}
	return addresses
}

// slice returns the addresses that clients use, which follow EndpointSlices.
func (h *endpointHistory) slice() []string { return addressesIn[*discoveryv1.EndpointSlice](h) }

func (h *endpointHistory) endpoints() []string { return addressesIn[*corev1.Endpoints](h) }

// addressesIn returns the addresses that the objects of a kind publish. T is a pointer to the
// kind's type.
func addressesIn[T metav1.Object](h *endpointHistory) []string {
	var addresses []string
	for _, object := range objects[T](h.history) {
		if object.GetName() == kubernetesService {
			addresses = append(addresses, publishedBy(object)...)
		}
	}
	return addresses
}

// awaitStaying waits until slice and Endpoints have the server that stays, and no other.
func (h *endpointHistory) awaitStaying(t *testing.T, timeout time.Duration) time.Time {
	t.Helper()
	return h.awaitPublished(t, []string{h.staying}, timeout)
}

func (h *endpointHistory) awaitWith(t *testing.T, node *nodecluster.Node, timeout time.Duration) time.Time {
	t.Helper()
	return h.awaitPublished(t, []string{h.staying, node.Address.String()}, timeout)
}

func (h *endpointHistory) awaitPublished(t *testing.T, want []string, timeout time.Duration) time.Time {
	t.Helper()
	slices.Sort(want)
	return h.await(t, timeout, func() error {
		slice, endpoints := h.slice(), h.endpoints()
		slices.Sort(slice)
		slices.Sort(endpoints)
		if !slices.Equal(slice, want) || !slices.Equal(endpoints, want) {
			return fmt.Errorf("EndpointSlice has %v, Endpoints have %v, want %v", slice, endpoints, want)
		}
		return nil
	})
}

// checkNeverEmpty looks at each version since then: the server that lives is always there.
func (h *endpointHistory) checkNeverEmpty(t *testing.T, then time.Time) {
	t.Helper()
	seen := 0
	for _, c := range h.since(then) {
		if c.object.GetName() != kubernetesService || c.kind != kindSlice && c.kind != kindEndpoints {
			continue
		}
		seen++
		if c.deleted || !slices.Contains(publishedBy(c.object), h.staying) {
			t.Errorf("%v after the start, the %s has %v (deleted: %v), without the server that lives", c.at.Sub(then), c.kind, publishedBy(c.object), c.deleted)
		}
	}
	if seen < 4 {
		t.Errorf("%d versions of slice and Endpoints, want at least one of each without and with the address", seen)
	}
}

// checkAbsent looks at each version from the one after which the address of a node is out, until
// its server is ready. The sidecar may have noticed that a little earlier than this test.
func (h *endpointHistory) checkAbsent(t *testing.T, node *nodecluster.Node, left, ready time.Time) {
	t.Helper()
	for _, c := range h.since(left) {
		early := ready.Sub(c.at)
		if early > time.Second && c.object.GetName() == kubernetesService && slices.Contains(publishedBy(c.object), node.Address.String()) {
			t.Errorf("%v before kube-apiserver was ready, the %s has its address", early, c.kind)
		}
	}
}

// checkNoNodeDeclared looks at each version of each Node since then.
func checkNoNodeDeclared(t *testing.T, h *history, then time.Time) {
	t.Helper()
	for _, node := range objects[*corev1.Node](h) {
		if problem := declared(node); problem != "" {
			t.Errorf("now node %s %s", node.Name, problem)
		}
	}
	for _, c := range h.since(then) {
		node, ok := c.object.(*corev1.Node)
		if !ok {
			continue
		}
		if problem := declared(node); c.deleted || problem != "" {
			t.Errorf("%v after the start, node %s %s (deleted: %v)", c.at.Sub(then), node.Name, problem, c.deleted)
		}
	}
}

func declared(node *corev1.Node) string {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return fmt.Sprintf("has Ready %s: %s", condition.Status, condition.Message)
		}
	}
	if taints := lossTaints(node); len(taints) > 0 {
		return "has taints " + strings.Join(taints, ", ")
	}
	return ""
}

// awaitAPIServer waits for the /readyz of a node's kube-apiserver.
func awaitAPIServer(t *testing.T, f *fixture, node *nodecluster.Node) time.Time {
	t.Helper()
	mustEventually(t, apiServerStart, func(ctx context.Context) error { return f.Ready(ctx, node) })
	return time.Now()
}

// endpointClient makes requests with a connection for each, as a Pod of a node.
type endpointClient struct{ http *http.Client }

func newEndpointClient(t *testing.T, f *fixture, node string) endpointClient {
	t.Helper()
	config, err := rest.TLSConfigFor(f.RESTConfig(f.node(t, stayingNode)))
	if err != nil {
		t.Fatal(err)
	}
	config.MinVersion = tls.VersionTLS12
	return endpointClient{http: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig: config, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return f.DialFrom(ctx, node, address)
		},
	}}}
}

func (c endpointClient) request(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(address, "6443")+"/version", http.NoBody)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/version answers %s", response.Status)
	}
	return nil
}

// requests are those that a client makes in a row. Its methods are safe for concurrent use.
type requests struct {
	mu     sync.Mutex // guards the fields below
	counts map[string]int
	failed []failure

	stop func()
}

type failure struct {
	at      time.Time // at which the request began
	address string
	err     error
}

// start makes requests to the addresses in turn, until it is stopped or the test ends.
func (c endpointClient) start(t *testing.T, addresses func() []string) *requests {
	t.Helper()
	r := &requests{counts: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r.stop = func() { cancel(); <-done }
	t.Cleanup(r.stop)
	go func() {
		defer close(done)
		tick := time.NewTicker(25 * time.Millisecond)
		defer tick.Stop()
		for turn := 0; ; turn++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			began, published := time.Now(), addresses()
			if len(published) == 0 {
				r.add(failure{at: began, address: "none", err: errors.New("no address is published")})
				continue
			}
			address := published[turn%len(published)]
			err := c.request(ctx, address)
			if ctx.Err() != nil {
				return
			}
			r.add(failure{at: began, address: address, err: err})
		}
	}()
	return r
}

func (r *requests) add(result failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[result.address]++
	if result.err != nil {
		r.failed = append(r.failed, result)
	}
}

func (r *requests) failures() []failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.failed)
}

// count returns the number of requests to an address; without one, of all.
func (r *requests) count(address string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if address != "" {
		return r.counts[address]
	}
	all := 0
	for _, count := range r.counts {
		all += count
	}
	return all
}
