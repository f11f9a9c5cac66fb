package kubewatch_test

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/internal/kubewatch"
)

// failingClient is a scriptedClient whose requests fail with failure, if there is one.
type failingClient struct {
	scriptedClient
	failure  atomic.Pointer[error]
	requests atomic.Int32
}

func (c *failingClient) fail(err error) { c.failure.Store(&err) }

func (c *failingClient) err() error {
	c.requests.Add(1)
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *failingClient) List(ctx context.Context, options metav1.ListOptions) (*corev1.NodeList, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	return c.scriptedClient.List(ctx, options)
}

func (c *failingClient) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	return c.scriptedClient.Watch(ctx, options)
}

// However long kube-apiserver is away, an informer of client-go has the objects within seconds
// after it is back, and sends few requests meanwhile.
func TestPersistent_InformerIsCurrentSoonAfterALongOutage(t *testing.T) {
	for name, failure := range map[string]error{
		"refused":     syscall.ECONNREFUSED,
		"unavailable": apierrors.NewServiceUnavailable("starting"),
		"timeout":     apierrors.NewTimeoutError("etcd does not answer", 1),
		"internal":    apierrors.NewInternalError(errors.New("etcdserver: no leader")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := &failingClient{}
				informer := cache.NewSharedIndexInformer(kubewatch.New(client, client, kubewatch.Config{Kind: "Node"}), &corev1.Node{}, 0, nil)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					defer close(done)
					informer.RunWithContext(ctx)
				}()
				synctest.Wait()
				watcher, _ := client.current(t, 1)
				client.fail(failure)
				watcher.Stop() // as the connection breaks
				const outage = 5 * time.Minute
				time.Sleep(outage)
				if sent := client.requests.Load(); sent > 200 {
					t.Errorf("%d requests in %v without an answer, want 200 at most", sent, outage)
				}
				client.failure.Store(nil)
				time.Sleep(5 * time.Second)
				client.mu.Lock()
				opened := len(client.opened)
				client.mu.Unlock()
				if opened != 2 {
					t.Errorf("%d watches were opened, want another one within 5 s after the outage", opened)
				}
				cancel()
				<-done
			})
		})
	}
}

func TestPersistent_ReflectorGetsWhatItMustAnswer(t *testing.T) {
	tooNew := apierrors.NewTimeoutError("Too large resource version", 1)
	tooNew.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	streamed := true
	for name, c := range map[string]struct {
		err     error
		options metav1.ListOptions
	}{
		"expired":             {apierrors.NewResourceExpired("compacted"), metav1.ListOptions{}},
		"version too new":     {tooNew, metav1.ListOptions{}},
		"no right":            {apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil), metav1.ListOptions{}},
		"no streamed list":    {apierrors.NewInvalid(schema.GroupKind{}, "", nil), metav1.ListOptions{SendInitialEvents: &streamed}},
		"broken stream":       {apierrors.NewInternalError(errors.New("cannot encode")), metav1.ListOptions{SendInitialEvents: &streamed}},
		"term of a candidate": {context.Canceled, metav1.ListOptions{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				calls := 0
				persistent := kubewatch.Persistent(&cache.ListWatch{
					WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
						if calls++; errors.Is(c.err, context.Canceled) {
							cancel()
						}
						return nil, c.err
					},
				})
				begin := time.Now()
				if _, err := persistent.WatchFuncWithContext(ctx, c.options); !errors.Is(err, c.err) || calls != 1 || time.Since(begin) > 0 {
					t.Errorf("WatchWithContext() = %v after %d requests and %v, want %v after one, at once", err, calls, time.Since(begin), c.err)
				}
			})
		})
	}
}
