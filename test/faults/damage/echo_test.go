package damage

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// echoMeter measures how slow the machine is: again and again it creates an object and waits until
// a watch shows the object. A repair needs several such steps in sequence.
type echoMeter struct {
	mu     sync.Mutex // guards the following fields
	echoes []echo
	began  time.Time // of the echo that is awaited
	err    error
}

// echo is the time from a creation until its event.
type echo struct{ began, ended time.Time }

// startEchoes starts a meter and returns after the first echo. The test's cleanup stops it.
func startEchoes(t *testing.T, kube kubernetes.Interface, namespace string) *echoMeter {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	m := &echoMeter{}
	var running sync.WaitGroup
	running.Go(func() {
		err := m.run(ctx, kube, namespace)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.err = err
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	testkit.Eventually(t, waitTimeout, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.err == nil && len(m.echoes) == 0 {
			return fmt.Errorf("no echo yet")
		}
		return m.err
	})
	return m
}

// run measures until the context ends. kube-apiserver ends a watch after 30 minutes at the
// earliest.
func (m *echoMeter) run(ctx context.Context, kube kubernetes.Interface, namespace string) error {
	objects := kube.CoreV1().ConfigMaps(namespace)
	events, err := objects.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer events.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("echo-%d", n)}}
		m.begin()
		if _, err := objects.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := awaitCreation(ctx, events, object.Name); err != nil {
			return err
		}
		m.end()
		if err := objects.Delete(ctx, object.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		testkit.Pause(ctx, 20*time.Millisecond)
	}
	return nil
}

func awaitCreation(ctx context.Context, events watch.Interface, name string) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, ok := <-events.ResultChan():
			object, isObject := event.Object.(*corev1.ConfigMap)
			switch {
			case !ok, event.Type == watch.Error:
				return fmt.Errorf("the watch of echoes ended: %v", event.Object)
			case isObject && event.Type == watch.Added && object.Name == name:
				return nil
			}
		}
	}
}

func (m *echoMeter) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.began = time.Now()
}

func (m *echoMeter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.echoes = append(m.echoes, echo{began: m.began, ended: time.Now()})
	m.began = time.Time{}
}

// slowest returns the time of the slowest echo since then, with the one that is awaited.
func (m *echoMeter) slowest(t *testing.T, since time.Time) time.Duration {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		t.Fatalf("echoes: %v", m.err)
	}
	var slowest time.Duration
	if !m.began.IsZero() {
		slowest = time.Since(m.began)
	}
	for _, e := range m.echoes {
		if e.ended.After(since) {
			slowest = max(slowest, e.ended.Sub(e.began))
		}
	}
	return slowest
}
