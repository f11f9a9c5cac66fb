package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/bench/internal/child"
)

const (
	benchNamespace  = "bench"
	benchServices   = 50
	podsPerService  = 100
	setUpWorkers    = 16
	benchReadyLimit = 2 * time.Minute
)

// measureFlips makes 50 Services with 100 Pods each, then flips the readiness of Pods at a steady rate, and reads what
// slicesvc spent and how long each flip took from the acknowledged status to the slice event on a watch.
func measureFlips(ctx context.Context, cfg config, kube kubernetes.Interface, slice *child.Leg) ([]row, error) {
	began := time.Now()
	pods, err := populate(ctx, kube)
	if err != nil {
		return nil, err
	}
	watcher, err := watchSlices(ctx, kube)
	if err != nil {
		return nil, err
	}
	defer watcher.Stop()
	seen := newSightings()
	go seen.follow(watcher)
	if err := seen.await(ctx, pods); err != nil {
		return nil, err
	}
	setUp := time.Since(began)
	var latencies []time.Duration
	cpu, err := slice.Spent(func() (err error) {
		latencies, err = flip(ctx, cfg, kube, pods, seen)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(latencies)
	resident, err := slice.Resident()
	return []row{
		{what: "50 services × 100 pods: creating the pods until every one is in a slice", figure: fmt.Sprintf("%.1f s", setUp.Seconds())},
		{what: fmt.Sprintf("%d readiness flips at %d/s: slicesvc's CPU", cfg.flips, cfg.flipRate),
			figure: fmt.Sprintf("%.1f s, %.2f ms a flip", cpu.Seconds(), cpu.Seconds()*1000/float64(cfg.flips))},
		{what: "the same: latency p50 / p99", figure: fmt.Sprintf("%d / %d ms",
			latencies[len(latencies)/2].Milliseconds(), latencies[len(latencies)*99/100].Milliseconds())},
		{what: "the same: resident memory of slicesvc", figure: fmt.Sprintf("%d MiB", resident>>20)},
	}, err
}

// populate writes the Services and Pods and returns the Pods, all of them ready.
func populate(ctx context.Context, kube kubernetes.Interface) ([]*corev1.Pod, error) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: benchNamespace}}
	if _, err := kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bench-node"}}
	if _, err := kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	for i := range benchServices {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: serviceName(i)},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": serviceName(i)},
				Ports:    []corev1.ServicePort{{Name: "http", Port: 80}},
			},
		}
		if _, err := kube.CoreV1().Services(benchNamespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	pods := make([]*corev1.Pod, benchServices*podsPerService)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(setUpWorkers)
	for i := range pods {
		group.Go(func() (err error) {
			pods[i], err = createPod(ctx, kube, i)
			return err
		})
	}
	return pods, group.Wait()
}

func serviceName(i int) string { return fmt.Sprintf("svc-%02d", i) }

func createPod(ctx context.Context, kube kubernetes.Interface, i int) (*corev1.Pod, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("pod-%05d", i), Labels: map[string]string{"app": serviceName(i % benchServices)},
		},
		Spec: corev1.PodSpec{NodeName: "bench-node", Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app:1"}}},
	}
	made, err := kube.CoreV1().Pods(benchNamespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("10.244.%d.%d", i/250, 1+i%250)
	made.Status.Phase, made.Status.PodIP, made.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	return setReady(ctx, kube, made, true)
}

func setReady(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod, ready bool) (*corev1.Pod, error) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}}
	return kube.CoreV1().Pods(benchNamespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
}

func isReady(pod *corev1.Pod) bool {
	return len(pod.Status.Conditions) > 0 && pod.Status.Conditions[0].Status == corev1.ConditionTrue
}

// flip changes the readiness of random Pods at the configured rate and returns each flip's latency.
func flip(ctx context.Context, cfg config, kube kubernetes.Interface, pods []*corev1.Pod, seen *sightings) ([]time.Duration, error) {
	random := rand.New(rand.NewPCG(1, 0))
	ticker := time.NewTicker(time.Second / time.Duration(cfg.flipRate))
	defer ticker.Stop()
	order := random.Perm(len(pods))
	latencies := make([]time.Duration, cfg.flips)
	group, ctx := errgroup.WithContext(ctx)
	for n := range cfg.flips {
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), group.Wait())
		case <-ticker.C:
		}
		i := order[n%len(order)]
		group.Go(func() (err error) {
			latencies[n], err = flipOne(ctx, kube, &pods[i], seen)
			return err
		})
	}
	return latencies, group.Wait()
}

// flipOne changes one Pod, which no other flip touches meanwhile as long as there are many more Pods than flips under way.
func flipOne(ctx context.Context, kube kubernetes.Interface, pod **corev1.Pod, seen *sightings) (time.Duration, error) {
	wanted := !isReady(*pod)
	updated, err := setReady(ctx, kube, (*pod).DeepCopy(), wanted)
	if err != nil {
		return 0, err
	}
	acknowledged := time.Now()
	*pod = updated
	at, err := seen.when(ctx, updated.Name, wanted)
	return max(0, at.Sub(acknowledged)), err
}

func watchSlices(ctx context.Context, kube kubernetes.Interface) (watch.Interface, error) {
	return kube.DiscoveryV1().EndpointSlices(benchNamespace).Watch(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName,
	})
}

// sightings remember for each Pod since when the slices say what they say of its readiness.
type sightings struct {
	mu      sync.Mutex
	changed *sync.Cond
	ready   map[string]bool
	since   map[string]time.Time
}

func newSightings() *sightings {
	s := &sightings{ready: map[string]bool{}, since: map[string]time.Time{}}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *sightings) follow(watcher watch.Interface) {
	for event := range watcher.ResultChan() {
		slice, ok := event.Object.(*discoveryv1.EndpointSlice)
		if !ok || event.Type == watch.Deleted {
			continue
		}
		s.note(slice, time.Now())
	}
}

func (s *sightings) note(slice *discoveryv1.EndpointSlice, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, endpoint := range slice.Endpoints {
		ready := endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready
		name := endpoint.TargetRef.Name
		if before, known := s.ready[name]; !known || before != ready {
			s.ready[name], s.since[name] = ready, now
		}
	}
	s.changed.Broadcast()
}

// when waits until the slices say that the Pod is ready or not, and returns since when they do.
func (s *sightings) when(ctx context.Context, pod string, ready bool) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, benchReadyLimit)
	defer cancel()
	defer context.AfterFunc(ctx, s.changed.Broadcast)()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if now, known := s.ready[pod]; known && now == ready {
			return s.since[pod], nil
		}
		if ctx.Err() != nil {
			return time.Time{}, fmt.Errorf("no slice says ready=%v of Pod %s: %w", ready, pod, ctx.Err())
		}
		s.changed.Wait()
	}
}

func (s *sightings) await(ctx context.Context, pods []*corev1.Pod) error {
	for _, pod := range pods {
		if _, err := s.when(ctx, pod.Name, true); err != nil {
			return err
		}
	}
	return nil
}
