// Package sliceview observes by a watch when the EndpointSlices of a namespace show a change.
package sliceview

import (
	"context"
	"errors"
	"fmt"
	"iter"
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

// Wanted is the state that the slices must reach. An endpoint has the name of its target, or its
// address without a target.
type Wanted interface {
	// Len returns the number of endpoints.
	Len() int
	// All yields each endpoint and whether it is ready.
	All() iter.Seq2[string, bool]
}

// View is the state of the endpoints in the slices of a namespace, from a watch. Its methods may be
// called from any goroutine.
type View struct {
	open  func(version string) (watch.Interface, error) // opens the watch after a version
	close context.CancelFunc

	mu        sync.Mutex // guards the following fields
	changed   *sync.Cond
	ended     bool
	reopened  int
	bytes     int64
	slices    map[string][]string // endpoints by slice, with duplicates
	endpoints map[string]*observed
}

// observed is the readiness of one endpoint in the slices, and the time of its last change.
type observed struct {
	ready  bool
	since  time.Time
	places int
}

// Watch starts a view of the slices of a namespace that a label selector selects. It ends with
// Close or ctx. kube-apiserver ends a watch that falls behind, as on a busy machine; the view then
// opens it again after its last event.
func Watch(ctx context.Context, kube kubernetes.Interface, namespace, selector string) (*View, error) {
	ctx, cancel := context.WithCancel(ctx)
	v := &View{close: cancel, slices: map[string][]string{}, endpoints: map[string]*observed{}}
	v.changed = sync.NewCond(&v.mu)
	v.open = func(version string) (watch.Interface, error) {
		return kube.DiscoveryV1().EndpointSlices(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: version})
	}
	watcher, err := v.open("")
	if err != nil {
		cancel()
		return nil, err
	}
	go v.follow(ctx, watcher)
	return v, nil
}

// Close ends the view. Waiting calls return an error.
func (v *View) Close() { v.close() }

// Reopened returns how often the watch was opened again. Latencies of that time are too long.
func (v *View) Reopened() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.reopened
}

// Bytes returns the size of all slices in the events of the watch, as protobuf.
func (v *View) Bytes() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.bytes
}

func (v *View) follow(ctx context.Context, watcher watch.Interface) {
	version := ""
	for {
		last, expired := v.read(ctx, watcher)
		if last != "" {
			version = last
		}
		var err error
		if ctx.Err() == nil && !expired {
			watcher, err = v.open(version)
		}
		v.mu.Lock()
		if ctx.Err() != nil || expired || err != nil {
			v.ended = true
			v.changed.Broadcast()
			v.mu.Unlock()
			return
		}
		v.reopened++
		v.mu.Unlock()
	}
}

// read notes the events of a watch until it or ctx ends. It returns the version of the last event,
// and whether kube-apiserver cannot continue the watch after it.
func (v *View) read(ctx context.Context, watcher watch.Interface) (last string, expired bool) {
	defer watcher.Stop()
	for {
		select {
		case <-ctx.Done():
			return last, false
		case event, open := <-watcher.ResultChan():
			if !open {
				return last, false
			}
			slice, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				return last, true
			}
			v.note(slice, event.Type == watch.Deleted, time.Now())
			last = slice.ResourceVersion
		}
	}
}

func (v *View) note(slice *discoveryv1.EndpointSlice, gone bool, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bytes += int64(slice.Size())
	before := v.slices[slice.Name]
	delete(v.slices, slice.Name)
	if !gone {
		shown := make([]string, len(slice.Endpoints))
		for i := range slice.Endpoints {
			shown[i] = v.show(&slice.Endpoints[i], now)
		}
		v.slices[slice.Name] = shown
	}
	for _, name := range before {
		if s := v.endpoints[name]; s.places > 1 {
			s.places--
		} else {
			delete(v.endpoints, name)
		}
	}
	v.changed.Broadcast()
}

func (v *View) show(endpoint *discoveryv1.Endpoint, now time.Time) (name string) {
	if endpoint.TargetRef != nil {
		name = endpoint.TargetRef.Name
	} else {
		name = endpoint.Addresses[0]
	}
	ready := endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready
	s := v.endpoints[name]
	if s == nil {
		s = &observed{ready: ready, since: now}
		v.endpoints[name] = s
	}
	if s.ready != ready {
		s.ready, s.since = ready, now
	}
	s.places++
	return name
}

// Slices returns the number of slices.
func (v *View) Slices() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.slices)
}

// When waits until the slices show the readiness of an endpoint, and returns the time at which they
// first did.
func (v *View) When(ctx context.Context, name string, ready bool) (since time.Time, err error) {
	err = v.until(ctx, func() error {
		s := v.endpoints[name]
		if s == nil || s.ready != ready {
			return fmt.Errorf("no slice says ready=%t of %s", ready, name)
		}
		since = s.since
		return nil
	})
	return since, err
}

// Exact waits until the slices contain exactly the wanted endpoints, each once and with its
// readiness.
func (v *View) Exact(ctx context.Context, wanted Wanted) error {
	return v.until(ctx, func() error { return v.differs(wanted) })
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

func (v *View) differs(wanted Wanted) error {
	if want := wanted.Len(); len(v.endpoints) != want {
		return fmt.Errorf("slices show %d endpoints of %d", len(v.endpoints), want)
	}
	for name, ready := range wanted.All() {
		if seen := v.endpoints[name]; seen == nil || seen.ready != ready || seen.places != 1 {
			return fmt.Errorf("slices show %s as %+v, want it once with ready=%t", name, seen, ready)
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
