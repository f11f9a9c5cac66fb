package slicesvc_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	trivetmeta "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestCluster_SlicesFollowPodsAndNodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.service()
	f.expect("IPv4 none: ")
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.pod("web-1", node, []string{"10.1.0.2"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS")
	names := f.names()
	f.checkAnswer(names[0])

	f.status("web-0", unready)
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a , web-1 10.1.0.2 zone-a RS")
	f.must(f.clients.CoreV1().Pods(f.namespace).Delete(f.ctx(), "web-1", metav1.DeleteOptions{}))
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a , web-1 10.1.0.2 zone-a ST")
	f.status("web-0", func(status *corev1.PodStatus) { status.Phase = corev1.PodFailed })
	f.expect("IPv4 http 8080/TCP: web-1 10.1.0.2 zone-a ST")

	f.pod("web-2", f.namespace+"-b", []string{"10.1.0.3"})
	testkit.Eventually(t, testTimeout, func() error {
		plan, err := f.client.PlanServiceSlices(f.ctx(), planRequest(f))
		if err == nil && len(plan.Plan.IncompleteReasons) != 1 {
			err = fmt.Errorf("WaitingFor is %q, want a node", plan.Plan.IncompleteReasons)
		}
		return err
	})
	f.node("b", "zone-b")
	f.expect("IPv4 http 8080/TCP: web-1 10.1.0.2 zone-a ST, web-2 10.1.0.3 zone-b RS")
	_, err := f.clients.CoreV1().Nodes().Patch(f.ctx(), f.namespace+"-b", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"topology.kubernetes.io/zone":"zone-c"}}}`), metav1.PatchOptions{})
	f.must(err)
	f.expect("IPv4 http 8080/TCP: web-1 10.1.0.2 zone-a ST, web-2 10.1.0.3 zone-c RS")
	if diff := gocmp.Diff(names, f.names()); diff != "" {
		t.Errorf("slices were recreated (-before +after):\n%s", diff)
	}
}

// checkAnswer fails unless the answer has the versions of the caches and what the leader did.
func (f *fixture) checkAnswer(slice string) {
	f.t.Helper()
	testkit.Eventually(f.t, testTimeout, func() error {
		answer, err := f.client.GetServiceSlices(f.ctx(), &slicev1.GetServiceSlicesRequest{Name: planRequest(f).Name})
		if err != nil {
			return err
		}
		for _, cache := range answer.Sources[0].Caches {
			if cache.ResourceVersion == "" || cache.Lag == nil {
				return fmt.Errorf("cache is %v, want a version and a lag", cache)
			}
		}
		got := answer.ServiceSlices
		if len(got.Slices) != 1 || got.Slices[0].Name != slice || got.Slices[0].WriteTime == nil || got.Slices[0].CreateTime == nil {
			return fmt.Errorf("slices are %v, want %s with the times of its creation and last write", got.Slices, slice)
		}
		if len(got.Syncs) != 1 || got.Syncs[0].LastPlan.GetUpdateCount() == 0 || got.Syncs[0].LastPlan.GetLatency() == nil {
			return fmt.Errorf("syncs are %v, want the last update with its latency", got.Syncs)
		}
		return nil
	})
}

func planRequest(f *fixture) *slicev1.PlanServiceSlicesRequest {
	return &slicev1.PlanServiceSlicesRequest{Name: "namespaces/" + f.namespace + "/serviceslices/web"}
}

func TestCluster_PublishNotReadyAddresses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.service(func(service *corev1.Service) { service.Spec.PublishNotReadyAddresses = true })
	f.pod("web-0", f.namespace+"-missing", []string{"10.1.0.1"})
	f.status("web-0", unready)
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 R")
}

func TestCluster_HeadlessServiceWithHostnames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.service(func(service *corev1.Service) {
		service.Spec.ClusterIP = corev1.ClusterIPNone
		service.Spec.Ports = nil
	})
	f.pod("web-0", node, []string{"10.1.0.1"}, func(pod *corev1.Pod) { pod.Spec.Hostname, pod.Spec.Subdomain = "db", "web" })
	f.expect("IPv4 none: web-0 10.1.0.1 db zone-a RS")
	if _, labelled := f.slices()[0].Labels[corev1.IsHeadlessService]; !labelled {
		t.Errorf("labels are %v, want %s", f.slices()[0].Labels, corev1.IsHeadlessService)
	}
}

// kube-proxy ignores slices with the label of headless Services.
func TestCluster_HeadlessServiceGetsAnAddress(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.service(func(service *corev1.Service) { service.Spec.ClusterIP = corev1.ClusterIPNone })
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	f.updateService(func(service *corev1.Service) {
		service.Spec.Type, service.Spec.ExternalName = corev1.ServiceTypeExternalName, "elsewhere.example.com"
		service.Spec.ClusterIP, service.Spec.ClusterIPs = "", nil
	})
	f.updateService(func(service *corev1.Service) {
		service.Spec.Type, service.Spec.ExternalName = corev1.ServiceTypeClusterIP, ""
	})
	testkit.Eventually(t, testTimeout, func() error {
		for _, slice := range f.slices() {
			if _, labelled := slice.Labels[corev1.IsHeadlessService]; labelled {
				return fmt.Errorf("slice %s has the label of headless Services", slice.Name)
			}
		}
		return nil
	})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
}

// kubectl delete --cascade=orphan: the garbage collector, which the test plays, removes the owner
// of the slices and then the finalizer of the Service. The slices stay if the watch of Services
// shows the deletion first. If it is late, a slice without an owner is a slice of another one, and
// is replaced, as upstream replaces it in both orders.
func TestCluster_OrphanedSlicesStay(t *testing.T) {
	for name, late := range map[string]bool{"the Service is seen first": false, "the slice is seen first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())
			f := newFixtureOn(t, proxy.RESTConfig())
			node := f.node("a", "zone-a")
			uid := f.service().UID
			f.pod("web-0", node, []string{"10.1.0.1"})
			const want = "IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS"
			f.expect(want)
			slice := f.slices()[0]
			if late {
				defer proxy.HoldEvents(faultproxy.Resource("services", "watch"))()
			}
			orphan := metav1.DeletePropagationOrphan
			f.must(f.clients.CoreV1().Services(f.namespace).Delete(f.ctx(), "web", metav1.DeleteOptions{PropagationPolicy: &orphan}))
			_, err := f.patch(f.ctx(), &slice, `{"metadata":{"ownerReferences":null}}`)
			f.must(err)
			if late {
				testkit.Eventually(t, testTimeout, func() error {
					left := f.slices()
					if diff := gocmp.Diff([]string{want}, describe(left)); diff != "" || left[0].UID == slice.UID || len(left[0].OwnerReferences) != 1 || left[0].OwnerReferences[0].UID != uid {
						return fmt.Errorf("slices are %+v, want one of the Service instead of the orphan", left)
					}
					return nil
				})
				return
			}
			time.Sleep(2 * time.Second)
			f.updateService(func(service *corev1.Service) { service.Finalizers = nil })
			time.Sleep(time.Second)
			left, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).Get(f.ctx(), slice.Name, metav1.GetOptions{})
			f.must(err)
			if left.UID != slice.UID || left.DeletionTimestamp != nil {
				t.Errorf("the orphaned slice is %+v", left.ObjectMeta)
			}
		})
	}
}

func TestCluster_NamedPortsGroupPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.service(func(service *corev1.Service) { service.Spec.Ports[0].TargetPort = intstr.FromString("http") })
	for i, number := range []int32{8080, 9090, 8080} {
		f.pod(fmt.Sprintf("web-%d", i), node, []string{fmt.Sprintf("10.1.0.%d", i+1)}, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: number}}
		})
	}
	f.pod("web-3", node, []string{"10.1.0.4"})
	f.expect(
		"IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-2 10.1.0.3 zone-a RS",
		"IPv4 http 9090/TCP: web-1 10.1.0.2 zone-a RS",
		"IPv4 none: web-3 10.1.0.4 zone-a RS",
	)
}

func TestCluster_ManyPodsThenOtherPorts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.candidate.Lose() // the first plan must have all pods
	f.service()
	for i := range 250 {
		f.pod(fmt.Sprintf("web-%d", i), node, []string{fmt.Sprintf("10.1.%d.%d", i/200, i%200+1)})
	}
	testkit.Eventually(t, testTimeout, func() error {
		plan, err := f.client.PlanServiceSlices(f.ctx(), planRequest(f))
		if err == nil && len(plan.Plan.Changes) != 3 {
			err = fmt.Errorf("plan has %d changes, want 3", len(plan.Plan.Changes))
		}
		return err
	})
	f.candidate.Regain()
	f.expectFill(100, 100, 50)
	names := f.names()

	f.updateService(func(service *corev1.Service) { service.Spec.Ports[0].TargetPort = intstr.FromInt32(9090) })
	testkit.Eventually(t, testTimeout, func() error {
		for _, slice := range f.slices() {
			if *slice.Ports[0].Port != 9090 {
				return fmt.Errorf("slice %s still has port %d", slice.Name, *slice.Ports[0].Port)
			}
		}
		return nil
	})
	f.expectFill(100, 100, 50)
	if diff := gocmp.Diff(names, f.names()); diff != "" {
		t.Errorf("slices were recreated instead of reused (-before +after):\n%s", diff)
	}
}

func TestCluster_AnotherWriter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	client := f.clients.DiscoveryV1().EndpointSlices(f.namespace)
	foreign, err := client.Create(f.ctx(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "foreign",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "another-manager"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.7.7.7"}}},
	}, metav1.CreateOptions{})
	f.must(err)
	const want = "IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS"
	f.service()
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.expect(want)

	ours := f.slices()[0]
	edited := ours.DeepCopy()
	edited.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.6.6.6"}}}
	edited.Annotations = map[string]string{"note": "keep"}
	_, err = client.Update(f.ctx(), edited, metav1.UpdateOptions{})
	f.must(err)
	f.expect(want)
	if got := f.slices()[0]; got.UID != ours.UID || got.Annotations["note"] != "keep" {
		t.Errorf("slice %s has annotations %v, want the same slice with the note", got.Name, got.Annotations)
	}

	f.must(client.Delete(f.ctx(), ours.Name, metav1.DeleteOptions{}))
	testkit.Eventually(t, testTimeout, func() error {
		if replaced := f.slices(); len(replaced) != 1 || replaced[0].UID == ours.UID {
			return errors.New("the deleted slice was not replaced")
		}
		return nil
	})
	f.expect(want)

	unchanged, err := client.Get(f.ctx(), "foreign", metav1.GetOptions{})
	f.must(err)
	if unchanged.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("the slice of another manager was written: %v", unchanged)
	}
}

func TestCluster_RecreatedService(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.service()
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	f.must(f.clients.CoreV1().Services(f.namespace).Delete(f.ctx(), "web", metav1.DeleteOptions{}))
	recreated := f.service()
	testkit.Eventually(t, testTimeout, func() error {
		all := f.slices()
		if len(all) != 1 || all[0].OwnerReferences[0].UID != recreated.UID {
			return fmt.Errorf("%d slices, want one of the new Service", len(all))
		}
		return nil
	})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
}

// Changes that no slice depends on must cause no write. The last change causes one write, which
// must be the only event of the watch.
func TestCluster_NoUnneededWrites(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.service()
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	watcher, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).Watch(f.ctx(), metav1.ListOptions{
		ResourceVersion: f.slices()[0].ResourceVersion,
	})
	f.must(err)
	defer watcher.Stop()

	f.updateService(func(service *corev1.Service) { service.Annotations = map[string]string{"a": "b"} })
	_, err = f.clients.CoreV1().Pods(f.namespace).Patch(f.ctx(), "web-0", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"a":"b"},"labels":{"unused":"yes"}}}`), metav1.PatchOptions{})
	f.must(err)
	f.status("web-0", func(status *corev1.PodStatus) { status.Message = "running" })
	f.stop()
	f.startService(testkit.Cluster(t).RESTConfig()) // a new leader adopts the slices
	f.status("web-0", unready)

	select {
	case event := <-watcher.ResultChan():
		slice, ok := event.Object.(*discoveryv1.EndpointSlice)
		if !ok || event.Type != watch.Modified {
			t.Fatalf("first event is %s of %v, want a change of the slice", event.Type, event.Object)
		}
		if diff := gocmp.Diff([]string{"IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a "}, describe([]discoveryv1.EndpointSlice{*slice})); diff != "" {
			t.Errorf("the first write is not of the last change (-want +got):\n%s", diff)
		}
	case <-time.After(testTimeout):
		t.Fatal("no write at all")
	}
}

