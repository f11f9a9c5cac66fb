package rangestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	firstPort, lastPort = 30000, 32767
	apiServerKey        = "/registry/ranges/servicenodeports"
)

// allocator uses kube-apiserver's allocator through the Services of one test.
type allocator struct {
	*testing.T
	kube      kubernetes.Interface
	namespace string
	fixture   fixture
}

func newAllocator(t *testing.T) allocator {
	t.Helper()
	kube, etcd := testkit.Kube(t), testkit.Etcd(t)
	return allocator{
		T: t, kube: kube, namespace: testkit.Namespace(t, kube),
		fixture: fixture{Store: New(etcd, "/registry"), etcd: etcd, prefix: "/registry"},
	}
}

func nameOf(port int) string { return fmt.Sprintf("port-%d", port) }

// take creates a Service with a port; 0 requests any.
func (a allocator) take(ctx context.Context, name string, port int) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	service.Spec.Type = corev1.ServiceTypeNodePort
	service.Spec.Ports = []corev1.ServicePort{{Port: 80, NodePort: int32(port)}}
	_, err := a.kube.CoreV1().Services(a.namespace).Create(ctx, service, metav1.CreateOptions{})
	return err
}

func (a allocator) give(ctx context.Context, name string) error {
	return a.kube.CoreV1().Services(a.namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

// used returns the number whose bits are the ports of all Services.
func (a allocator) used() *big.Int {
	a.Helper()
	list, err := a.kube.CoreV1().Services(metav1.NamespaceAll).List(a.Context(), metav1.ListOptions{})
	if err != nil {
		a.Fatal(err)
	}
	number := new(big.Int)
	for _, service := range list.Items {
		for _, port := range service.Spec.Ports {
			if port.NodePort != 0 {
				number.SetBit(number, int(port.NodePort-firstPort), 1)
			}
		}
	}
	return number
}

// Every value that kube-apiserver writes agrees with its Services, and is encoded in the same way.
func TestAPIServer_ValuesAreReadAndWrittenAlike(t *testing.T) {
	a := newAllocator(t)
	begin, err := a.fixture.etcd.Get(t.Context(), apiServerKey)
	if err != nil {
		t.Fatal(err)
	}
	// The ends of the range and of bytes, then random ports.
	order := []int{firstPort, firstPort + 7, firstPort + 8, lastPort, lastPort - 1, firstPort + 1024}
	for len(order) < 40 {
		order = append(order, firstPort+rand.IntN(lastPort-firstPort+1))
	}
	taken := map[int]bool{}
	for _, port := range order {
		if taken[port] {
			continue
		}
		taken[port] = true
		if err := a.take(t.Context(), nameOf(port), port); err != nil {
			t.Fatal(err)
		}
		a.wantSame()
	}
	for port := range taken {
		if err := a.give(t.Context(), nameOf(port)); err != nil {
			t.Fatal(err)
		}
		a.wantSame()
	}
	a.wantHistorySame(begin.Header.Revision)
}

// wantSame compares the value as it is now with the Services.
func (a allocator) wantSame() {
	a.Helper()
	value := a.fixture.read(a.T, NodePorts)
	if value.Unreadable != "" || value.Range.Text() != fmt.Sprintf("%d-%d", firstPort, lastPort) {
		a.Fatalf("the range of kube-apiserver is read as %q: %s", value.Range.Text(), value.Unreadable)
	}
	if want := a.used().Bytes(); !bytes.Equal(want, value.Range.Data()) {
		a.Errorf("bitmap is %x, the Services say %x", value.Range.Data(), want)
	}
}

// wantHistorySame encodes every value in the history of etcd since a revision. kube-apiserver
// compacts what is older than five minutes.
func (a allocator) wantHistorySame(since int64) {
	a.Helper()
	now, err := a.fixture.etcd.Get(a.Context(), apiServerKey)
	if err != nil {
		a.Fatal(err)
	}
	ctx, cancel := context.WithCancel(a.Context())
	defer cancel()
	count := 0
	for answer := range a.fixture.etcd.Watch(ctx, apiServerKey, clientv3.WithRev(since)) {
		if err := answer.Err(); err != nil {
			a.Fatal(err)
		}
		for _, event := range answer.Events {
			count++
			decoded, err := Decode(event.Kv.Value)
			if err != nil {
				a.Fatal(err)
			}
			if again, err := decoded.Encode(); err != nil || !bytes.Equal(again, event.Kv.Value) {
				a.Errorf("revision %d: %x became %x, %v", event.Kv.ModRevision, event.Kv.Value, again, err)
			}
			if event.Kv.ModRevision == now.Kvs[0].ModRevision {
				a.Logf("%d values of kube-apiserver compared", count)
				return
			}
		}
	}
	a.Error("the watch of the range ended")
}

// kube-apiserver respects each bit that CompareAndSwap writes.
func TestAPIServer_HonoursSetAndClearedBits(t *testing.T) {
	a := newAllocator(t)
	ctx, _ := a.fixture.claim(t)
	for _, port := range []int{firstPort, firstPort + 15, lastPort} {
		a.swap(ctx, port, 1)
		if err := a.take(t.Context(), nameOf(port), port); err == nil || !strings.Contains(err.Error(), "already allocated") {
			t.Errorf("port %d is set, and kube-apiserver says %v", port, err)
		}
		a.swap(ctx, port, 0)
		if err := a.take(t.Context(), nameOf(port), port); err != nil {
			t.Errorf("port %d is cleared, and kube-apiserver says %v", port, err)
		}
	}
	a.wantSame()
}

// swap sets or clears one bit, and retries on a conflict.
func (a allocator) swap(ctx context.Context, port int, bit uint) {
	a.Helper()
	for range 1000 {
		value := a.fixture.read(a.T, NodePorts)
		number := new(big.Int).SetBytes(value.Range.Data())
		number.SetBit(number, port-firstPort, bit)
		_, err := a.fixture.CompareAndSwap(ctx, NodePorts, value.ModRevision, value.Range.With(number.Bytes()))
		if err == nil {
			return
		}
		if !errors.Is(err, ErrConflict) {
			a.Fatal(err)
		}
	}
	a.Fatal("1000 write conflicts with kube-apiserver")
}

// Under load, neither writer undoes a change of the other.
func TestAPIServer_ConcurrentWritesAreNotLost(t *testing.T) {
	const lines, each = 6, 15
	a := newAllocator(t)
	ctx, _ := a.fixture.claim(t)
	var working sync.WaitGroup
	problems := make([]error, lines)
	for line := range lines {
		working.Go(func() {
			for n := range each {
				name := fmt.Sprintf("line-%d-%d", line, n)
				problems[line] = errors.Join(problems[line], a.take(t.Context(), name, 0))
				if n%3 == 0 {
					problems[line] = errors.Join(problems[line], a.give(t.Context(), name))
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		working.Wait()
		close(done)
	}()
	const port = firstPort + 3 // in the band that kube-apiserver allocates last
	swaps := 0
	for isDone := false; !isDone; swaps++ {
		a.swap(ctx, port, uint(1-swaps%2))
		select {
		case <-done:
			isDone = true
		default:
		}
	}
	a.swap(ctx, port, 0)
	if err := errors.Join(problems...); err != nil {
		t.Error(err)
	}
	t.Logf("%d swaps while %d ports were taken", swaps, lines*each)
	if diff := cmp.Diff(a.used().Text(2), new(big.Int).SetBytes(a.fixture.read(t, NodePorts).Range.Data()).Text(2)); diff != "" {
		t.Errorf("ports of Services and bits (-want +got):\n%s", diff)
	}
}
