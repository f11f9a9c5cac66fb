package podset

import (
	"context"
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
	view, err := Watch(t.Context(), kube)
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

func setOf(names ...string) *Set {
	s := &Set{services: 1}
	for _, name := range names {
		s.pods = append(s.pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
	return s
}

func TestView_APodThatMovedBetweenSlicesIsShownOnce(t *testing.T) {
	view, feed := shown(t)
	feed.Add(slice("a", "x", "y"))
	feed.Add(slice("b", "y"))
	feed.Modify(slice("a", "x"))
	if err := view.Exact(t.Context(), setOf("x", "y")); err != nil {
		t.Error(err)
	}
	feed.Delete(slice("b", "y"))
	if err := view.Exact(t.Context(), setOf("x")); err != nil {
		t.Error(err)
	}
	feed.Delete(slice("a", "x"))
	if err := view.Gone(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestView_WaitingCallsLearnOfTheEnd(t *testing.T) {
	view, _ := shown(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := view.Exact(ctx, setOf("x")); err == nil {
		t.Error("a Pod is shown that nothing has told of")
	}
	view.Close()
	if _, err := view.When(t.Context(), "x", true); err == nil {
		t.Error("a view without a watch still waits")
	}
}

func TestSet_IdealCountsEachService(t *testing.T) {
	s := setOf("a", "b", "c", "d", "e", "f", "g")
	s.services = 3 // 3, 2 and 2 Pods
	if got := s.Ideal(2); got != 4 {
		t.Errorf("ideal is %d slices, want 4", got)
	}
	s.pods = make([]*corev1.Pod, 3)
	if got := s.Ideal(2); got != 3 {
		t.Errorf("without Pods ideal is %d slices, want one for each Service", got)
	}
}

func TestLatencies_AtAQuantile(t *testing.T) {
	l := Latencies{1, 2, 3, 4}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 2, 0.51: 3, 1: 4} {
		if got := l.At(q); got != want {
			t.Errorf("at %v: %v, want %v", q, got, want)
		}
	}
	if got := (Latencies)(nil).At(0.5); got != 0 {
		t.Errorf("of none: %v, want 0", got)
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
	for _, s := range []*Set{setOf("x", "y", "z"), setOf("x", "y"), setOf("x", "y", "z", "v")} {
		view.mu.Lock()
		if view.differs(s) == nil {
			t.Errorf("two places of y, with %d Pods wanted, are exact", s.Len())
		}
		view.mu.Unlock()
	}
}
