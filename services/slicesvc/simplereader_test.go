package slicesvc_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubewatch "k8s.io/apimachinery/pkg/watch"

	"github.com/trivet-dev/trivet/internal/tracing"
	"github.com/trivet-dev/trivet/services/slicesvc"
	"github.com/trivet-dev/trivet/test/lab/slicereader"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// ciliumBatch is for how long Cilium collects events.
const ciliumBatch = 500 * time.Millisecond

// simpleReaders follow the slices of a namespace by one watch.
type simpleReaders struct {
	mu sync.Mutex // guards all below
	// alone get each event by itself, inBatches the events of half a second.
	alone     map[string]*slicereader.Reader
	inBatches *slicereader.Reader
	batch     []slicereader.Event
	// moved are the addresses that were in two slices at once.
	moved map[string]bool
	now   map[string]*discoveryv1.EndpointSlice
}

func (f *fixture) startSimpleReaders() *simpleReaders {
	f.t.Helper()
	r := &simpleReaders{
		alone: map[string]*slicereader.Reader{
			"by address": slicereader.New(slicereader.ByAddress),
			"by Pod":     slicereader.New(slicereader.ByPod),
		},
		inBatches: slicereader.New(slicereader.ByAddress),
		moved:     map[string]bool{},
		now:       map[string]*discoveryv1.EndpointSlice{},
	}
	ctx, cancel := context.WithCancel(context.Background())
	watch, err := f.clients.DiscoveryV1().EndpointSlices(f.namespace).Watch(ctx, metav1.ListOptions{})
	f.must(err)
	var running sync.WaitGroup
	running.Go(func() {
		batches := time.NewTicker(ciliumBatch)
		defer batches.Stop()
		for {
			select {
			case event, open := <-watch.ResultChan():
				if !open {
					return
				}
				if slice, ok := event.Object.(*discoveryv1.EndpointSlice); ok {
					r.see(slicereader.Event{Slice: slice, Deleted: event.Type == kubewatch.Deleted})
				}
			case <-batches.C:
				r.endBatch()
			}
		}
	})
	f.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return r
}

func (r *simpleReaders) see(event slicereader.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, reader := range r.alone {
		reader.Apply(event)
	}
	r.batch = append(r.batch, event)
	if delete(r.now, event.Slice.Name); event.Deleted {
		return
	}
	for i := range event.Slice.Endpoints {
		address := event.Slice.Endpoints[i].Addresses[0]
		for _, other := range r.now {
			for j := range other.Endpoints {
				if other.Endpoints[j].Addresses[0] == address {
					r.moved[address] = true
				}
			}
		}
	}
	r.now[event.Slice.Name] = event.Slice
}

func (r *simpleReaders) endBatch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inBatches.Apply(r.batch...)
	r.batch = nil
}

func (r *simpleReaders) countMoved() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.moved)
}

// check returns an error while a reader lacks a ready endpoint.
func (r *simpleReaders) check() error {
	r.endBatch()
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, reader := range r.alone {
		if missing := reader.Missing(); len(missing) > 0 {
			return fmt.Errorf("the reader %s lacks %d ready endpoints: %s", name, len(missing), strings.Join(missing, ", "))
		}
	}
	if missing := r.inBatches.Missing(); len(missing) > 0 {
		return fmt.Errorf("the reader in batches lacks %d ready endpoints: %s", len(missing), strings.Join(missing, ", "))
	}
	return nil
}

// A rolling update with a surge, a scale-down by nine tenths and a change of the ports lose no
// ready endpoint for readers that look at each slice alone. With compaction they may lack it for as
// long as the second write of the taker takes.
func TestSimpleReaders_LoseNothing(t *testing.T) {
	for _, c := range []struct {
		compaction slicesvc.Compaction
		// most is the number of slices in the end.
		most int
	}{
		{slicesvc.CompactionOff, 6},
		{slicesvc.CompactionIdle, 1},
	} {
		t.Run(string(c.compaction), func(t *testing.T) {
			t.Parallel()
			f := newTracedFixture(t, testkit.Cluster(t).RESTConfig(), tracing.Tracer{}, func(cfg *slicesvc.Config) {
				cfg.Compaction, cfg.MaxEndpointsPerSlice = c.compaction, 10
			})
			node := f.node("a", "zone-a")
			readers := f.startSimpleReaders()
			f.service()
			const pods, surge = 40, 10
			name := func(generation, i int) string { return fmt.Sprintf("web-%d-%d", generation, i) }
			add := func(generation, i int) {
				f.pod(name(generation, i), node, []string{fmt.Sprintf("10.%d.0.%d", generation+1, i+1)})
			}
			for i := range pods {
				add(0, i)
			}
			f.expectEndpoints(pods)
			for i := 0; i < pods; i += surge {
				for j := i; j < i+surge; j++ {
					add(1, j)
				}
				f.expectEndpoints(pods + surge)
				for j := i; j < i+surge; j++ {
					f.remove(name(0, (j*7)%pods)) // as a ReplicaSet, which chooses at random
				}
				f.expectEndpoints(pods)
			}
			settled := func(when string) {
				t.Helper()
				testkit.Eventually(t, testTimeout, readers.check)
				if moved := readers.countMoved(); c.compaction == slicesvc.CompactionOff && moved > 0 {
					t.Errorf("%s: %d endpoints moved", when, moved)
				}
			}
			settled("after the rolling update")
			for i := range pods {
				if i%10 != 0 {
					f.remove(name(1, i))
				}
			}
			f.expectEndpoints(pods / 10)
			settled("after the scale-down")
			testkit.Eventually(t, testTimeout, func() error {
				if got := len(f.slices()); got > c.most {
					return fmt.Errorf("%d slices are left, want at most %d", got, c.most)
				}
				return nil
			})
			f.updateService(func(service *corev1.Service) { service.Spec.Ports[0].TargetPort = intstr.FromInt32(9090) })
			testkit.Eventually(t, testTimeout, func() error {
				for _, slice := range f.slices() {
					if *slice.Ports[0].Port != 9090 {
						return fmt.Errorf("slice %s has port %d", slice.Name, *slice.Ports[0].Port)
					}
				}
				return nil
			})
			settled("after the change of ports")
			testkit.Eventually(t, testTimeout, func() error {
				for _, slice := range f.slices() {
					if _, marked := slice.Annotations["trivet.dev/took-endpoints"]; marked {
						return fmt.Errorf("slice %s is still to be written once more", slice.Name)
					}
				}
				return nil
			})
			settled("in the end")
			if c.compaction == slicesvc.CompactionIdle && readers.countMoved() == 0 {
				t.Error("no endpoint moved, so compaction is not tested")
			}
		})
	}
}

// expectEndpoints waits until the slices have that many endpoints.
func (f *fixture) expectEndpoints(want int) {
	f.t.Helper()
	testkit.Eventually(f.t, testTimeout, func() error {
		got := 0
		for _, slice := range f.slices() {
			got += len(slice.Endpoints)
		}
		if got != want {
			return fmt.Errorf("the slices have %d endpoints, want %d", got, want)
		}
		return nil
	})
}

// remove deletes a Pod at once.
func (f *fixture) remove(name string) {
	f.t.Helper()
	var now int64
	f.must(f.clients.CoreV1().Pods(f.namespace).Delete(f.ctx(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
}
