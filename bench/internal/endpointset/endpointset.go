// Package endpointset creates Services without a selector in a real cluster, each with a hand-made
// Endpoints object, and changes the readiness of the addresses.
package endpointset

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/bench/internal/pace"
	"github.com/trivet-dev/trivet/bench/internal/sliceview"
)

const (
	// Selector selects mirrored slices.
	Selector = "endpointslice.kubernetes.io/managed-by=endpointslicemirroring-controller.k8s.io"
	// writers is the number of concurrent requests.
	writers = 16
)

// Set is a number of Services with the same number of addresses each. Only one of its methods may
// run at a time.
type Set struct {
	kube       kubernetes.Interface
	namespaces []string
	objects    []*object
	each       int
	order      []int // a permutation of all addresses
}

// object is one Endpoints object.
type object struct {
	namespace, name string
	first           int // the number of its first address

	mu    sync.Mutex // guards ready, and orders the writes of the object
	ready []bool
}

// Create creates the Services and the Endpoints, all ready, in as many namespaces in turn.
func Create(ctx context.Context, kube kubernetes.Interface, namespaces, services, addressesEach int) (*Set, error) {
	s := &Set{kube: kube, each: addressesEach, order: rand.New(rand.NewPCG(1, 0)).Perm(services * addressesEach)}
	for i := range namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bench-%03d", i)}}
		if _, err := kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		s.namespaces = append(s.namespaces, namespace.Name)
	}
	for i := range services {
		one := &object{
			namespace: s.namespaces[i%namespaces], name: fmt.Sprintf("svc-%04d", i), first: i * addressesEach, ready: make([]bool, addressesEach),
		}
		for address := range one.ready {
			one.ready[address] = true
		}
		s.objects = append(s.objects, one)
	}
	return s, s.eachOf(ctx, len(s.objects), func(ctx context.Context, i int) error { return s.create(ctx, s.objects[i]) })
}

// eachOf calls do concurrently for 0 to n-1.
func (s *Set) eachOf(ctx context.Context, n int, do func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// DeleteSlices deletes all slices of the namespaces.
func (s *Set) DeleteSlices(ctx context.Context) error {
	return s.eachOf(ctx, len(s.namespaces), func(ctx context.Context, i int) error {
		slices := s.kube.DiscoveryV1().EndpointSlices(s.namespaces[i])
		return slices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
}

func (s *Set) create(ctx context.Context, one *object) error {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: one.name},
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, // Some clusters have fewer than 5,000 cluster addresses.
			Ports:     []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	if _, err := s.kube.CoreV1().Services(one.namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := s.kube.CoreV1().Endpoints(one.namespace).Create(ctx, one.endpoints(), metav1.CreateOptions{})
	return err
}

// endpoints returns the Endpoints object with the present readiness.
func (o *object) endpoints() *corev1.Endpoints {
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: "http", Port: 8080, Protocol: corev1.ProtocolTCP}}}
	for i, ready := range o.ready {
		address := corev1.EndpointAddress{IP: addressOf(o.first + i)}
		if ready {
			subset.Addresses = append(subset.Addresses, address)
		} else {
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
		}
	}
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: o.name, Labels: map[string]string{"app": o.name}},
		Subsets:    []corev1.EndpointSubset{subset},
	}
}

func addressOf(number int) string {
	return fmt.Sprintf("10.%d.%d.%d", 16+number/62500, number/250%250, 1+number%250)
}

// Len returns the number of addresses.
func (s *Set) Len() int { return len(s.objects) * s.each }

// All yields each address and whether it is ready.
func (s *Set) All() iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for _, one := range s.objects {
			one.mu.Lock()
			ready := slices.Clone(one.ready)
			one.mu.Unlock()
			for i, is := range ready {
				if !yield(addressOf(one.first+i), is) {
					return
				}
			}
		}
	}
}

// Flip changes the readiness of one address at a time, of all Endpoints in turn, and waits until
// the view has all changes. A latency is from the acknowledged write of the Endpoints object to the
// event of the slice on a watch. rate is the achieved number of changes per second.
func (s *Set) Flip(ctx context.Context, steady pace.Steady, view *sliceview.View) (latencies pace.Latencies, rate float64, err error) {
	return steady.Run(ctx, func(ctx context.Context, n int) (time.Duration, error) {
		address, ready, err := s.flipOne(ctx, n)
		if err != nil {
			return 0, err
		}
		acknowledged := time.Now()
		at, err := view.When(ctx, address, ready)
		return max(0, at.Sub(acknowledged)), err
	})
}

// FlipUnseen changes the readiness of count addresses of different Endpoints, without a wait for
// slices.
func (s *Set) FlipUnseen(ctx context.Context, count int) error {
	return s.eachOf(ctx, count, func(ctx context.Context, n int) error {
		_, _, err := s.flipOne(ctx, n)
		return err
	})
}

// flipOne makes change n: the Endpoints objects take turns, each with an address at random.
func (s *Set) flipOne(ctx context.Context, n int) (address string, ready bool, err error) {
	one, i := s.objects[n%len(s.objects)], s.order[n%len(s.order)]%s.each
	one.mu.Lock()
	defer one.mu.Unlock()
	one.ready[i] = !one.ready[i]
	if _, err := s.kube.CoreV1().Endpoints(one.namespace).Update(ctx, one.endpoints(), metav1.UpdateOptions{}); err != nil {
		return "", false, err
	}
	return addressOf(one.first + i), one.ready[i], nil
}
