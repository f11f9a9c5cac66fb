package rangestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/big"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/term"
	"github.com/trivet-dev/trivet/internal/term/termtest"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fixture is a store of its own in the shared etcd.
type fixture struct {
	*Store
	etcd   *clientv3.Client
	prefix string
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	etcd, prefix := testkit.Etcd(t), "/registry-of-"+t.Name()
	return fixture{Store: New(etcd, prefix), etcd: etcd, prefix: prefix}
}

func (f fixture) put(t *testing.T, name Name, raw []byte) int64 {
	t.Helper()
	response, err := f.etcd.Put(t.Context(), path.Join(f.prefix, "ranges", string(name)), string(raw))
	if err != nil {
		t.Fatal(err)
	}
	return response.Header.Revision
}

// claim returns a context with a term, and a function that deletes the key of the term.
func (f fixture) claim(t *testing.T) (ctx context.Context, lose func()) {
	t.Helper()
	const key = "/trivet/termtest/terms/termtest/0"
	if _, err := f.etcd.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	response, err := f.etcd.Put(t.Context(), key, "")
	if err != nil {
		t.Fatal(err)
	}
	_, ctx, end := termtest.NewTerm(0, response.Header.Revision)
	t.Cleanup(end)
	return ctx, func() {
		if _, err := f.etcd.Delete(context.Background(), key); err != nil {
			t.Error(err)
		}
	}
}

func (f fixture) read(t *testing.T, name Name) Value {
	t.Helper()
	value, err := f.Read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestRead_AbsentIsTheZeroValueAndDamageSaysWhy(t *testing.T) {
	f := newFixture(t)
	if got := f.read(t, NodePorts); got.ModRevision != 0 || got.Unreadable != "" {
		t.Errorf("absent range = %+v", got)
	}
	revision := f.put(t, NodePorts, []byte("k8s\x00\x0a"))
	if got := f.read(t, NodePorts); got.ModRevision != revision || got.Unreadable == "" {
		t.Errorf("damaged range = %+v, want revision %d and why", got, revision)
	}
}

func TestCompareAndSwap_RequiresTheRevisionAndTheTerm(t *testing.T) {
	f := newFixture(t)
	ctx, lose := f.claim(t)
	revision := f.put(t, NodePorts, stored(t, ports(0x03)))
	value := f.read(t, NodePorts)
	next := value.Range.With([]byte{0x02})

	if _, err := f.CompareAndSwap(t.Context(), NodePorts, revision, next); !errors.Is(err, term.ErrNone) {
		t.Errorf("without a term = %v, want %v", err, term.ErrNone)
	}
	if _, err := f.CompareAndSwap(ctx, NodePorts, revision-1, next); !errors.Is(err, ErrConflict) {
		t.Errorf("over another revision = %v, want %v", err, ErrConflict)
	}
	if _, err := f.CompareAndSwap(ctx, ClusterIPs, 0, next); !errors.Is(err, ErrConflict) {
		t.Errorf("over an absent key = %v, want %v", err, ErrConflict)
	}
	after, err := f.CompareAndSwap(ctx, NodePorts, revision, next)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.read(t, NodePorts); got.ModRevision != after || !bytes.Equal(got.Range.Data(), []byte{0x02}) {
		t.Errorf("after the swap: revision %d, data %x, want %d and 02", got.ModRevision, got.Range.Data(), after)
	}
	lose()
	if _, err := f.CompareAndSwap(ctx, NodePorts, after, value.Range); !errors.Is(err, term.ErrEnded) {
		t.Errorf("after the term's key went = %v, want %v", err, term.ErrEnded)
	}
	if got := f.read(t, ClusterIPs); got.ModRevision != 0 {
		t.Errorf("a key was created: %+v", got)
	}
}

// recorder is a Handler that records its calls.
type recorder struct {
	mu     sync.Mutex // guards events
	events []string
}

func (s *recorder) note(event string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event)
}

func describe(v Value) string {
	return fmt.Sprintf("%x unreadable=%t there=%t", v.Range.Data(), v.Unreadable != "", v.ModRevision != 0)
}

