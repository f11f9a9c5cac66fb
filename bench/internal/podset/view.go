package podset

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// waitLimit bounds the wait for a state of the slices.
const waitLimit = 2 * time.Minute

// errWatchEnded is the error of a view whose watch has ended.
var errWatchEnded = errors.New("the watch of slices has ended")

// View is the state of Pods in the slices of the namespace, from a watch. Its methods may be called
// from any goroutine.
type View struct {
	watcher watch.Interface
	mu      sync.Mutex // guards the following fields
	changed *sync.Cond
	ended   bool
	slices  map[string][]string // Pods by slice, with duplicates
	pods    map[string]*observed
}

// observed is the readiness of one Pod in the slices, and the time of its last change.
type observed struct {
	ready  bool
	since  time.Time
	places int
}

// Watch starts a view. It ends with Close or ctx.
func Watch(ctx context.Context, kube kubernetes.Interface) (*View, error) {
	watcher, err := kube.DiscoveryV1().EndpointSlices(Namespace).Watch(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName,
	})
	if err != nil {
		return nil, err
	}
	v := &View{watcher: watcher, slices: map[string][]string{}, pods: map[string]*observed{}}
	v.changed = sync.NewCond(&v.mu)
	go v.follow()
	return v, nil
}

// Close ends the view. Waiting calls return an error.
func (v *View) Close() { v.watcher.Stop() }

func (v *View) follow() {
	for event := range v.watcher.ResultChan() {
		if slice, ok := event.Object.(*discoveryv1.EndpointSlice); ok {
			v.note(slice, event.Type == watch.Deleted, time.Now())
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ended = true
	v.changed.Broadcast()
}

func (v *View) note(slice *discoveryv1.EndpointSlice, gone bool, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.slices[slice.Name]
	delete(v.slices, slice.Name)
	if !gone {
		shown := make([]string, len(slice.Endpoints))
		for i := range slice.Endpoints {
			shown[i] = v.show(&slice.Endpoints[i], now)
		}
		v.slices[slice.Name] = shown
	}
	for _, pod := range before {
		if s := v.pods[pod]; s.places > 1 {
			s.places--
		} else {
			delete(v.pods, pod)
		}
	}
	v.changed.Broadcast()
}

func (v *View) show(endpoint *discoveryv1.Endpoint, now time.Time) (pod string) {
	pod = endpoint.TargetRef.Name
	ready := endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready
	s := v.pods[pod]
	if s == nil {
		s = &observed{ready: ready, since: now}
		v.pods[pod] = s
	}
	if s.ready != ready {
		s.ready, s.since = ready, now
	}
	s.places++
	return pod
}

// Slices returns the number of slices.
func (v *View) Slices() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.slices)
}

// When waits until the slices show the readiness of a Pod, and returns the time at which they first
// did.
func (v *View) When(ctx context.Context, pod string, ready bool) (since time.Time, err error) {
	err = v.until(ctx, func() error {
		s := v.pods[pod]
		if s == nil || s.ready != ready {
			return fmt.Errorf("no slice says ready=%t of Pod %s", ready, pod)
		}
		since = s.since
		return nil
	})
	return since, err
}

// Exact waits until the slices contain exactly the Pods of the set, each once and with its
// readiness.
func (v *View) Exact(ctx context.Context, s *Set) error {
	return v.until(ctx, func() error { return v.differs(s) })
}

// Gone waits until there is no slice.
func (v *View) Gone(ctx context.Context) error {
	return v.until(ctx, func() error {
		if len(v.slices) > 0 {
			return fmt.Errorf("there are %d slices still", len(v.slices))
		}
		return nil
	})
}

func (v *View) differs(s *Set) error {
	if want := s.Len(); len(v.pods) != want {
		return fmt.Errorf("slices show %d Pods of %d", len(v.pods), want)
	}
	for _, pod := range s.pods {
		if pod == nil {
			continue
		}
		if seen := v.pods[pod.Name]; seen == nil || seen.ready != isReady(pod) || seen.places != 1 {
			return fmt.Errorf("slices show Pod %s as %+v", pod.Name, seen)
		}
	}
	return nil
}

// until waits until problem returns nil. It calls problem after every change, with the lock held.
func (v *View) until(ctx context.Context, problem func() error) error {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		v.mu.Lock() // so that no change falls between the check and the wait
		defer v.mu.Unlock()
		v.changed.Broadcast()
	})()
	v.mu.Lock()
	defer v.mu.Unlock()
	for {
		err := problem()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return errors.Join(err, ctx.Err())
		case v.ended:
			return errors.Join(err, errWatchEnded)
		}
		v.changed.Wait()
	}
}
