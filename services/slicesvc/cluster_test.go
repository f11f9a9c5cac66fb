package slicesvc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/trivet-dev/trivet/internal/devcluster"
	"github.com/trivet-dev/trivet/internal/testkit"
	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

func TestCluster_SlicesFollowPodsAndNodes(t *testing.T) {
	w := newWorld(t)
	node := w.node("a", "zone-a")
	w.service()
	w.expect("IPv4 none: ")
	w.pod("web-0", node, []string{"10.1.0.1"})
	w.pod("web-1", node, []string{"10.1.0.2"})
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS")
	names := w.names()

	w.status("web-0", unready)
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a , web-1 10.1.0.2 zone-a RS")
	w.must(w.kube.CoreV1().Pods(w.namespace).Delete(w.ctx(), "web-1", metav1.DeleteOptions{}))
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a , web-1 10.1.0.2 zone-a ST")
	w.status("web-0", func(status *corev1.PodStatus) { status.Phase = corev1.PodFailed })
	w.expect("IPv4 http 8080/TCP: web-1 10.1.0.2 zone-a ST")

	w.pod("web-2", w.namespace+"-b", []string{"10.1.0.3"})
	testkit.Eventually(t, patience, func() error {
		plan, err := w.client.PlanService(w.ctx(), planRequest(w))
		if err == nil && len(plan.WaitingFor) != 1 {
			err = fmt.Errorf("waits for %q, want a node", plan.WaitingFor)
		}
		return err
	})
	w.node("b", "zone-b")
	w.expect("IPv4 http 8080/TCP: web-1 10.1.0.2 zone-a ST, web-2 10.1.0.3 zone-b RS")
	_, err := w.kube.CoreV1().Nodes().Patch(w.ctx(), w.namespace+"-b", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"topology.kubernetes.io/zone":"zone-c"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.expect("IPv4 http 8080/TCP: web-1 10.1.0.2 zone-a ST, web-2 10.1.0.3 zone-c RS")
	if diff := gocmp.Diff(names, w.names()); diff != "" {
		t.Errorf("slices were made anew (-before +after):\n%s", diff)
	}
}

func planRequest(w *world) *slicev1.PlanServiceRequest {
	return &slicev1.PlanServiceRequest{Name: "namespaces/" + w.namespace + "/services/web"}
}

func TestCluster_PublishNotReadyAddresses(t *testing.T) {
	w := newWorld(t)
	w.service(func(service *corev1.Service) { service.Spec.PublishNotReadyAddresses = true })
	w.pod("web-0", w.namespace+"-missing", []string{"10.1.0.1"})
	w.status("web-0", unready)
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 R")
}

func TestCluster_HeadlessServiceWithHostnames(t *testing.T) {
	w := newWorld(t)
	node := w.node("a", "zone-a")
	w.service(func(service *corev1.Service) {
		service.Spec.ClusterIP = corev1.ClusterIPNone
		service.Spec.Ports = nil
	})
	w.pod("web-0", node, []string{"10.1.0.1"}, func(pod *corev1.Pod) { pod.Spec.Hostname, pod.Spec.Subdomain = "db", "web" })
	w.expect("IPv4 none: web-0 10.1.0.1 db zone-a RS")
	if _, labelled := w.slices()[0].Labels[corev1.IsHeadlessService]; !labelled {
		t.Errorf("labels are %v, want %s", w.slices()[0].Labels, corev1.IsHeadlessService)
	}
}

func TestCluster_NamedPortsGroupPods(t *testing.T) {
	w := newWorld(t)
	node := w.node("a", "zone-a")
	w.service(func(service *corev1.Service) { service.Spec.Ports[0].TargetPort = intstr.FromString("http") })
	for i, number := range []int32{8080, 9090, 8080} {
		w.pod(fmt.Sprintf("web-%d", i), node, []string{fmt.Sprintf("10.1.0.%d", i+1)}, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: number}}
		})
	}
	w.pod("web-3", node, []string{"10.1.0.4"})
	w.expect(
		"IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-2 10.1.0.3 zone-a RS",
		"IPv4 http 9090/TCP: web-1 10.1.0.2 zone-a RS",
		"IPv4 none: web-3 10.1.0.4 zone-a RS",
	)
}

