package slicesvc_test

import (
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
	"k8s.io/apimachinery/pkg/types"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// lateWatchFixture has two replicas. The first leads every shard, and the second sees the cluster
// through a proxy.
type lateWatchFixture struct {
	*replicasFixture
	proxy         *faultproxy.KubeProxy
	first, second *testReplica
}

func newLateWatchFixture(t *testing.T) *lateWatchFixture {
	f := &lateWatchFixture{replicasFixture: newReplicasFixture(t), proxy: faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())}
	f.node("a", "zone-a")
	for i, service := range f.names {
		name := fmt.Sprintf("pod-%d", i)
		address := fmt.Sprintf("10.1.0.%d", i+1)
		f.pod(name, f.namespace+"-a", []string{address}, func(pod *corev1.Pod) { pod.Labels["app"] = service })
		f.pods[name] = service + " " + address
	}
	f.first = f.join("replica-1")
	testkit.Eventually(t, testTimeout, f.checkSlices)
	f.second = f.joinWith("replica-2", testkit.ObjectsOf(f.proxy.RESTConfig(), f.namespace))
	testkit.Eventually(t, testTimeout, func() error {
		if first, second := len(f.ledBy(f.first)), len(f.ledBy(f.second)); first < numShards/4 || second < numShards/4 {
			return fmt.Errorf("the replicas lead %d and %d shards", first, second)
		}
		return f.checkNoPlan(f.second)
	})
	return f
}

// versions returns the slices of each Service with their content and resourceVersion.
func (f *lateWatchFixture) versions() map[string]string {
	f.t.Helper()
	list, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).List(f.ctx(), metav1.ListOptions{})
	f.must(err)
	versions := map[string]string{}
	for _, slice := range list.Items {
		service := slice.Labels[discoveryv1.LabelServiceName]
		versions[service] += fmt.Sprintf("%s %s %v; ", slice.Name, slice.ResourceVersion, describe([]discoveryv1.EndpointSlice{slice}))
	}
	return versions
}

// blockedOn fails unless the replica reports shards that are blocked because of the watch of a
// resource.
func (f *lateWatchFixture) blockedOn(r *testReplica, resource string) error {
	for _, problem := range r.service.Problems() {
		if problem.Code == "SHARD_BLOCKED" && strings.Contains(problem.Message, resource) {
			return nil
		}
	}
	return fmt.Errorf("no problem names the watch of %s: %v", resource, r.service.Problems())
}

// ledBy returns a Service of each shard that the replica leads.
func (f *lateWatchFixture) ledBy(r *testReplica) []string {
	f.t.Helper()
	var led []string
	for _, status := range r.candidate.Status().Shards {
		if status.Here {
			led = append(led, f.names[status.Shard])
		}
	}
	return led
}

