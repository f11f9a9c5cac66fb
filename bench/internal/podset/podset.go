package podset

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/bench/internal/pace"
	"github.com/trivet-dev/trivet/bench/internal/sliceview"
)

const (
	// Namespace is the namespace of all Services and Pods.
	Namespace = "bench"
	// writers is the number of concurrent requests.
	writers = 16

	nodeName = "bench-node"
	appLabel = "app"
)

// Set is a number of Services with the same number of Pods each. It is not safe for concurrent use.
type Set struct {
	kube     kubernetes.Interface
	services int
	pods     []*corev1.Pod // Pod i belongs to Service i modulo services
	made     atomic.Int64  // number of created Pods, for unique names and addresses
	revision int
}

// Create creates Services with podsEach ready Pods each.
func Create(ctx context.Context, kube kubernetes.Interface, services, podsEach int) (*Set, error) {
	s := &Set{kube: kube, services: services, pods: make([]*corev1.Pod, services*podsEach)}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if _, err := kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	if _, err := kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if err := s.each(ctx, services, s.createService); err != nil {
		return nil, err
	}
	return s, s.Restore(ctx)
}

// Len returns the number of Pods.
func (s *Set) Len() int {
	there := 0
	for _, pod := range s.pods {
		if pod != nil {
			there++
		}
	}
	return there
}

// All yields the name of each Pod and whether it is ready.
func (s *Set) All() iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for _, pod := range s.pods {
			if pod != nil && !yield(pod.Name, isReady(pod)) {
				return
			}
		}
	}
}

// Ideal returns the minimal number of slices with limit endpoints that can hold the Pods.
func (s *Set) Ideal(limit int) int {
	of := make([]int, s.services)
	for i, pod := range s.pods {
		if pod != nil {
			of[i%s.services]++
		}
	}
	total := 0
	for _, n := range of {
		total += max(1, (n+limit-1)/limit) // A Service without endpoints has an empty slice.
	}
	return total
}

// Restore creates the missing Pods, ready.
func (s *Set) Restore(ctx context.Context) error {
	return s.each(ctx, len(s.pods), func(ctx context.Context, i int) (err error) {
		if s.pods[i] == nil {
			s.pods[i], err = s.createPod(ctx, i)
		}
		return err
	})
}

// Replace rolls out all Services concurrently: for each Pod, it creates a ready one of a new
// revision and then deletes the old one.
func (s *Set) Replace(ctx context.Context) error {
	s.revision++
	return s.each(ctx, len(s.pods), func(ctx context.Context, i int) error {
		pod, err := s.createPod(ctx, i)
		if err != nil {
			return err
		}
		old := s.pods[i]
		s.pods[i] = pod
		return s.deletePod(ctx, old)
	})
}

// Delete deletes the Pods at the indexes, which must exist.
func (s *Set) Delete(ctx context.Context, places []int) error {
	return s.each(ctx, len(places), func(ctx context.Context, n int) error {
		old := s.pods[places[n]]
		s.pods[places[n]] = nil
		return s.deletePod(ctx, old)
	})
}

// Flip changes the readiness of Pods and waits until the view has all changes. The order depends
// only on the size of the Set. All Pods must exist. A latency is from the acknowledged status to
// the slice event on a watch. rate is the achieved number of flips per second.
func (s *Set) Flip(ctx context.Context, steady pace.Steady, view *sliceview.View) (latencies pace.Latencies, rate float64, err error) {
	order := rand.New(rand.NewPCG(1, 0)).Perm(len(s.pods))
	return steady.Run(ctx, func(ctx context.Context, n int) (time.Duration, error) {
		return s.flipOne(ctx, order[n%len(order)], view)
	})
}

// flipOne flips one Pod. No concurrent flip has the same Pod if there are many more Pods than
// concurrent flips.
func (s *Set) flipOne(ctx context.Context, i int, view *sliceview.View) (time.Duration, error) {
	wanted := !isReady(s.pods[i])
	updated, err := s.setReady(ctx, s.pods[i].DeepCopy(), wanted)
	if err != nil {
		return 0, err
	}
	acknowledged := time.Now()
	s.pods[i] = updated
	at, err := view.When(ctx, updated.Name, wanted)
	return max(0, at.Sub(acknowledged)), err
}

// each calls do concurrently for 0 to n-1.
func (s *Set) each(ctx context.Context, n int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

func (s *Set) createService(ctx context.Context, i int) error {
	name := serviceName(i)
	_, err := s.kube.CoreV1().Services(Namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, // Some clusters have fewer than 1,000 cluster addresses.
			Selector:  map[string]string{appLabel: name},
			Ports:     []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}, metav1.CreateOptions{})
	return err
}

func serviceName(i int) string { return fmt.Sprintf("svc-%03d", i) }

func (s *Set) createPod(ctx context.Context, i int) (*corev1.Pod, error) {
	number := s.made.Add(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("pod-%06d", number),
			Labels: map[string]string{appLabel: serviceName(i % s.services), "pod-template-hash": fmt.Sprintf("revision-%d", s.revision)},
		},
		Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app:1"}}},
	}
	made, err := s.kube.CoreV1().Pods(Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("10.%d.%d.%d", 16+number/62500, number/250%250, 1+number%250)
	made.Status.Phase, made.Status.PodIP, made.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	return s.setReady(ctx, made, true)
}

func (s *Set) deletePod(ctx context.Context, pod *corev1.Pod) error {
	return s.kube.CoreV1().Pods(Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
}

func (s *Set) setReady(ctx context.Context, pod *corev1.Pod, ready bool) (*corev1.Pod, error) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}}
	return s.kube.CoreV1().Pods(Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
}

func isReady(pod *corev1.Pod) bool {
	return len(pod.Status.Conditions) > 0 && pod.Status.Conditions[0].Status == corev1.ConditionTrue
}
