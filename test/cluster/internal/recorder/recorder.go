// Package recorder feeds a recording from the watches of a kube-apiserver. It sees what any client
// sees: each object at each version that the watch delivers, at the time of its delivery.
package recorder

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/trivet-dev/trivet/internal/kubewatch"
	"github.com/trivet-dev/trivet/test/cluster/internal/recording"
)

// silenceLimit ends a watch of a kube-apiserver that has stopped without a word.
const silenceLimit = 2 * time.Minute

// Recorder records Nodes, their Leases, and the Pods, Services, Endpoints, EndpointSlices and
// Events of some namespaces. Its methods are safe for concurrent use.
type Recorder struct {
	began   time.Time
	watches []watched

	mu      sync.Mutex // guards the fields below
	tracker *recording.Tracker
	changed chan struct{} // closed and replaced at each change
}

// watched is one collection.
type watched struct {
	name   string
	source cache.ListerWatcher
	sample any
	sink   *sink
}

// New returns a recorder of these namespaces. Names of objects of one kind must differ in all of
// them.
func New(kube kubernetes.Interface, namespaces ...string) *Recorder {
	r := &Recorder{began: time.Now(), tracker: recording.NewTracker(), changed: make(chan struct{})}
	r.watch("nodes", kubewatch.New(kube.CoreV1().Nodes(), kube, configOf("Node")), &corev1.Node{})
	r.watch("leases", kubewatch.New(kube.CoordinationV1().Leases(corev1.NamespaceNodeLease), kube, configOf("Lease")), &coordinationv1.Lease{})
	for _, n := range namespaces {
		r.watch("pods of "+n, kubewatch.New(kube.CoreV1().Pods(n), kube, configOf("Pod")), &corev1.Pod{})
		r.watch("services of "+n, kubewatch.New(kube.CoreV1().Services(n), kube, configOf("Service")), &corev1.Service{})
		r.watch("endpoints of "+n, kubewatch.New(kube.CoreV1().Endpoints(n), kube, configOf("Endpoints")), &corev1.Endpoints{})
		r.watch("slices of "+n, kubewatch.New(kube.DiscoveryV1().EndpointSlices(n), kube, configOf("EndpointSlice")), &discoveryv1.EndpointSlice{})
		r.watch("events of "+n, kubewatch.New(kube.CoreV1().Events(n), kube, configOf("Event")), &corev1.Event{})
	}
	return r
}

func configOf(kind string) kubewatch.Config {
	return kubewatch.Config{Kind: kind, SilenceLimit: silenceLimit}
}

func (r *Recorder) watch(name string, source cache.ListerWatcher, sample any) {
	r.watches = append(r.watches, watched{name: name, source: source, sample: sample, sink: &sink{recorder: r, listed: make(chan struct{})}})
}

// Run watches until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, w := range r.watches {
		reflector := cache.NewReflectorWithOptions(w.source, w.sample, w.sink, cache.ReflectorOptions{Name: w.name})
		running.Go(func() { reflector.RunWithContext(ctx) })
	}
	running.Wait()
	return nil
}

// AwaitListed returns when each collection has been listed once.
func (r *Recorder) AwaitListed(ctx context.Context) error {
	for _, w := range r.watches {
		select {
		case <-w.sink.listed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the list of %s: %w", w.name, context.Cause(ctx))
		}
	}
	return nil
}

// BeginStep ends the last step and begins the next one.
func (r *Recorder) BeginStep(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tracker.BeginStep(time.Since(r.began), name)
}

// Finish ends the last step and returns the recording. Run may have ended before.
func (r *Recorder) Finish() recording.Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	finished := r.tracker.Finish(time.Since(r.began))
	finished.Began = r.began.UTC().Truncate(time.Second)
	return finished
}

// Views returns the objects of a kind as they are now, in no order.
type Views func(kind string) []recording.View

// Await calls condition, now and after each change, until it returns nil or ctx ends. condition
// must not call the recorder.
func (r *Recorder) Await(ctx context.Context, condition func(Views) error) error {
	for {
		r.mu.Lock()
		err, changed := condition(r.tracker.Views), r.changed
		r.mu.Unlock()
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// AwaitQuiet returns when nothing has changed for that long, or after limit. Renewals of Leases are
// no changes.
func (r *Recorder) AwaitQuiet(ctx context.Context, quiet, limit time.Duration) error {
	end := time.Now().Add(limit)
	for {
		r.mu.Lock()
		left := quiet - (time.Since(r.began) - r.tracker.LastChange())
		r.mu.Unlock()
		left = min(left, time.Until(end))
		if left <= 0 {
			return nil
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

func (r *Recorder) observe(object any) {
	view, ok := recording.Of(object)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tracker.Observe(time.Since(r.began), view)
	r.notify()
}

func (r *Recorder) gone(kind, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tracker.Gone(time.Since(r.began), kind, name)
	r.notify()
}

func (r *Recorder) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// sink takes in one collection. A reflector calls it from one goroutine.
type sink struct {
	recorder *Recorder
	listed   chan struct{}
	names    []string // of the last list and the events since
	kind     string
}

// Add implements cache.ReflectorStore.
func (s *sink) Add(object any) error {
	if view, ok := recording.Of(object); ok {
		s.kind = view.Kind
		if !slices.Contains(s.names, view.Name) {
			s.names = append(s.names, view.Name)
		}
	}
	s.recorder.observe(object)
	return nil
}

// Update implements cache.ReflectorStore.
func (s *sink) Update(object any) error { return s.Add(object) }

// Delete implements cache.ReflectorStore.
func (s *sink) Delete(object any) error {
	view, ok := recording.Of(object)
	if !ok {
		return fmt.Errorf("deletion of %T, which is not recorded", object)
	}
	s.names = slices.DeleteFunc(s.names, func(name string) bool { return name == view.Name })
	s.recorder.gone(view.Kind, view.Name)
	return nil
}

// Replace implements cache.ReflectorStore. What a later list lacks is gone.
func (s *sink) Replace(objects []any, _ string) error {
	before := s.names
	s.names = nil
	for _, object := range objects {
		if err := s.Add(object); err != nil {
			return err
		}
	}
	for _, name := range before {
		if !slices.Contains(s.names, name) {
			s.recorder.gone(s.kind, name)
		}
	}
	select {
	case <-s.listed:
	default:
		close(s.listed)
	}
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to repeat.
func (s *sink) Resync() error { return nil }
