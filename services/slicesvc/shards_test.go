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
	"github.com/trivet-dev/trivet/internal/testkit"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/services/slicesvc"
)

const (
	fleetShards   = 16
	fleetServices = 24
	// fleetLimit is small, so that there are many slices with few pods.
	fleetLimit = 3
)

// fleet is a namespace of a real cluster with several replicas at work, which
// divide it by terms in a real etcd.
type fleet struct {
	*world
	cluster string
	audit   audit
	random  *rand.Rand
	// names are those of the Services, of which each shard has one at least: a
	// replica may have two shards in the end, and is to have work all the same.
	names []string
	pods  map[string]string // the Service and the address of each
	made  int
}

// fleetReplica is one process but for its servers.
type fleetReplica struct {
	candidate *term.Candidate
	client    slicev1.SliceServiceClient
	service   *slicesvc.Service
	ready     *observe.Checks
	leave     func()
}

func newFleet(t *testing.T) *fleet {
	kube := testkit.Kube(t)
	f := &fleet{
		world:  &world{t: t, kube: kube, namespace: testkit.Namespace(t, kube)},
		random: rand.New(rand.NewPCG(1, 2)),
		pods:   map[string]string{},
	}
	f.cluster = f.namespace
	for i := range fleetServices {
		name := f.nameIn(i % fleetShards)
		f.names = append(f.names, name)
		f.service(func(service *corev1.Service) {
			service.Name = name
			service.Spec.Selector = map[string]string{"app": service.Name}
		})
	}
	return f
}

// nameIn returns the name of a Service that falls into the shard and is not taken.
func (f *fleet) nameIn(number int) string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("svc-%d", i)
		if !slices.Contains(f.names, name) && shard.Of(f.namespace, name, fleetShards) == number {
			return name
		}
	}
}

// join starts a replica and waits until it is a member with full caches.
func (f *fleet) join(name string) *fleetReplica {
	f.t.Helper()
	return f.joinWith(name, testkit.Cluster(f.t).RESTConfig())
}