func TestCluster_ManyPodsThenOtherPorts(t *testing.T) {
	w := newWorld(t)
	node := w.node("a", "zone-a")
	w.candidate.Lose() // so that all pods are there when the first plan is made
	w.service()
	for i := range 250 {
		w.pod(fmt.Sprintf("web-%d", i), node, []string{fmt.Sprintf("10.1.%d.%d", i/200, i%200+1)})
	}
	testkit.Eventually(t, patience, func() error {
		plan, err := w.client.PlanService(w.ctx(), planRequest(w))
		if err == nil && len(plan.Changes) != 3 {
			err = fmt.Errorf("plan has %d changes, want 3", len(plan.Changes))
		}
		return err
	})
	w.candidate.Regain()
	w.expectFill(100, 100, 50)
	names := w.names()

	w.updateService(func(service *corev1.Service) { service.Spec.Ports[0].TargetPort = intstr.FromInt32(9090) })
	testkit.Eventually(t, patience, func() error {
		for _, slice := range w.slices() {
			if *slice.Ports[0].Port != 9090 {
				return fmt.Errorf("slice %s still has port %d", slice.Name, *slice.Ports[0].Port)
			}
		}
		return nil
	})
	w.expectFill(100, 100, 50)
	if diff := gocmp.Diff(names, w.names()); diff != "" {
		t.Errorf("slices were made anew instead of reused (-before +after):\n%s", diff)
	}
}

func TestCluster_OthersHands(t *testing.T) {
	w := newWorld(t)
	node := w.node("a", "zone-a")
	client := w.kube.DiscoveryV1().EndpointSlices(w.namespace)
	foreign, err := client.Create(w.ctx(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "by-hand",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "somebody"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.7.7.7"}}},
	}, metav1.CreateOptions{})
	w.must(err)
	const want = "IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS"
	w.service()
	w.pod("web-0", node, []string{"10.1.0.1"})
	w.expect(want)

	ours := w.slices()[0]
	edited := ours.DeepCopy()
	edited.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.6.6.6"}}}
	edited.Annotations = map[string]string{"note": "keep"}
	_, err = client.Update(w.ctx(), edited, metav1.UpdateOptions{})
	w.must(err)
	w.expect(want)
	if got := w.slices()[0]; got.UID != ours.UID || got.Annotations["note"] != "keep" {
		t.Errorf("slice %s has annotations %v, want the same slice with the note kept", got.Name, got.Annotations)
	}

	w.must(client.Delete(w.ctx(), ours.Name, metav1.DeleteOptions{}))
	testkit.Eventually(t, patience, func() error {
		if again := w.slices(); len(again) != 1 || again[0].UID == ours.UID {
			return errors.New("the deleted slice was not replaced")
		}
		return nil
	})
	w.expect(want)

	still, err := client.Get(w.ctx(), "by-hand", metav1.GetOptions{})
	w.must(err)
	if still.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("the slice of another manager was written: %v", still)
	}
}

func TestCluster_ServiceMadeAgain(t *testing.T) {
	w := newWorld(t)
	node := w.node("a", "zone-a")
	w.service()
	w.pod("web-0", node, []string{"10.1.0.1"})
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	w.must(w.kube.CoreV1().Services(w.namespace).Delete(w.ctx(), "web", metav1.DeleteOptions{}))
	again := w.service()
	testkit.Eventually(t, patience, func() error {
		all := w.slices()
		if len(all) != 1 || all[0].OwnerReferences[0].UID != again.UID {
			return fmt.Errorf("%d slices, want one of the new Service", len(all))
		}
		return nil
	})
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
}

