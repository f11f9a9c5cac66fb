package endpointslices

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/conformance/internal/simtest"
	"github.com/trivet-dev/trivet/test/lab/devcluster"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// stage is a control plane of its own with one Node, on which kube-controller-manager acts for the
// whole cluster.
type stage struct {
	t       *testing.T
	cluster *devcluster.Cluster
	kube    kubernetes.Interface
	node    string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	if *arguments.manager == "" {
		t.Skip("needs -manager=path of kube-controller-manager: run `make conformance`")
	}
	cluster, err := devcluster.Start(t.Context(), devcluster.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	kube, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return &stage{t: t, cluster: cluster, kube: kube, node: startKubelet(t, kube).node}
}

func (s *stage) manage(controllers string) (stop func()) {
	s.t.Helper()
	return simtest.StartManager(s.t, s.cluster, *arguments.manager, controllers)
}

// serve starts slicesvc with its defaults, which are upstream's.
func (s *stage) serve() {
	s.t.Helper()
	cfg := slicesvc.DefaultConfig()
	simtest.StartProgram(s.t, s.cluster, "default", slicesvc.Program(&cfg))
}

func (s *stage) ctx() context.Context { return s.t.Context() }

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) eventually(condition func() error) {
	s.t.Helper()
	testkit.Eventually(s.t, patience, condition)
}

func (s *stage) namespace(name string) {
	s.t.Helper()
	_, err := s.kube.CoreV1().Namespaces().Create(s.ctx(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	s.must(err)
}

// app is one Deployment with its Service, both of the same name.
type app struct {
	*stage
	types.NamespacedName
}

// deploy makes a Deployment with so many pods, and its Service.
func (s *stage) deploy(namespace, name string, replicas int32) app {
	s.t.Helper()
	selector := map[string]string{"app": name}
	_, err := s.kube.CoreV1().Services(namespace).Create(s.ctx(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: selector,
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = s.kube.AppsV1().Deployments(namespace).Create(s.ctx(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: selector},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: selector},
				Spec: corev1.PodSpec{
					NodeName:   s.node,
					Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app:1"}},
				},
			},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	return app{stage: s, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

func (a app) scale(replicas int) {
	a.t.Helper()
	a.patch(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

func (a app) patch(patch string) {
	a.t.Helper()
	_, err := a.kube.AppsV1().Deployments(a.Namespace).Patch(a.ctx(), a.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	a.must(err)
}

// slices returns the EndpointSlices that name the Service, of any manager, ordered by name.
func (a app) slices() []discoveryv1.EndpointSlice {
	a.t.Helper()
	list, err := a.kube.DiscoveryV1().EndpointSlices(a.Namespace).List(a.ctx(), metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelServiceName: a.Name}.String(),
	})
	a.must(err)
	slices.SortFunc(list.Items, func(x, y discoveryv1.EndpointSlice) int { return cmp.Compare(x.Name, y.Name) })
	return list.Items
}

// served checks that the Deployment has so many pods of its latest version, and the slices these
// pods and no others.
func (a app) served(replicas int) error {
	deployment, err := a.kube.AppsV1().Deployments(a.Namespace).Get(a.ctx(), a.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	status := deployment.Status
	if status.ObservedGeneration != deployment.Generation || int(status.UpdatedReplicas) != replicas || int(status.Replicas) != replicas {
		return fmt.Errorf("deployment %s is at %+v, want %d pods", a, status, replicas)
	}
	pods, err := a.kube.CoreV1().Pods(a.Namespace).List(a.ctx(), metav1.ListOptions{LabelSelector: "app=" + a.Name})
	if err != nil {
		return err
	}
	var want []string
	for _, pod := range pods.Items {
		want = append(want, fmt.Sprintf("%s %s ready", pod.Name, pod.Status.PodIP))
	}
	if slices.Sort(want); len(want) != replicas {
		return fmt.Errorf("%d pods of %s, want %d", len(want), a, replicas)
	}
	if diff := gocmp.Diff(want, endpointsOf(a.slices())); diff != "" {
		return fmt.Errorf("endpoints of %s (-want +got):\n%s", a, diff)
	}
	return nil
}

// endpointsOf tells all endpoints of some slices.
func endpointsOf(among []discoveryv1.EndpointSlice) []string {
	var all []string
	for _, slice := range among {
		for _, endpoint := range slice.Endpoints {
			words := []string{}
			if endpoint.TargetRef != nil {
				words = append(words, endpoint.TargetRef.Name)
			}
			words = append(words, endpoint.Addresses...)
			if *endpoint.Conditions.Ready {
				words = append(words, "ready")
			}
			all = append(all, strings.Join(words, " "))
		}
	}
	slices.Sort(all)
	return all
}

// versions tells which slices there are and in which version, of all Services of all namespaces.
func (s *stage) versions() []string {
	s.t.Helper()
	list, err := s.kube.DiscoveryV1().EndpointSlices("").List(s.ctx(), metav1.ListOptions{})
	s.must(err)
	var all []string
	for _, slice := range list.Items {
		all = append(all, fmt.Sprintf("%s/%s %s", slice.Namespace, slice.Name, slice.ResourceVersion))
	}
	slices.Sort(all)
	return all
}

// expectQuiet fails if any slice is written within a while.
func (s *stage) expectQuiet() {
	s.t.Helper()
	watcher, err := s.kube.DiscoveryV1().EndpointSlices("").Watch(s.ctx(), metav1.ListOptions{ResourceVersion: s.newest()})
	s.must(err)
	defer watcher.Stop()
	timer := time.NewTimer(*arguments.quiet)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case event, open := <-watcher.ResultChan():
			if !open {
				s.t.Fatal("the watch of slices has ended")
			}
			s.t.Errorf("while all was quiet: %s %v", event.Type, event.Object)
		}
	}
}

// newest is the resourceVersion of the slices as they are now.
func (s *stage) newest() string {
	s.t.Helper()
	list, err := s.kube.DiscoveryV1().EndpointSlices("").List(s.ctx(), metav1.ListOptions{Limit: 1})
	s.must(err)
	return list.ResourceVersion
}

// expectNoSliceByManager checks that kube-controller-manager has had no hand in slices that carry
// the label of its own controller.
func (s *stage) expectNoSliceByManager() {
	s.t.Helper()
	list, err := s.kube.DiscoveryV1().EndpointSlices("").List(s.ctx(), metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelManagedBy: slicesvc.UpstreamManagedBy}.String(),
	})
	s.must(err)
	if len(list.Items) == 0 {
		s.t.Error("there is no slice at all")
	}
	for _, slice := range list.Items {
		if writtenByManager(slice) {
			s.t.Errorf("slice %s/%s was written by kube-controller-manager", slice.Namespace, slice.Name)
		}
	}
}

// writtenByManager reports whether kube-controller-manager wrote a slice.
func writtenByManager(slice discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(slice.ManagedFields, func(writer metav1.ManagedFieldsEntry) bool {
		return strings.HasPrefix(writer.Manager, "kube-controller-manager")
	})
}
