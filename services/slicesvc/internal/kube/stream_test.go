package kube_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/kube"
)

// scriptedClient has one Pod list, and hands out watches that a test feeds.
type scriptedClient struct {
	mu      sync.Mutex // guards all below
	version string     // of lists
	pods    []corev1.Pod
	lists   int // of Pods
	expired bool
	// opened are the watches of Pods, and their options.
	opened  []*watch.RaceFreeFakeWatcher
	options []metav1.ListOptions
}

func (c *scriptedClient) IsWatchListSemanticsUnSupported() bool { return true }

func (c *scriptedClient) List(_ context.Context, kind string, _ metav1.ListOptions) (runtime.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	meta := metav1.ListMeta{ResourceVersion: c.version}
	switch kind {
	case "pods":
		c.lists++
		return &corev1.PodList{ListMeta: meta, Items: c.pods}, nil
	case "nodes":
		return &corev1.NodeList{ListMeta: meta}, nil
	case "services":
		return &corev1.ServiceList{ListMeta: meta}, nil
	default:
		return &discoveryv1.EndpointSliceList{ListMeta: meta}, nil
	}
}

func (c *scriptedClient) ListMetadata(_ context.Context, kind string, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: c.version}}
	if kind == "pods" && options.FieldSelector == "" {
		for _, pod := range c.pods {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta})
		}
	}
	return list, nil
}

func (c *scriptedClient) Watch(_ context.Context, kind string, options metav1.ListOptions) (watch.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	watcher := watch.NewRaceFreeFake()
	if kind == "pods" {
		if c.expired {
			c.expired = false
			return nil, apierrors.NewResourceExpired("too old")
		}
		c.opened, c.options = append(c.opened, watcher), append(c.options, options)
	}
	return watcher, nil
}

// set changes what lists show.
func (c *scriptedClient) set(version string, pods ...corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version, c.pods = version, pods
}

// last returns the newest watch of Pods, with its options, and the number of watches.
func (c *scriptedClient) last() (*watch.RaceFreeFakeWatcher, metav1.ListOptions, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.opened[len(c.opened)-1], c.options[len(c.options)-1], len(c.opened)
}

func podAt(name, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "1", ResourceVersion: version}}
}

// runWatches runs Watches in a bubble until the end of the test. It returns after they are filled.
func runWatches(t *testing.T, client *scriptedClient) (*kube.Watches, *recordingHandler) {
	t.Helper()
	w, seen := kube.NewWatches(client, 0, slog.New(slog.DiscardHandler)), &recordingHandler{}
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan error, 1)
	go func() { returned <- w.Run(ctx, seen) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-returned)
	})
	<-w.Synced()
	synctest.Wait()
	seen.take()
	return w, seen
}

// No event and no bookmark comes. Another watch is opened, which continues after the last event and
// repeats nothing, without a list.
func TestWatches_SilentWatchIsReopened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := &scriptedClient{version: "5", pods: []corev1.Pod{*podAt("web-0", "4")}}
		w, seen := runWatches(t, client)
		first, _, _ := client.last()
		first.Modify(podAt("web-0", "7"))
		time.Sleep(80 * time.Second)
		if _, _, count := client.last(); count != 1 {
			t.Fatalf("%d watches after 80 s, want one", count)
		}
		time.Sleep(20 * time.Second)
		second, options, count := client.last()
		if count != 2 || options.ResourceVersion != "7" || !options.AllowWatchBookmarks || !first.IsStopped() {
			t.Fatalf("%d watches, the last with %+v: want another one from version 7", count, options)
		}
		if lag := time.Since(w.Status()[2].Heard); lag != 100*time.Second {
			t.Errorf("Pods were heard %v ago, want 100s: to open a watch is not to hear it", lag)
		}
		seen.take()
		second.Action(watch.Bookmark, podAt("", "7"))
		synctest.Wait()
		if lag := time.Since(w.Status()[2].Heard); lag != 0 {
			t.Errorf("Pods were heard %v ago, want now: a bookmark says that nothing has changed", lag)
		}
		second.Modify(podAt("web-0", "7"))
		second.Modify(podAt("web-1", "9"))
		synctest.Wait()
		if got := seen.take(); len(got) != 1 || got[0] != "put pod web-1" {
			t.Errorf("events are %v, want that of web-1 alone", got)
		}
		if client.lists != 1 || w.Status()[2].SilentReopens != 1 {
			t.Errorf("%d lists and %d reopened watches, want one each", client.lists, w.Status()[2].SilentReopens)
		}
	})
}

// The history of kube-apiserver does not reach back to the last event: the kind is listed.
func TestWatches_SilentWatchIsListedIfItsVersionExpired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := &scriptedClient{version: "5", pods: []corev1.Pod{*podAt("web-0", "4")}}
		_, seen := runWatches(t, client)
		client.set("20", *podAt("web-1", "18"))
		client.mu.Lock()
		client.expired = true
		client.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if got := strings.Join(seen.take(), ", "); got != "delete pod web-0, put pod web-1" {
			t.Errorf("events are %q, want those of a list", got)
		}
	})
}

// A term waits for a watch that is late, and the watch is reopened with a request for a bookmark.
func TestAwait_ReopensALateWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := &scriptedClient{version: "5", pods: []corev1.Pod{*podAt("web-0", "4")}}
		w, seen := runWatches(t, client)
		client.set("9", *podAt("web-1", "8"))
		versions, err := w.Inputs().CurrentVersions(t.Context())
		must(t, err)
		done := make(chan bool, 1)
		var late error
		go func() { done <- w.Inputs().Await(t.Context(), versions, func(err error) { late = err }) }()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if late == nil || !strings.Contains(late.Error(), "watch of pods is late: version 9") || strings.Contains(late.Error(), "nodes") {
			t.Errorf("late is %v, want Pods alone", late)
		}
		probe, options, count := client.last()
		if count < 2 || options.ResourceVersion != "5" || *options.TimeoutSeconds != 3 {
			t.Fatalf("%d watches, the last with %+v: want a short one from version 5", count, options)
		}
		probe.Delete(podAt("web-0", "7"))
		probe.Add(podAt("web-1", "8"))
		synctest.Wait()
		if len(done) > 0 {
			t.Error("the term goes on before version 9")
		}
		probe.Action(watch.Bookmark, podAt("", "9"))
		synctest.Wait()
		if len(done) == 0 || !<-done {
			t.Error("the term does not go on after the bookmark")
		}
		if got := strings.Join(seen.take(), ", "); got != "delete pod web-0, put pod web-1" {
			t.Errorf("events are %q", got)
		}
	})
}

// A quiet cache that has every listed object needs no event.
func TestCurrentVersions_ListProvesAQuietCache(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		now  []corev1.Pod
		want bool
	}{
		{"as before", []corev1.Pod{*podAt("web-0", "4")}, true},
		{"another version", []corev1.Pod{*podAt("web-0", "8")}, false},
		{"one more", []corev1.Pod{*podAt("web-0", "4"), *podAt("web-1", "8")}, false},
		{"deleted", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := &scriptedClient{version: "5", pods: []corev1.Pod{*podAt("web-0", "4")}}
				w, _ := runWatches(t, client)
				client.set("9", test.now...)
				versions, err := w.Inputs().CurrentVersions(t.Context())
				must(t, err)
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("late"))
				defer cancel()
				if got := w.Inputs().Await(ctx, versions, func(error) {}); got != test.want {
					t.Errorf("proven is %v, want %v", got, test.want)
				}
			})
		})
	}
}