// What concerns nobody must not be written: the watch sees the one write that
// does matter, which comes last, and no other.
func TestCluster_NothingIsWrittenInVain(t *testing.T) {
	w := newWorld(t)
	node := w.node("a", "zone-a")
	w.service()
	w.pod("web-0", node, []string{"10.1.0.1"})
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	watcher, err := w.kube.DiscoveryV1().EndpointSlices(w.namespace).Watch(w.ctx(), metav1.ListOptions{
		ResourceVersion: w.slices()[0].ResourceVersion,
	})
	w.must(err)
	defer watcher.Stop()

	w.updateService(func(service *corev1.Service) { service.Annotations = map[string]string{"a": "b"} })
	_, err = w.kube.CoreV1().Pods(w.namespace).Patch(w.ctx(), "web-0", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"a":"b"},"labels":{"unused":"yes"}}}`), metav1.PatchOptions{})
	w.must(err)
	w.status("web-0", func(status *corev1.PodStatus) { status.Message = "all is well" })
	w.stop()
	w.startService(testkit.Cluster(t).RESTConfig()) // a new leader adopts what is there
	w.status("web-0", unready)

	select {
	case event := <-watcher.ResultChan():
		slice, ok := event.Object.(*discoveryv1.EndpointSlice)
		if !ok || event.Type != watch.Modified {
			t.Fatalf("first event is %s of %v, want a change of the slice", event.Type, event.Object)
		}
		if diff := gocmp.Diff([]string{"IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a "}, describe([]discoveryv1.EndpointSlice{*slice})); diff != "" {
			t.Errorf("first write is not the one that matters (-want +got):\n%s", diff)
		}
	case <-time.After(patience):
		t.Fatal("no write at all")
	}
}

func TestCluster_NoTermNoWrite(t *testing.T) {
	w := newWorld(t)
	node := w.node("a", "zone-a")
	w.service()
	w.pod("web-0", node, []string{"10.1.0.1"})
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	before := w.slices()

	w.candidate.Lose()
	w.status("web-0", unready)
	testkit.Eventually(t, patience, func() error {
		plan, err := w.client.PlanService(w.ctx(), planRequest(w))
		if err == nil && (len(plan.Changes) != 1 || plan.Changes[0].Reason != "ENDPOINTS_CHANGED") {
			err = fmt.Errorf("plan is %v, want one slice to be changed", plan.Changes)
		}
		return err
	})
	if diff := gocmp.Diff(before, w.slices()); diff != "" {
		t.Errorf("slices were written without a term:\n%s", diff)
	}
	w.candidate.Regain()
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a ")
}

func TestCluster_TerminatingNamespaceIsNoFailure(t *testing.T) {
	w := newWorld(t)
	w.service()
	w.expect("IPv4 none: ")
	var before *slicev1.ServiceSlices
	testkit.Eventually(t, patience, func() (err error) {
		if before, err = w.shown(); err == nil && before.LastSyncTime == nil {
			err = errors.New("not synced yet")
		}
		return err
	})
	w.must(w.kube.CoreV1().Namespaces().Delete(w.ctx(), w.namespace, metav1.DeleteOptions{}))
	w.must(w.kube.DiscoveryV1().EndpointSlices(w.namespace).DeleteCollection(w.ctx(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	testkit.Eventually(t, patience, func() error {
		after, err := w.shown()
		switch {
		case err != nil:
			return err
		case after.Failures > 0:
			t.Fatalf("failed with %q", after.LastError)
		case len(after.Slices) > 0 || !after.LastSyncTime.AsTime().After(before.LastSyncTime.AsTime()):
			return errors.New("the deletion was not looked at yet")
		}
		return nil
	})
}

// ownCluster is for tests that need another cluster than the shared one, or break it.
func ownCluster(t *testing.T, cfg devcluster.Config) *devcluster.Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cluster, err := devcluster.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return cluster
}

func TestCluster_ApiserverGoesAndComesBack(t *testing.T) {
	cluster := ownCluster(t, devcluster.Config{})
	w := newWorldOn(t, cluster.RESTConfig())
	node := w.node("a", "zone-a")
	w.service()
	w.pod("web-0", node, []string{"10.1.0.1"})
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS")
	names := w.names()
	w.must(cluster.StopAPIServer())
	if _, err := w.client.PlanService(w.ctx(), planRequest(w)); err != nil {
		t.Errorf("without an apiserver a plan cannot be read: %v", err)
	}
	w.must(cluster.StartAPIServer())
	w.pod("web-1", node, []string{"10.1.0.2"})
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS")
	if diff := gocmp.Diff(names, w.names()); diff != "" {
		t.Errorf("slices were made anew (-before +after):\n%s", diff)
	}
}

func TestCluster_DualStack(t *testing.T) {
	cluster := ownCluster(t, devcluster.Config{ServiceCIDR: "10.0.0.0/16,fd00:10::/112"})
	w := newWorldOn(t, cluster.RESTConfig())
	node := w.node("a", "zone-a")
	policy := corev1.IPFamilyPolicyRequireDualStack
	w.service(func(service *corev1.Service) { service.Spec.IPFamilyPolicy = &policy })
	w.expect("IPv4 none: ", "IPv6 none: ")
	w.pod("web-0", node, []string{"10.1.0.1", "fd00::1"})
	w.pod("web-1", node, []string{"10.1.0.2"})
	w.expect(
		"IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS",
		"IPv6 http 8080/TCP: web-0 fd00::1 zone-a RS",
	)
	single := corev1.IPFamilyPolicySingleStack
	w.updateService(func(service *corev1.Service) {
		service.Spec.IPFamilyPolicy = &single
		service.Spec.IPFamilies = service.Spec.IPFamilies[:1]
		service.Spec.ClusterIPs = service.Spec.ClusterIPs[:1]
	})
	w.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS")
}
