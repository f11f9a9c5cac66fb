package cluster

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/internal/kubewatch"
)

// change is one version of an object, or its deletion, at the time at which the watch delivered it.
type change struct {
	at      time.Time
	kind    string
	object  metav1.Object
	deleted bool
}

// history keeps what watches deliver, from all of Nodes and their Leases and from the Pods,
// EndpointSlices and Endpoints of a namespace. Its methods are safe for concurrent use.
type history struct {
	mu      sync.Mutex // guards the fields below
	all     []change
	current map[string]metav1.Object // by kind and name
	changed chan struct{}            // closed and replaced at each change
}

// Kinds in a history.
const (
	kindNode  = "Node"
	kindLease = "Lease"
	kindPod   = "Pod"
	kindSlice = "EndpointSlice"
	// kindEndpoints is deprecated, but clients still read it.
	kindEndpoints = "Endpoints"
)

// watchAll starts a history that ends with the test. Everything has been listed once when it
// returns.
func watchAll(t *testing.T, kube kubernetes.Interface, namespace string) *history {
	t.Helper()
	h := &history{current: map[string]metav1.Object{}, changed: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	watch := func(kind string, source cache.ListerWatcher, sample any) {
		into := &historyStore{history: h, kind: kind, listed: make(chan struct{})}
		reflector := cache.NewReflectorWithOptions(source, sample, into, cache.ReflectorOptions{Name: kind})
		running.Go(func() { reflector.RunWithContext(ctx) })
		select {
		case <-into.listed:
		case <-time.After(time.Minute):
			t.Fatalf("no list of %s after a minute", kind)
		}
	}
	of := func(kind string) kubewatch.Config { return kubewatch.Config{Kind: kind, SilenceLimit: 2 * time.Minute} }
	watch(kindNode, kubewatch.New(kube.CoreV1().Nodes(), kube, of(kindNode)), &corev1.Node{})
	watch(kindLease, kubewatch.New(kube.CoordinationV1().Leases(corev1.NamespaceNodeLease), kube, of(kindLease)), &coordinationv1.Lease{})
	watch(kindPod, kubewatch.New(kube.CoreV1().Pods(namespace), kube, of(kindPod)), &corev1.Pod{})
	watch(kindSlice, kubewatch.New(kube.DiscoveryV1().EndpointSlices(namespace), kube, of(kindSlice)), &discoveryv1.EndpointSlice{})
	watch(kindEndpoints, kubewatch.New(kube.CoreV1().Endpoints(namespace), kube, of(kindEndpoints)), &corev1.Endpoints{})
	return h
}

func (h *history) add(kind string, object metav1.Object, deleted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := kind + "/" + object.GetName()
	if deleted {
		delete(h.current, key)
	} else {
		if before := h.current[key]; before != nil && before.GetResourceVersion() == object.GetResourceVersion() {
			return // a list after a watch that broke
		}
		h.current[key] = object
	}
	h.all = append(h.all, change{at: time.Now(), kind: kind, object: object, deleted: deleted})
	close(h.changed)
	h.changed = make(chan struct{})
}

// since returns all changes from then on, in their order.
func (h *history) since(then time.Time) []change {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []change
	for _, c := range h.all {
		if !c.at.Before(then) {
			found = append(found, c)
		}
	}
	return found
}

// objects returns the objects of a kind as they are now. T is a pointer to the kind's type.
func objects[T metav1.Object](h *history) []T {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []T
	for _, object := range h.current {
		if object, ok := object.(T); ok {
			found = append(found, object)
		}
	}
	return found
}

// await calls condition, now and after each change, until it returns nil, and fails the test after
// timeout. It returns when the condition was met.
func (h *history) await(t *testing.T, timeout time.Duration, condition func() error) time.Time {
	t.Helper()
	end := time.After(timeout)
	for {
		h.mu.Lock()
		changed := h.changed
		h.mu.Unlock()
		err := condition()
		if err == nil {
			return time.Now()
		}
		select {
		case <-changed:
		case <-end:
			t.Fatalf("after %v: %v", timeout, err)
		}
	}
}

// awaitChange waits for a change since then that matches, and returns it.
func (h *history) awaitChange(t *testing.T, then time.Time, timeout time.Duration, what string, match func(change) bool) change {
	t.Helper()
	var found change
	h.await(t, timeout, func() error {
		for _, c := range h.since(then) {
			if match(c) {
				found = c
				return nil
			}
		}
		return fmt.Errorf("not seen: %s", what)
	})
	return found
}

// historyStore takes in one collection. A reflector calls it from one goroutine.
type historyStore struct {
	history *history
	kind    string
	names   map[string]metav1.Object
	listed  chan struct{}
	once    sync.Once
}

func (s *historyStore) take(object any, deleted bool) error {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return fmt.Errorf("%s delivers a %v: %w", s.kind, reflect.TypeOf(object), err)
	}
	if deleted {
		delete(s.names, accessor.GetName())
	} else {
		s.names[accessor.GetName()] = accessor
	}
	s.history.add(s.kind, accessor, deleted)
	return nil
}

// Add implements cache.ReflectorStore.
func (s *historyStore) Add(object any) error { return s.take(object, false) }

// Update implements cache.ReflectorStore.
func (s *historyStore) Update(object any) error { return s.take(object, false) }

// Delete implements cache.ReflectorStore.
func (s *historyStore) Delete(object any) error { return s.take(object, true) }

// Replace implements cache.ReflectorStore. What a later list lacks is gone.
func (s *historyStore) Replace(listed []any, _ string) error {
	before := s.names
	s.names = map[string]metav1.Object{}
	for _, object := range listed {
		if err := s.take(object, false); err != nil {
			return err
		}
	}
	for name, object := range before {
		if s.names[name] == nil {
			s.history.add(s.kind, object, true)
		}
	}
	s.once.Do(func() { close(s.listed) })
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to repeat.
func (s *historyStore) Resync() error { return nil }
