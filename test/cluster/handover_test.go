package cluster

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

const (
	manyServices, podsOfEach = 50, 20
	flipsPerSecond           = 20
	// lateEndpoints is the lag that a client of a Service notices.
	lateEndpoints = 2 * time.Second
	// handOverBound limits the time without a program that writes slices. A kubelet takes up to
	// 17 s to replace the static Pod of kube-controller-manager.
	handOverBound = 25 * time.Second
	createdByHand = 32 // requests at the same time
)

// slicesvc in dry run takes over the slices of many Services by its switch, and gives them back.
func TestInstalled_HandOverOfManyServices(t *testing.T) {
	f := bareCluster(t)
	f.upgrade(t, "servers.slicesvc.loops=", "servers.slicesvc.dryRun={endpointslices}")
	defer f.upgrade(t) // the context of a test is over when its clean-up begins
	m := f.manyPods(t, "many")
	mustEventually(t, 3*time.Minute, func(context.Context) error {
		_, err := f.try(t, "trivet shadow slices")
		return err
	})
	handOver := func(what, arguments string, bound time.Duration, actions map[int]func(*testing.T, string)) {
		t.Helper()
		began := time.Now()
		stop := m.flip()
		found := f.migrate(t, arguments, actions)
		time.Sleep(5 * time.Second) // what was late arrives
		flips := stop()
		late := m.late(began)
		figure(t, fmt.Sprintf("%s: %d Services of %d Pods, %d flips", what, manyServices, podsOfEach, flips),
			fmt.Sprintf("%d times fewer ready endpoints than ready Pods for over %s, longest %s; from the first step to the second %s",
				len(late), lateEndpoints, milliseconds(slices.Max(append(late, 0))), milliseconds(found.gap(1, 2))), "each ≤ "+bound.String())
		if longest := slices.Max(append(late, 0)); longest > bound {
			t.Errorf("%s: the endpoints of a Service followed its Pods after %v, want %v at most", what, longest, bound)
		}
	}
	handOver("slices to trivet", "slices --to trivet", handOverBound, map[int]func(*testing.T, string){1: f.changeManager})
	handOver("slices to upstream", "slices --to upstream", managerRestart, map[int]func(*testing.T, string){2: f.changeManager})
}

// manyPods are Services with Pods that no kubelet runs, on a Node that the test keeps alive.
type manyPods struct {
	*history
	kube      kubernetes.Interface
	namespace string
}

func (f *fixture) manyPods(t *testing.T, namespace string) *manyPods {
	t.Helper()
	m := &manyPods{kube: f.kube, namespace: f.namespace(t, namespace)}
	m.keepNode(t)
	m.history = watchAll(t, m.kube, m.namespace)
	requests, ctx := errgroup.WithContext(t.Context())
	requests.SetLimit(createdByHand)
	for number := range manyServices {
		requests.Go(func() error {
			_, err := m.kube.CoreV1().Services(m.namespace).Create(ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: serviceName(number)},
				Spec: corev1.ServiceSpec{
					Selector: map[string]string{"app": serviceName(number)}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
				},
			}, metav1.CreateOptions{})
			return err
		})
		for pod := range podsOfEach {
			requests.Go(func() error { return m.createPod(ctx, number, pod) })
		}
	}
	if err := requests.Wait(); err != nil {
		t.Fatal(err)
	}
	m.await(t, 2*time.Minute, func() error {
		ready := 0
		for _, slice := range objects[*discoveryv1.EndpointSlice](m.history) {
			ready += len(slice.Endpoints)
		}
		if ready != manyServices*podsOfEach {
			return fmt.Errorf("%d endpoints, want %d", ready, manyServices*podsOfEach)
		}
		return nil
	})
	return m
}

func serviceName(number int) string { return fmt.Sprintf("many-%d", number) }

