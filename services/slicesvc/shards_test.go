package slicesvc_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trivet-dev/trivet/internal/kubeconn"
	"github.com/trivet-dev/trivet/internal/observe"
	"github.com/trivet-dev/trivet/internal/shard"
	"github.com/trivet-dev/trivet/internal/term"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	numShards   = 16
	numServices = 24
	// maxEndpoints is small, so that few Pods have many slices.
	maxEndpoints = 3
)

// replicasFixture is a namespace of a real cluster with several replicas, which share the shards by
// terms in a real etcd.
type replicasFixture struct {
	*fixture
	cluster string
	audit   audit
	random  *rand.Rand
	// names are the names of the Services. Every shard has one at least, so a replica with few
	// shards has Services.
	names   []string
	pods    map[string]string // Service and address by name
	created int
}

// testReplica is one replica without its servers.
type testReplica struct {
	candidate *term.Candidate
	client    slicev1.SliceServiceClient
	service   *slicesvc.Service
	ready     *observe.Checks
	leave     func()
}

func newReplicasFixture(t *testing.T) *replicasFixture {
	clients := testkit.Kube(t)
	f := &replicasFixture{
		fixture: &fixture{t: t, clients: clients, namespace: testkit.Namespace(t, clients)},
		random:  rand.New(rand.NewPCG(1, 2)),
		pods:    map[string]string{},
	}
	f.cluster = f.namespace
	for i := range numServices {
		name := f.nameIn(i % numShards)
		f.names = append(f.names, name)
		f.service(func(service *corev1.Service) {
			service.Name = name
			service.Spec.Selector = map[string]string{"app": service.Name}
		})
	}
	return f
}

// nameIn returns an unused name of a Service in the shard.
func (f *replicasFixture) nameIn(number int) string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("svc-%d", i)
		if !slices.Contains(f.names, name) && shard.Of(f.namespace, name, numShards) == number {
			return name
		}
	}
}

// join starts a replica and waits until it is a member with full caches.
func (f *replicasFixture) join(name string) *testReplica {
	f.t.Helper()
	return f.joinWith(name, testkit.ObjectsOf(testkit.Cluster(f.t).RESTConfig(), f.namespace))
}

