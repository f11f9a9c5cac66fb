package kubewatch_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/internal/kubewatch"
)

// scriptedClient has the Node "a", and hands out watches that a test feeds.
type scriptedClient struct {
	mu      sync.Mutex // guards all below
	hanging bool       // requests get no answer
	lists   int
	opened  []*watch.RaceFreeFakeWatcher
	options []metav1.ListOptions
}

func (*scriptedClient) IsWatchListSemanticsUnSupported() bool { return true }

func (c *scriptedClient) answer(ctx context.Context) error {
	c.mu.Lock()
	hanging := c.hanging
	c.mu.Unlock()
	if hanging {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (c *scriptedClient) hang(hanging bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hanging = hanging
}

func (c *scriptedClient) List(ctx context.Context, _ metav1.ListOptions) (*corev1.NodeList, error) {
	if err := c.answer(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}, Items: []corev1.Node{*node("a", "9")}}, nil
}

func (c *scriptedClient) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := c.answer(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	watcher := watch.NewRaceFreeFake()
	c.opened, c.options = append(c.opened, watcher), append(c.options, options)
	return watcher, nil
}

func (c *scriptedClient) current(t *testing.T, want int) (*watch.RaceFreeFakeWatcher, metav1.ListOptions) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.opened) != want || c.lists != 1 {
		t.Fatalf("%d watches and %d lists, want %d and 1", len(c.opened), c.lists, want)
	}
	return c.opened[want-1], c.options[want-1]
}

func node(name, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
}

// fixture is a reflector that fills a store.
type fixture struct {
	t       *testing.T
	client  *scriptedClient
	store   cache.Store
	metrics *prometheus.Registry

	mu      sync.Mutex // guards all below
	answers []error
	events  int
}

const limit = 90 * time.Second

func play(t *testing.T, test func(*fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, client: &scriptedClient{}, metrics: prometheus.NewRegistry()}
		lister := kubewatch.New(f.client, f.client, kubewatch.Config{
			Kind: "Node", Metrics: kubewatch.NewMetrics(f.metrics),
			OnAnswer: func(err error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.answers = append(f.answers, err)
			},
			OnEvent: func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.events++
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		informer := cache.NewSharedIndexInformer(lister, &corev1.Node{}, 0, nil)
		f.store = informer.GetStore()
		// The default one shares its pause with the other tests, whose time is another one.
		if err := informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { informer.RunWithContext(ctx) })
		test(f)
	})
}

func (f *fixture) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (f *fixture) expectNodes(want ...string) {
	f.t.Helper()
	names := f.store.ListKeys()
	if slices.Sort(names); !slices.Equal(names, want) {
		f.t.Errorf("nodes %v, want %v", names, want)
	}
}

func (f *fixture) expectReopens(cause string, want int) {
	f.t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	got := 0.0
	for _, family := range families {
		for _, metric := range family.Metric {
			if metric.Label[0].GetValue() == cause {
				got += metric.Counter.GetValue()
			}
		}
	}
	if got != float64(want) {
		f.t.Errorf("%v requests were given up as %s, want %d", got, cause, want)
	}
}

func TestNew_SilentWatchIsReopenedAfterItsLastEvent(t *testing.T) {
	t.Parallel()
	play(t, func(f *fixture) {
		f.after(time.Second)
		first, options := f.client.current(t, 1)
		if options.ResourceVersion != "10" || !options.AllowWatchBookmarks {
			t.Errorf("the first watch has %+v, want version 10 and bookmarks", options)
		}
		first.Add(node("b", "11"))
		for range 5 { // bookmarks alone keep it open
			f.after(time.Minute)
			first.Action(watch.Bookmark, node("", "20"))
		}
		f.after(limit - time.Second)
		f.client.current(t, 1)
		f.expectReopens("silent", 0)

		f.after(2 * time.Second)
		second, options := f.client.current(t, 2)
		if options.ResourceVersion != "20" {
			t.Errorf("the second watch starts after %s, want 20", options.ResourceVersion)
		}
		if !first.IsStopped() {
			t.Error("the silent watch was not stopped")
		}
		second.Add(node("c", "21"))
		f.after(time.Second)
		f.expectNodes("a", "b", "c")
		f.expectReopens("silent", 1)
		f.expectReopens("unanswered", 0)
		if f.events != 7 {
			t.Errorf("OnEvent was called %d times, want 7", f.events)
		}
	})
}

func TestNew_ListWithoutAnswerIsGivenUp(t *testing.T) {
	t.Parallel()
	play(t, func(f *fixture) {
		f.client.hang(true)
		f.after(limit + 100*time.Millisecond)
		f.expectReopens("unanswered", 1)
		if !slices.ContainsFunc(f.answers, func(err error) bool { return errors.Is(err, kubewatch.ErrNoAnswer) }) {
			t.Errorf("OnAnswer got %v, want %v", f.answers, kubewatch.ErrNoAnswer)
		}
		f.client.hang(false)
		f.after(2 * limit) // the second list may have been sent before
		f.expectNodes("a")
	})
}

func TestNew_WatchThatDoesNotOpenIsGivenUp(t *testing.T) {
	t.Parallel()
	play(t, func(f *fixture) {
		f.after(time.Second)
		first, _ := f.client.current(t, 1)
		f.client.hang(true)
		first.Stop()
		f.after(limit + time.Second)
		f.expectReopens("unanswered", 1)
		f.client.hang(false)
		f.after(3 * limit)
		if last := f.answers[len(f.answers)-1]; last != nil {
			t.Errorf("the last answer is %v, want success", last)
		}
	})
}