func (s *recorder) OnList(values map[Name]Value) {
	s.note(fmt.Sprintf("begin %d %s", len(values), describe(values[NodePorts])))
}
func (s *recorder) OnChange(name Name, value Value) { s.note(string(name) + " " + describe(value)) }
func (s *recorder) OnError(error)                   { s.note("broken") }

func (s *recorder) want(t *testing.T, want ...string) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if diff := cmp.Diff(want, s.events); diff != "" {
			return fmt.Errorf("events (-want +got):\n%s", diff)
		}
		return nil
	})
}

func watch(t *testing.T, store *Store) *recorder {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	sink := &recorder{}
	watching.Go(func() { store.Watch(ctx, sink) })
	t.Cleanup(func() {
		cancel()
		watching.Wait()
	})
	return sink
}

func TestWatch_ListsAndThenReportsEveryChange(t *testing.T) {
	f := newFixture(t)
	f.put(t, NodePorts, stored(t, ports(0x01)))
	f.put(t, "somethingelse", []byte("x"))
	sink := watch(t, f.Store)
	sink.want(t, "begin 1 01 unreadable=false there=true")
	f.put(t, NodePorts, stored(t, ports(0x03)))
	f.put(t, NodePorts, stored(t, ports(0x01)))
	f.put(t, ClusterIPs, []byte("x"))
	if _, err := f.etcd.Delete(t.Context(), path.Join(f.prefix, "ranges", string(NodePorts))); err != nil {
		t.Fatal(err)
	}
	sink.want(t, "begin 1 01 unreadable=false there=true",
		"servicenodeports 03 unreadable=false there=true", "servicenodeports 01 unreadable=false there=true",
		"serviceips  unreadable=true there=true", "servicenodeports  unreadable=false there=false")
}

// compacted is an etcd client whose first watch fails because its revision was compacted.
type compacted struct {
	*clientv3.Client
	once sync.Once
}

func (c *compacted) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	isFirst := false
	c.once.Do(func() { isFirst = true })
	if !isFirst {
		return c.Client.Watch(ctx, key, opts...)
	}
	answer := make(chan clientv3.WatchResponse, 1)
	answer <- clientv3.WatchResponse{CompactRevision: 7, Canceled: true}
	close(answer)
	return answer
}

func TestWatch_RestartsAfterAGap(t *testing.T) {
	f := newFixture(t)
	f.put(t, NodePorts, stored(t, ports(0x01)))
	sink := watch(t, New(&compacted{Client: f.etcd}, f.prefix))
	again := "begin 1 01 unreadable=false there=true"
	sink.want(t, again, "broken", again)
}

// A value of the real kube-apiserver is decoded correctly, and encoded as kube-apiserver wrote it.
func TestRead_RealNodePorts(t *testing.T) {
	etcd, kube := testkit.Etcd(t), testkit.Kube(t)
	store := New(etcd, "/registry")
	services := kube.CoreV1().Services(testkit.Namespace(t, kube))
	for i := range 12 {
		service, err := services.Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s-%d", i)},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		response, err := etcd.Get(t.Context(), "/registry/ranges/servicenodeports")
		if err != nil {
			t.Fatal(err)
		}
		value, err := store.Read(t.Context(), NodePorts)
		if err != nil || value.Unreadable != "" {
			t.Fatalf("read %+v, %v", value, err)
		}
		bit := int(service.Spec.Ports[0].NodePort) - 30000
		if value.Range.Text() != "30000-32767" || new(big.Int).SetBytes(value.Range.Data()).Bit(bit) != 1 {
			t.Errorf("range %q does not have bit %d", value.Range.Text(), bit)
		}
		encoded, err := value.Range.With(value.Range.Data()).Encode()
		if err != nil || !bytes.Equal(encoded, response.Kvs[0].Value) {
			t.Errorf("would be written as %x, %v, want %x", encoded, err, response.Kvs[0].Value)
		}
	}
}

func TestRead_EtcdThatDoesNotAnswerIsUnavailable(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Read(ctx, NodePorts); !errors.Is(err, ErrUnavailable) {
		t.Errorf("read = %v, want %v", err, ErrUnavailable)
	}
	held, _ := f.claim(t)
	held, cancelHeld := context.WithCancel(held)
	cancelHeld()
	if _, err := f.CompareAndSwap(held, NodePorts, 1, Range{}); err == nil {
		t.Error("the zero Range was written")
	}
}