// keepNode makes a Node and renews its Lease until the test ends.
func (m *manyPods) keepNode(t *testing.T) {
	t.Helper()
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}
	_, err := m.kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: m.namespace}, Spec: corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	leases := m.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	lease, err := leases.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: m.namespace},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &m.namespace, LeaseDurationSeconds: new(int32(40)), RenewTime: new(metav1.NowMicro())},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var renewing sync.WaitGroup
	renewing.Go(func() {
		tick := time.NewTicker(5 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			lease.Spec.RenewTime = new(metav1.NowMicro())
			if renewed, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err == nil {
				lease = renewed
			} else if read, err := leases.Get(ctx, lease.Name, metav1.GetOptions{}); err == nil {
				lease = read
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		renewing.Wait()
		ctx := context.Background()
		if err := m.kube.CoreV1().Nodes().Delete(ctx, m.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		_ = leases.Delete(ctx, m.namespace, metav1.DeleteOptions{})
	})
}

func (m *manyPods) createPod(ctx context.Context, service, number int) error {
	pods := m.kube.CoreV1().Pods(m.namespace)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", serviceName(service), number), Labels: map[string]string{"app": serviceName(service)}},
		Spec: corev1.PodSpec{
			NodeName: m.namespace, TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{Name: "web", Image: webImage}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, fmt.Sprintf("10.201.%d.%d", service, number+1)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	pod.Status.Conditions = readiness(number%2 == 0) // so that flips change readiness both ways
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

func readiness(ready bool) []corev1.PodCondition {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return []corev1.PodCondition{{Type: corev1.PodReady, Status: status}, {Type: corev1.ContainersReady, Status: status}}
}

// flip makes Pods ready and unready until the returned function is called, which tells how many.
func (m *manyPods) flip() (stop func() int) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int)
	go func() {
		tick := time.NewTicker(time.Second / flipsPerSecond)
		defer tick.Stop()
		for flips := 0; ; {
			select {
			case <-ctx.Done():
				done <- flips
				return
			case <-tick.C:
			}
			pods := objects[*corev1.Pod](m.history)
			pod := pods[rand.IntN(len(pods))].DeepCopy()
			pod.Status.Conditions = readiness(!podIsReady(pod))
			if _, err := m.kube.CoreV1().Pods(m.namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err == nil {
				flips++
			}
		}
	}()
	return func() int { cancel(); return <-done }
}

// late returns for how long a Service had fewer ready endpoints than ready Pods, each time that it
// was longer than lateEndpoints and ended after from.
func (m *manyPods) late(from time.Time) []time.Duration {
	pods, bySlice := map[string]map[types.UID]bool{}, map[string]map[string]map[types.UID]bool{}
	since := map[string]time.Time{}
	var found []time.Duration
	follow := func(service string, at time.Time) {
		ready := map[types.UID]bool{}
		for _, endpoints := range bySlice[service] {
			maps.Copy(ready, endpoints)
		}
		fewer := len(ready) < len(pods[service])
		begin, was := since[service]
		switch {
		case fewer && !was:
			since[service] = at
		case !fewer && was:
			delete(since, service)
			if lasted := at.Sub(begin); lasted > lateEndpoints && at.After(from) {
				found = append(found, lasted)
			}
		}
	}
	for _, c := range m.since(time.Time{}) {
		switch object := c.object.(type) {
		case *corev1.Pod:
			service := object.Labels["app"]
			if pods[service] == nil {
				pods[service] = map[types.UID]bool{}
			}
			delete(pods[service], object.UID)
			if !c.deleted && object.DeletionTimestamp == nil && podIsReady(object) {
				pods[service][object.UID] = true
			}
			follow(service, c.at)
		case *discoveryv1.EndpointSlice:
			service := object.Labels[discoveryv1.LabelServiceName]
			if !strings.HasPrefix(service, "many-") {
				continue
			}
			if bySlice[service] == nil {
				bySlice[service] = map[string]map[types.UID]bool{}
			}
			ready := map[types.UID]bool{}
			for _, endpoint := range object.Endpoints {
				if !c.deleted && endpoint.TargetRef != nil && endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready {
					ready[endpoint.TargetRef.UID] = true
				}
			}
			bySlice[service][object.Name] = ready
			follow(service, c.at)
		}
	}
	for _, begin := range since {
		if lasted := time.Since(begin); lasted > lateEndpoints {
			found = append(found, lasted)
		}
	}
	return found
}
