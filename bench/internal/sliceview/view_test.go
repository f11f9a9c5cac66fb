package sliceview

import (
	"context"
	"iter"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// shown returns a view and the watch that feeds it.
func shown(t *testing.T) (*View, *watch.FakeWatcher) {
	t.Helper()
	kube, feed := fake.NewClientset(), watch.NewFake()
	kube.PrependWatchReactor("endpointslices", clienttesting.DefaultWatchReactor(feed, nil))
	view, err := Watch(t.Context(), kube, "bench", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(view.Close)
	return view, feed
}

func slice(name string, pods ...string) *discoveryv1.EndpointSlice {
	ready := true
	made := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, pod := range pods {
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}, TargetRef: &corev1.ObjectReference{Name: pod},
		})
	}
	return made
}

// names are endpoints that are all ready.
type names []string

func (n names) Len() int { return len(n) }

func (n names) All() iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for _, name := range n {
			if !yield(name, true) {
				return
			}
		}
	}
}

func TestView_APodThatMovedBetweenSlicesIsShownOnce(t *testing.T) {
	view, feed := shown(t)
	feed.Add(slice("a", "x", "y"))
	feed.Add(slice("b", "y"))
	feed.Modify(slice("a", "x"))
	if err := view.Exact(t.Context(), names{"x", "y"}); err != nil {
		t.Error(err)
	}
	feed.Delete(slice("b", "y"))
	if err := view.Exact(t.Context(), names{"x"}); err != nil {
		t.Error(err)
	}
	feed.Delete(slice("a", "x"))
	if err := view.Gone(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestView_AnEndpointWithoutATargetHasTheNameOfItsAddress(t *testing.T) {
	view, feed := shown(t)
	feed.Add(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
	})
	if _, err := view.When(t.Context(), "10.0.0.1", false); err != nil {
		t.Error(err)
	}
}

func TestView_GoesOnAfterItsWatchEnded(t *testing.T) {
	kube, feeds := fake.NewClientset(), []*watch.FakeWatcher{watch.NewFake(), watch.NewFake()}
	versions := make(chan string, len(feeds))
	kube.PrependWatchReactor("endpointslices", func(action clienttesting.Action) (bool, watch.Interface, error) {
		versions <- action.(clienttesting.WatchActionImpl).ListOptions.ResourceVersion
		return true, feeds[len(versions)-1], nil
	})
	view, err := Watch(t.Context(), kube, "bench", "")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	first := slice("a", "x")
	first.ResourceVersion = "7"
	feeds[0].Add(first)
	feeds[0].Stop()
	feeds[1].Add(slice("b", "y"))
	if err := view.Exact(t.Context(), names{"x", "y"}); err != nil {
		t.Error(err)
	}
	if before, after := <-versions, <-versions; before != "" || after != "7" || view.Reopened() != 1 {
		t.Errorf("watches from versions %q and %q, reopened %d times; want from none and 7, once", before, after, view.Reopened())
	}
	feeds[1].Error(&metav1.Status{Code: 410})
	if _, err := view.When(t.Context(), "z", true); err == nil {
		t.Error("a watch that cannot go on is waited for")
	}
}

func TestView_WaitingCallsLearnOfTheEnd(t *testing.T) {
	view, _ := shown(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := view.Exact(ctx, names{"x"}); err == nil {
		t.Error("a Pod is shown that nothing has told of")
	}
	view.Close()
	if _, err := view.When(t.Context(), "x", true); err == nil {
		t.Error("a view without a watch still waits")
	}
}

func TestView_APodTooManyOrTooFewIsNotExact(t *testing.T) {
	view, feed := shown(t)
	feed.Add(slice("a", "x", "y"))
	feed.Add(slice("b", "y"))
	feed.Add(slice("c", "z")) // The last event: the view has handled all earlier ones.
	if _, err := view.When(t.Context(), "z", true); err != nil {
		t.Fatal(err)
	}
	for _, s := range []names{{"x", "y", "z"}, {"x", "y"}, {"x", "y", "z", "v"}} {
		view.mu.Lock()
		if view.differs(s) == nil {
			t.Errorf("two places of y, with %d Pods wanted, are exact", s.Len())
		}
		view.mu.Unlock()
	}
}