// joinWith is join for a replica that reaches the cluster by config.
func (f *fleet) joinWith(name string, config *rest.Config) *fleetReplica {
	f.t.Helper()
	etcd := testkit.Etcd(f.t)
	self := term.Member{ID: name, Service: "slicesvc", Cluster: f.cluster, GRPCAddress: name + ".test:7603", StartTime: time.Now()}
	logger := slog.New(slog.NewTextHandler(f.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	candidate, err := term.New(etcd, term.Config{Member: self, Shards: fleetShards, TTL: 2 * time.Second, Logger: logger})
	f.must(err)
	fenced := kubeconn.Fence(f.audit.record(config, name))
	cluster, err := slicesvc.Connect(fenced)
	f.must(err)
	cfg := slicesvc.DefaultConfig()
	cfg.Shards, cfg.MaxEndpointsPerSlice = fleetShards, fleetLimit
	r := &fleetReplica{candidate: candidate, ready: observe.NewChecks()}
	r.service, r.client, r.leave = runWith(f.t, cfg, slicesvc.Deps{
		Member: self, Cluster: cluster, Leadership: candidate, Logger: logger, Ready: r.ready,
	})
	testkit.Eventually(f.t, patience, func() error { return errors.Join(append(r.ready.Failed(), candidate.Check())...) })
	return r
}

// cutOff takes a replica's lease away: its keys vanish, and it learns of it later.
func (f *fleet) cutOff(r *fleetReplica) {
	f.t.Helper()
	lease, _, ok := r.candidate.Session()
	if !ok {
		f.t.Fatal("there is no session to revoke")
	}
	_, err := testkit.Etcd(f.t).Revoke(f.ctx(), lease)
	f.must(err)
}

// churn makes some changes to pods, one after the other.
func (f *fleet) churn(changes int) {
	f.t.Helper()
	for range changes {
		if len(f.pods) > 0 && f.random.IntN(3) == 0 {
			f.remove(f.anyPod())
			continue
		}
		name, service := fmt.Sprintf("pod-%d", f.made), f.names[f.random.IntN(fleetServices)]
		address := fmt.Sprintf("10.1.%d.%d", f.made/250, f.made%250+1)
		f.made++
		f.pod(name, f.namespace+"-a", []string{address}, func(pod *corev1.Pod) { pod.Labels["app"] = service })
		f.pods[name] = service + " " + address
	}
}

func (f *fleet) anyPod() string {
	return slices.Sorted(maps.Keys(f.pods))[f.random.IntN(len(f.pods))]
}

func (f *fleet) remove(name string) {
	f.t.Helper()
	f.must(f.kube.CoreV1().Pods(f.namespace).Delete(f.ctx(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	delete(f.pods, name)
}

// exact returns what is wrong with the slices: every pod must be in one slice of
// its Service, and no slice may hold more than the limit.
func (f *fleet) exact() error {
	list, err := f.kube.DiscoveryV1().EndpointSlices(f.namespace).List(f.ctx(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	want := map[string]int{}
	for _, pod := range f.pods {
		want[pod] = 1
	}
	got := map[string]int{}
	for _, slice := range list.Items {
		if len(slice.Endpoints) > fleetLimit {
			return fmt.Errorf("slice %s holds %d endpoints", slice.Name, len(slice.Endpoints))
		}
		for _, endpoint := range slice.Endpoints {
			got[slice.Labels[discoveryv1.LabelServiceName]+" "+endpoint.Addresses[0]]++
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		return fmt.Errorf("endpoints and how often they are there (-want +got):\n%s", diff)
	}
	return nil
}

// done returns what a replica would still write.
func (f *fleet) done(r *fleetReplica) error {
	for _, service := range f.names {
		name := fmt.Sprintf("namespaces/%s/services/%s", f.namespace, service)
		plan, err := r.client.PlanService(f.ctx(), &slicev1.PlanServiceRequest{Name: name})
		if err != nil {
			return err
		}
		if len(plan.Changes) > 0 {
			return fmt.Errorf("%s has changes to come: %v", name, plan.Changes)
		}
	}
	return nil
}

func (f *fleet) holdsSome(r *fleetReplica) error {
	if counts := r.service.Counts(); counts["services"] == 0 {
		return fmt.Errorf("the replica holds no Service: %v", counts)
	}
	return nil
}

func TestShards_ReplicasComeAndGoAndNoWriteIsOutOfTerm(t *testing.T) {
	f := newFleet(t)
	f.node("a", "zone-a")
	etcd := testkit.Etcd(t)
	since := revision(t, etcd)
	first := f.join("replica-1")
	f.churn(40)
	second := f.join("replica-2")
	f.churn(40)
	third := f.join("replica-3")
	for _, r := range []*fleetReplica{first, second, third} {
		testkit.Eventually(t, patience, func() error { return f.holdsSome(r) })
	}
	f.churn(40)
	f.cutOff(second)
	f.churn(40)
	first.leave()
	f.churn(40)
	fourth := f.join("replica-4")
	f.churn(20)
	f.cutOff(third)
	f.cutOff(fourth)
	f.churn(40)

	left := []*fleetReplica{second, third, fourth}
	for _, r := range left {
		testkit.Eventually(t, patience, func() error { return errors.Join(r.candidate.Check(), f.holdsSome(r), f.exact(), f.done(r)) })
	}
	f.countsAddUp(left)
	f.audit.check(t, fleetShards, claimsSince(t, etcd, f.cluster, since))
	writes, terms, replicas := f.audit.figures()
	if replicas != 4 || terms <= fleetShards {
		t.Errorf("%d replicas wrote under %d terms: too few to show anything", replicas, terms)
	}
	t.Logf("%d writes by %d replicas under %d terms of %d shards, each under the term of its own shard", writes, replicas, terms, fleetShards)
}

func revision(t *testing.T, etcd *clientv3.Client) int64 {
	t.Helper()
	answer, err := etcd.Get(t.Context(), "nothing")
	if err != nil {
		t.Fatal(err)
	}
	return answer.Header.Revision
}

// countsAddUp compares the sum of what the replicas count with what there is.
func (f *fleet) countsAddUp(replicas []*fleetReplica) {
	f.t.Helper()
	testkit.Eventually(f.t, patience, func() error {
		want, err := f.counted()
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

// counted counts what is in the whole cluster, other namespaces included.
func (f *fleet) counted() (map[string]int64, error) {
	services, err := f.kube.CoreV1().Services("").List(f.ctx(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods, err := f.kube.CoreV1().Pods("").List(f.ctx(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	found, err := f.kube.DiscoveryV1().EndpointSlices("").List(f.ctx(), metav1.ListOptions{
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