func TestCluster_NoWriteWithoutATerm(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.service()
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	before := f.slices()

	f.candidate.Lose()
	f.status("web-0", unready)
	testkit.Eventually(t, testTimeout, func() error {
		plan, err := f.client.PlanServiceSlices(f.ctx(), planRequest(f))
		if err == nil && (len(plan.Plan.Changes) != 1 || plan.Plan.Changes[0].Reason != "ENDPOINTS_CHANGED") {
			err = fmt.Errorf("plan is %v, want one slice to be changed", plan.Plan.Changes)
		}
		return err
	})
	if diff := gocmp.Diff(before, f.slices()); diff != "" {
		t.Errorf("slices were written without a term:\n%s", diff)
	}
	f.candidate.Regain()
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a ")
}

// kube-apiserver creates nothing in a namespace that is being deleted. That is no failure, and
// neither is it a success.
func TestCluster_TerminatingNamespaceIsNoFailure(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.service()
	f.expect("IPv4 none: ")
	var before *slicev1.ServiceSlices
	testkit.Eventually(t, testTimeout, func() (err error) {
		if before, err = f.serviceSlices(); err == nil && lastSuccess(before).IsZero() {
			err = errors.New("not synced yet")
		}
		return err
	})
	f.must(f.clients.CoreV1().Namespaces().Delete(f.ctx(), f.namespace, metav1.DeleteOptions{}))
	f.must(f.clients.DiscoveryV1().EndpointSlices(f.namespace).DeleteCollection(f.ctx(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	var after *slicev1.ServiceSlices
	refused := func() bool {
		return slices.ContainsFunc(after.GetConditions(), func(condition *trivetmeta.Condition) bool {
			return condition.GetType() == "CreationRefused" && condition.GetReason() == "NAMESPACE_TERMINATING"
		})
	}
	testkit.Eventually(t, testTimeout, func() (err error) {
		if after, err = f.serviceSlices(); err == nil && (len(after.Slices) > 0 || !refused()) {
			err = fmt.Errorf("conditions are %v, want that slices are refused", after.Conditions)
		}
		return err
	})
	sync := after.Syncs[0]
	if sync.FailureCount > 0 || sync.LastError != "" {
		t.Errorf("%d failures, the last one %q, want none: a retry does not help", sync.FailureCount, sync.LastError)
	}
	if !lastSuccess(after).Equal(lastSuccess(before)) {
		t.Errorf("last success moved from %v to %v, though a slice is missing", lastSuccess(before), lastSuccess(after))
	}
	if plan := sync.LastPlan; plan.CreateCount > 0 || !plan.StartTime.AsTime().After(lastSuccess(before)) {
		t.Errorf("last plan is %v, want a later one that created nothing", plan)
	}
	answer, err := f.client.ReconcileServiceSlices(f.ctx(), &slicev1.ReconcileServiceSlicesRequest{Name: planRequest(f).Name})
	f.must(err)
	if changes := answer.Plan.Changes; len(changes) != 1 || changes[0].Outcome != trivetmeta.Change_OUTCOME_FAILED || changes[0].Error == "" || changes[0].ApplyTime != nil {
		t.Errorf("changes are %v, want one creation that failed", changes)
	}
}

// lastSuccess returns when the Service was last synced; zero if it was not.
func lastSuccess(service *slicev1.ServiceSlices) time.Time {
	if len(service.Syncs) == 0 || service.Syncs[0].LastSuccessTime == nil {
		return time.Time{}
	}
	return service.Syncs[0].LastSuccessTime.AsTime()
}

// TestDualStackCluster has a control plane of its own, because the shared one has one range, and
// other tests need its kube-apiserver.
func TestDualStackCluster(t *testing.T) {
	t.Parallel()
	cluster := testkit.OwnCluster(t, devcluster.Config{ServiceCIDR: "10.0.0.0/16,fd00:10::/112"})
	t.Run("ServiceHasSlicesOfBothFamilies", func(t *testing.T) { serviceHasSlicesOfBothFamilies(t, cluster) })
	t.Run("SlicesSurviveARestartOfTheAPIServer", func(t *testing.T) { slicesSurviveARestartOfTheAPIServer(t, cluster) })
}

func slicesSurviveARestartOfTheAPIServer(t *testing.T, cluster *devcluster.Cluster) {
	f := newFixtureOn(t, cluster.RESTConfig())
	node := f.node("a", "zone-a")
	f.service()
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	names := f.names()
	f.must(cluster.StopAPIServer())
	if _, err := f.client.PlanServiceSlices(f.ctx(), planRequest(f)); err != nil {
		t.Errorf("PlanService without kube-apiserver: %v", err)
	}
	f.must(cluster.StartAPIServer())
	f.pod("web-1", node, []string{"10.1.0.2"})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS")
	if diff := gocmp.Diff(names, f.names()); diff != "" {
		t.Errorf("slices were recreated (-before +after):\n%s", diff)
	}
}

func serviceHasSlicesOfBothFamilies(t *testing.T, cluster *devcluster.Cluster) {
	f := newFixtureOn(t, cluster.RESTConfig())
	node := f.node("a", "zone-a")
	policy := corev1.IPFamilyPolicyRequireDualStack
	f.service(func(service *corev1.Service) { service.Spec.IPFamilyPolicy = &policy })
	f.expect("IPv4 none: ", "IPv6 none: ")
	f.pod("web-0", node, []string{"10.1.0.1", "fd00::1"})
	f.pod("web-1", node, []string{"10.1.0.2"})
	f.expect(
		"IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS",
		"IPv6 http 8080/TCP: web-0 fd00::1 zone-a RS",
	)
	single := corev1.IPFamilyPolicySingleStack
	f.updateService(func(service *corev1.Service) {
		service.Spec.IPFamilyPolicy = &single
		service.Spec.IPFamilies = service.Spec.IPFamilies[:1]
		service.Spec.ClusterIPs = service.Spec.ClusterIPs[:1]
	})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS")
}

// Hints need a Node with known CPUs in each zone. The Event has upstream's reason.
func TestCluster_EventSaysThatThereAreNoHints(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.pod("web-0", node, []string{"10.1.0.1"})
	f.service(func(service *corev1.Service) {
		service.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
	})
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	testkit.Eventually(t, testTimeout, func() error {
		events, err := f.clients.CoreV1().Events(f.namespace).List(f.ctx(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(event corev1.Event) bool {
			return event.Reason == "TopologyAwareHintsDisabled" && event.Source.Component == "endpoint-slice-controller" &&
				event.InvolvedObject.Name == "web" && event.Type == corev1.EventTypeWarning
		}) {
			return fmt.Errorf("events are %v, want TopologyAwareHintsDisabled", events.Items)
		}
		return nil
	})
}
