package slicesvc_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	slicev1 "github.com/trivet-dev/trivet/proto/trivet/slice/v1"
)

// promptly is how soon a removal must be published beside another writer. A busy machine keeps it;
// a suspension of updates does not.
const promptly = 10 * time.Second

// otherWriter changes the slices of Service web again and again until it is stopped.
type otherWriter struct {
	changes atomic.Int64
	stop    func()
}

// startOtherWriter calls change for each slice of Service web every pause. change returns whether
// it changed the slice.
func (f *fixture) startOtherWriter(pause time.Duration, change func(ctx context.Context, slice *discoveryv1.EndpointSlice, round int64) (bool, error)) *otherWriter {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.ctx())
	w := &otherWriter{}
	var running sync.WaitGroup
	running.Go(func() {
		for round := int64(1); ctx.Err() == nil; round++ {
			list, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
			if err == nil {
				for i := range list.Items {
					changed, changeErr := change(ctx, &list.Items[i], round)
					if changed && changeErr == nil {
						w.changes.Add(1)
					}
					if !apierrors.IsConflict(changeErr) && !apierrors.IsNotFound(changeErr) {
						err = errors.Join(err, changeErr)
					}
				}
			}
			if err != nil && ctx.Err() == nil {
				f.t.Errorf("the other writer: %v", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	w.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	f.t.Cleanup(w.stop)
	return w
}

// patch applies a merge patch to a slice as another writer.
func (f *fixture) patch(ctx context.Context, slice *discoveryv1.EndpointSlice, format string, args ...any) (bool, error) {
	_, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).Patch(ctx, slice.Name, types.MergePatchType,
		fmt.Appendf(nil, format, args...), metav1.PatchOptions{FieldManager: "other-writer"})
	return true, err
}

// expectPromptly waits until the endpoints of Service web are as described, and fails if that takes
// too long.
func (f *fixture) expectPromptly(what, want string) {
	f.t.Helper()
	began := time.Now()
	for {
		got := describe(f.slices())
		if len(got) == 1 && got[0] == want {
			f.t.Logf("%s: published after %v", what, time.Since(began).Round(time.Millisecond))
			return
		}
		if took := time.Since(began); took > promptly {
			f.t.Fatalf("%s: not published after %v: slices are %q, want %q", what, took.Round(time.Second), got, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (f *fixture) deleteAtOnce(pod string) {
	f.t.Helper()
	f.must(f.clients.CoreV1().Pods(f.namespace).Delete(f.ctx(), pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

func (f *fixture) deletePodAndExpectRemoval(pod, want string) {
	f.t.Helper()
	f.deleteAtOnce(pod)
	f.expectPromptly("a deleted Pod", want)
}

// awaitChanges waits until the writer has made that many further changes.
func (w *otherWriter) awaitChanges(t *testing.T, count int64) {
	t.Helper()
	for until, deadline := w.changes.Load()+count, time.Now().Add(testTimeout); w.changes.Load() < until; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the other writer made only %d changes", w.changes.Load())
		}
	}
}

func contendedCondition(service *slicev1.ServiceSlices) string {
	for _, condition := range service.GetConditions() {
		if condition.GetType() == "Contended" {
			return condition.GetMessage()
		}
	}
	return ""
}

// A writer that only annotates or labels slices takes nothing away from slicesvc. What leaves the
// Service must still leave the slices at once.
func TestCluster_AnnotationsAndLabelsOfAnotherWriterDelayNothing(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"annotations": `{"metadata":{"annotations":{"example.com/seen":"%d"}}}`,
		"labels":      `{"metadata":{"labels":{"example.com/seen":"%d"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			node := f.node("a", "zone-a")
			f.service()
			f.pod("web-0", node, []string{"10.1.0.1"})
			f.pod("web-1", node, []string{"10.1.0.2"})
			f.pod("web-2", node, []string{"10.1.0.3"})
			f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS, web-2 10.1.0.3 zone-a RS")

			other := f.startOtherWriter(100*time.Millisecond, func(ctx context.Context, slice *discoveryv1.EndpointSlice, round int64) (bool, error) {
				return f.patch(ctx, slice, change, round)
			})
			other.awaitChanges(t, 5)
			for range 4 { // writes, each followed by changes of the other writer
				f.status("web-0", unready)
				other.awaitChanges(t, 2)
				f.status("web-0", becomeReady)
				other.awaitChanges(t, 2)
			}
			f.status("web-0", unready)
			f.expectPromptly("a Pod that is not ready", "IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a , web-1 10.1.0.2 zone-a RS, web-2 10.1.0.3 zone-a RS")
			other.awaitChanges(t, 5)
			f.deletePodAndExpectRemoval("web-1", "IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a , web-2 10.1.0.3 zone-a RS")
			other.awaitChanges(t, 5)
			service, err := f.serviceSlices()
			f.must(err)
			if message := contendedCondition(service); message != "" {
				t.Errorf("condition Contended: %s", message)
			}
			other.stop()
			events, err := f.clients.CoreV1().Events(f.namespace).List(f.ctx(), metav1.ListOptions{})
			f.must(err)
			for _, event := range events.Items {
				if event.Reason == "EndpointSlicesContended" {
					t.Errorf("event: %s", event.Message)
				}
			}
		})
	}
}

func becomeReady(status *corev1.PodStatus) {
	status.Conditions[0].Status = corev1.ConditionTrue
	status.Conditions[0].LastTransitionTime = metav1.Now()
}

// A writer with other rules changes the endpoints after each write: it takes the zones away, later
// an endpoint as well. What leaves the Service leaves the slices nevertheless. The fight is shown,
// and its cost is bounded.
func TestCluster_AWriterThatFightsAboutEndpointsWithholdsNoRemoval(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.node("a", "zone-a")
	f.service()
	for i := range 4 {
		f.pod(fmt.Sprintf("web-%d", i), node, []string{fmt.Sprintf("10.1.0.%d", i+1)})
	}
	const all = "IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a RS, web-1 10.1.0.2 zone-a RS, web-2 10.1.0.3 zone-a RS, web-3 10.1.0.4 zone-a RS"
	f.expect(all)
	var removesEndpoint atomic.Bool
	other := f.startOtherWriter(50*time.Millisecond, func(ctx context.Context, slice *discoveryv1.EndpointSlice, _ int64) (changed bool, err error) {
		edited := slice.DeepCopy()
		edited.Endpoints = nil
		for _, endpoint := range slice.Endpoints {
			removed := removesEndpoint.Load() && endpoint.TargetRef != nil && endpoint.TargetRef.Name == "web-3"
			changed = changed || removed || endpoint.Zone != nil
			if endpoint.Zone = nil; !removed {
				edited.Endpoints = append(edited.Endpoints, endpoint)
			}
		}
		if changed {
			_, err = f.clients.DiscoveryV1().EndpointSlices(f.namespace).Update(ctx, edited, metav1.UpdateOptions{FieldManager: "other-writer"})
		}
		return changed, err
	})
	other.awaitChanges(t, 4)
	f.status("web-0", unready)
	f.expectEndpoint("web-0", "not ready", func(endpoint *discoveryv1.Endpoint) bool {
		return endpoint != nil && !*endpoint.Conditions.Ready
	})
	f.deleteAtOnce("web-1")
	f.expectEndpoint("web-1", "gone", func(endpoint *discoveryv1.Endpoint) bool { return endpoint == nil })

	removesEndpoint.Store(true)
	f.expectEndpoint("web-3", "gone", func(endpoint *discoveryv1.Endpoint) bool { return endpoint == nil })
	f.expectEndpoint("web-3", "back", func(endpoint *discoveryv1.Endpoint) bool { return endpoint != nil })
	other.awaitChanges(t, 8)
	before := other.changes.Load()
	time.Sleep(3 * time.Second)
	if fought := other.changes.Load() - before; fought > 12 {
		t.Errorf("%d rounds of the fight in 3 seconds", fought)
	}
	service, err := f.serviceSlices()
	f.must(err)
	if message := contendedCondition(service); message == "" {
		t.Error("condition Contended is missing")
	}
	f.expectContendedEvent()
	other.stop()
	f.expect("IPv4 http 8080/TCP: web-0 10.1.0.1 zone-a , web-2 10.1.0.3 zone-a RS, web-3 10.1.0.4 zone-a RS")
}

// expectEndpoint waits until a Pod's endpoint, nil if there is none, is as wanted.
func (f *fixture) expectEndpoint(pod, what string, wanted func(*discoveryv1.Endpoint) bool) {
	f.t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		var found *discoveryv1.Endpoint
		for _, slice := range f.slices() {
			for i := range slice.Endpoints {
				if target := slice.Endpoints[i].TargetRef; target != nil && target.Name == pod {
					found = &slice.Endpoints[i]
				}
			}
		}
		if wanted(found) {
			f.t.Logf("%s is %s after %v", pod, what, time.Since(began).Round(time.Millisecond))
			return
		}
		if took := time.Since(began); took > promptly {
			f.t.Fatalf("%s is not %s after %v: %v", pod, what, took.Round(time.Second), found)
		}
	}
}

func (f *fixture) expectContendedEvent() {
	f.t.Helper()
	for deadline := time.Now().Add(promptly); ; time.Sleep(100 * time.Millisecond) {
		events, err := f.clients.CoreV1().Events(f.namespace).List(f.ctx(), metav1.ListOptions{})
		f.must(err)
		for _, event := range events.Items {
			if event.Reason == "EndpointSlicesContended" && event.InvolvedObject.Name == "web" && event.Type == corev1.EventTypeWarning {
				return
			}
		}
		if time.Now().After(deadline) {
			f.t.Fatal("no Event EndpointSlicesContended of the Service")
		}
	}
}