// joinWith is join with the configuration of the connection to the cluster.
func (f *replicasFixture) joinWith(name string, config *rest.Config) *testReplica {
	f.t.Helper()
	etcd := testkit.Etcd(f.t)
	self := term.Member{ID: name, Service: "slicesvc", Cluster: f.cluster, GRPCAddress: name + ".test:7603", StartTime: time.Now()}
	logger := slog.New(slog.NewTextHandler(f.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	candidate, err := term.New(etcd, term.Config{Member: self, Shards: numShards, TTL: 2 * time.Second, Logger: logger})
	f.must(err)
	fenced := kubeconn.Fence(f.audit.record(config, name))
	clients, err := slicesvc.Connect(fenced)
	f.must(err)
	cfg := slicesvc.DefaultConfig()
	cfg.Shards, cfg.MaxEndpointsPerSlice = numShards, maxEndpoints
	r := &testReplica{candidate: candidate, ready: observe.NewChecks()}
	r.service, r.client, r.leave = runWith(f.t, cfg, slicesvc.Deps{
		Member: self, Kube: clients, Leadership: candidate, Logger: logger, Ready: r.ready,
	})
	testkit.Eventually(f.t, testTimeout, func() error { return errors.Join(append(r.ready.Failed(), candidate.Check())...) })
	return r
}

// revokeSession revokes a replica's etcd lease: its keys are deleted, and the replica learns of it
// later.
func (f *replicasFixture) revokeSession(r *testReplica) {
	f.t.Helper()
	etcd, begin := testkit.Etcd(f.t), time.Now()
	var failed error
	testkit.Eventually(f.t, testTimeout, func() error { // a replica of a busy machine may just have lost a session
		lease, _, ok := r.candidate.Session()
		if !ok {
			failed = errors.New("the replica has no session")
			return failed
		}
		if _, err := etcd.Revoke(f.ctx(), lease); err != nil {
			failed = err
			return err
		}
		return nil
	})
	if failed != nil {
		f.t.Logf("the session was revoked after %v of retries; the last one failed: %v", time.Since(begin).Round(time.Millisecond), failed)
	}
}

// churn makes some changes to pods, one after the other.
func (f *replicasFixture) churn(changes int) {
	f.t.Helper()
	for range changes {
		if len(f.pods) > 0 && f.random.IntN(3) == 0 {
			f.remove(f.anyPod())
			continue
		}
		name, service := fmt.Sprintf("pod-%d", f.created), f.names[f.random.IntN(numServices)]
		address := fmt.Sprintf("10.1.%d.%d", f.created/250, f.created%250+1)
		f.created++
		f.pod(name, f.namespace+"-a", []string{address}, func(pod *corev1.Pod) { pod.Labels["app"] = service })
		f.pods[name] = service + " " + address
	}
}

func (f *replicasFixture) anyPod() string {
	return slices.Sorted(maps.Keys(f.pods))[f.random.IntN(len(f.pods))]
}

func (f *replicasFixture) remove(name string) {
	f.t.Helper()
	f.must(f.clients.CoreV1().Pods(f.namespace).Delete(f.ctx(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	delete(f.pods, name)
}

// checkSlices fails unless every Pod is in one slice of its Service, and no slice has more than
// maxEndpoints.
func (f *replicasFixture) checkSlices() error {
	list, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).List(f.ctx(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	want := map[string]int{}
	for _, pod := range f.pods {
		want[pod] = 1
	}
	got := map[string]int{}
	for _, slice := range list.Items {
		if len(slice.Endpoints) > maxEndpoints {
			return fmt.Errorf("slice %s has %d endpoints", slice.Name, len(slice.Endpoints))
		}
		for _, endpoint := range slice.Endpoints {
			got[slice.Labels[discoveryv1.LabelServiceName]+" "+endpoint.Addresses[0]]++
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		return fmt.Errorf("number of each endpoint (-want +got):\n%s", diff)
	}
	return nil
}

// checkNoPlan fails if a replica plans another write.
func (f *replicasFixture) checkNoPlan(r *testReplica) error { return f.checkNoPlanFor(r, f.names) }

func (f *replicasFixture) checkNoPlanFor(r *testReplica, services []string) error {
	for _, service := range services {
		name := fmt.Sprintf("namespaces/%s/serviceslices/%s", f.namespace, service)
		plan, err := r.client.PlanServiceSlices(f.ctx(), &slicev1.PlanServiceSlicesRequest{Name: name})
		if err != nil {
			return err
		}
		if len(plan.Plan.Changes) > 0 {
			return fmt.Errorf("%s has planned changes: %v", name, plan.Plan.Changes)
		}
	}
	return nil
}

// checkHolds fails if a replica holds no Service.
func (f *replicasFixture) checkHolds(r *testReplica) error {
	if counts := r.service.Counts(); counts["services"] == 0 {
		return fmt.Errorf("the replica holds no Service: %v", counts)
	}
	return nil
}

func TestShards_WritesHappenInTermsWhileReplicasChange(t *testing.T) {
	t.Parallel()
	f := newReplicasFixture(t)
	f.node("a", "zone-a")
	etcd := testkit.Etcd(t)
	since := revision(t, etcd)
	first := f.join("replica-1")
	f.churn(40)
	testkit.Eventually(t, testTimeout, f.checkSlices) // only replica-1 can have written them
	second := f.join("replica-2")
	f.churn(40)
	third := f.join("replica-3")
	for _, r := range []*testReplica{first, second, third} {
		testkit.Eventually(t, testTimeout, func() error { return f.checkHolds(r) })
	}
	f.churn(40)
	f.revokeSession(second)
	f.churn(40)
	first.leave()
	f.churn(40)
	fourth := f.join("replica-4")
	testkit.Eventually(t, testTimeout, func() error {
		f.churn(20)
		if _, _, replicas := f.audit.counts(); replicas != 4 {
			return fmt.Errorf("%d replicas have written, want 4", replicas)
		}
		return nil
	})
	f.revokeSession(third)
	f.revokeSession(fourth)
	f.churn(40)

	left := []*testReplica{second, third, fourth}
	for _, r := range left {
		testkit.Eventually(t, testTimeout, func() error {
			return errors.Join(r.candidate.Check(), f.checkHolds(r), f.checkSlices(), f.checkNoPlan(r))
		})
	}
	f.checkCounts(left)
	f.audit.check(t, numShards, claimsSince(t, etcd, f.cluster, since))
	writes, terms, replicas := f.audit.counts()
	if replicas != 4 || terms <= numShards {
		t.Errorf("%d replicas wrote in %d terms: too few for this test", replicas, terms)
	}
	t.Logf("%d writes by %d replicas in %d terms of %d shards, each in the term of its own shard", writes, replicas, terms, numShards)
}

func revision(t *testing.T, etcd *clientv3.Client) int64 {
	t.Helper()
	answer, err := etcd.Get(t.Context(), "nothing")
	if err != nil {
		t.Fatal(err)
	}
	return answer.Header.Revision
}

// checkCounts compares the sum of the replicas' counts with the cluster.
func (f *replicasFixture) checkCounts(replicas []*testReplica) {
	f.t.Helper()
	testkit.Eventually(f.t, testTimeout, func() error {
		want, err := f.clusterCounts()
		if err != nil {
			return err
		}
		got := map[string]int64{}
		for _, r := range replicas {
			for name, count := range r.service.Counts() {
				got[name] += count
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			return fmt.Errorf("sums of counts (-want +got):\n%s", diff)
		}
		return nil
	})
}

// clusterCounts counts the objects of the namespace, which are all that the replicas see.
func (f *replicasFixture) clusterCounts() (map[string]int64, error) {
	services, err := f.clients.CoreV1().Services(f.namespace).List(f.ctx(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods, err := f.clients.CoreV1().Pods(f.namespace).List(f.ctx(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	found, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).List(f.ctx(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelManagedBy + "=" + slicesvc.UpstreamManagedBy,
	})
	if err != nil {
		return nil, err
	}
	counts := map[string]int64{
		"services": int64(len(services.Items)), "pods": int64(len(pods.Items)), "endpoint_slices": int64(len(found.Items)), "queue": 0,
	}
	for _, slice := range found.Items {
		counts["endpoints"] += int64(len(slice.Endpoints))
	}
	return counts, nil
}