// A replica whose watch of one kind is late takes shards over. The slices are correct and must stay
// as they are.
func TestShards_LateWatchRevertsNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct {
		resource string
		// change makes the slices of a Service change.
		change func(f *lateWatchFixture, service string)
	}{
		{"pods", func(f *lateWatchFixture, service string) {
			for pod, endpoint := range f.pods {
				if strings.HasPrefix(endpoint, service+" ") {
					f.remove(pod)
				}
			}
		}},
		{"services", func(f *lateWatchFixture, service string) {
			_, err := f.clients.CoreV1().Services(f.namespace).Patch(f.ctx(), service, types.JSONPatchType,
				[]byte(`[{"op":"replace","path":"/spec/ports/0/targetPort","value":9090}]`), metav1.PatchOptions{})
			f.must(err)
		}},
		{"nodes", func(f *lateWatchFixture, _ string) {
			_, err := f.clients.CoreV1().Nodes().Patch(f.ctx(), f.namespace+"-a", types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"topology.kubernetes.io/zone":"zone-b"}}}`), metav1.PatchOptions{})
			f.must(err)
		}},
	} {
		t.Run(kind.resource, func(t *testing.T) {
			f := newLateWatchFixture(t)
			release := f.proxy.HoldEvents(faultproxy.Resource(kind.resource, "watch"))
			defer release()
			f.change(kind.change)
			want := f.versions()
			f.first.leave()
			testkit.Eventually(t, testTimeout, func() error {
				if diff := gocmp.Diff(want, f.versions()); diff != "" {
					t.Fatalf("the second replica wrote slices while its watch of %s was late (-want +got):\n%s", kind.resource, diff)
				}
				return f.blockedOn(f.second, "watch of "+kind.resource)
			})
			release()
			f.pod("late", f.namespace+"-a", []string{"10.2.0.1"}, func(pod *corev1.Pod) { pod.Labels["app"] = f.names[0] })
			f.pods["late"] = f.names[0] + " 10.2.0.1"
			testkit.Eventually(t, testTimeout, func() error { return f.checkSlices() })
			testkit.Eventually(t, testTimeout, func() error { return f.checkNoPlan(f.second) })
		})
	}
}

// change makes one change to each Service that the first replica leads, and waits until the first
// replica has answered it.
func (f *lateWatchFixture) change(change func(f *lateWatchFixture, service string)) {
	f.t.Helper()
	before := f.versions()
	led := f.ledBy(f.first)
	for _, service := range led {
		change(f, service)
	}
	testkit.Eventually(f.t, testTimeout, func() error {
		now, still := f.versions(), f.ledBy(f.first)
		if len(still) < numShards/4 {
			return fmt.Errorf("the first replica leads only %d shards", len(still))
		}
		for _, service := range still {
			if slices.Contains(led, service) && now[service] == before[service] {
				return fmt.Errorf("the slices of %s have not changed", service)
			}
		}
		return f.checkNoPlanFor(f.first, still)
	})
}

// The watches of a replica are stuck, and new ones are not. A handover opens new ones.
func TestShards_StuckWatchIsReopenedAtHandover(t *testing.T) {
	t.Parallel()
	f := newLateWatchFixture(t)
	release := f.proxy.HoldOpenWatches(faultproxy.Resource("pods", "watch"))
	defer release()
	led := f.ledBy(f.first)
	for pod, endpoint := range f.pods {
		if strings.HasPrefix(endpoint, led[0]+" ") {
			f.remove(pod)
		}
	}
	testkit.Eventually(t, testTimeout, f.checkSlices)
	want := f.versions()
	f.first.leave()
	testkit.Eventually(t, testTimeout, func() error {
		if diff := gocmp.Diff(want, f.versions()); diff != "" {
			t.Fatalf("the second replica wrote slices (-want +got):\n%s", diff)
		}
		if led := len(f.ledBy(f.second)); led < numShards {
			return fmt.Errorf("the second replica leads %d shards", led)
		}
		return f.checkNoPlan(f.second)
	})
	f.pod("new", f.namespace+"-a", []string{"10.2.0.1"}, func(pod *corev1.Pod) { pod.Labels["app"] = led[0] })
	f.pods["new"] = led[0] + " 10.2.0.1"
	testkit.Eventually(t, testTimeout, f.checkSlices)
}

// The watches of a replica die without an error. Nothing is handed over: it finds out by itself.
func TestService_SilentWatchIsReopened(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())
	clients := testkit.Kube(t)
	f := &fixture{t: t, clients: clients, namespace: testkit.Namespace(t, clients)}
	connected, err := slicesvc.Connect(kubeconn.Fence(testkit.ObjectsOf(proxy.RESTConfig(), f.namespace)))
	f.must(err)
	cfg := slicesvc.DefaultConfig()
	cfg.WatchSilenceLimit = 2 * time.Second
	candidate := termtest.NewCandidate(member(), cfg.Shards)
	deps := slicesvc.Deps{
		Member: member(), Kube: connected, Leadership: candidate,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Ready: observe.NewChecks(),
	}
	_, f.client, f.stop = runWith(t, cfg, deps)
	ready(t, deps)
	node := f.node("a", "zone-a")
	f.service()
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	defer proxy.HoldOpenWatches(faultproxy.Resource("pods", "watch"))()
	f.status("web-0", unready)
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a ")
}
