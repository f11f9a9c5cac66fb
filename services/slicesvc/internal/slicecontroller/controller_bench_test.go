package slicecontroller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// instantCluster stores every write of an IPv4 slice and shows it at once. It refuses IPv6 slices.
type instantCluster struct {
	engine  *slicecontroller.Controller
	version int
	wrote   chan struct{}
}

func (m *instantCluster) Write(_ context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	if change.Slice.AddressType == discoveryv1.AddressTypeIPv6 {
		return nil, errDenied
	}
	m.version++
	stored := *change.Slice
	stored.ResourceVersion = fmt.Sprint(m.version)
	m.engine.PutSlice(&stored)
	m.wrote <- struct{}{}
	return &stored, nil
}

// BenchmarkFlip is one readiness flip from the event of the Pod to the write of the slice: index,
// queue, plan, and the records of the write. It has no decoding, encoding or network. Each flip
// must write one slice. A Service with a refused slice is planned as a whole each time.
func BenchmarkFlip(b *testing.B) {
	for _, size := range []struct {
		services, pods int
		refused        bool
	}{{50, 100, false}, {1, 1000, false}, {1, 1000, true}, {1, 5000, false}, {1000, 20, false}, {1, 100_000, false}} {
		b.Run(fmt.Sprintf("services=%d/pods=%d/refused=%t", size.services, size.pods, size.refused), func(b *testing.B) {
			m := &instantCluster{wrote: make(chan struct{}, 10000)}
			controller, err := slicecontroller.New(slicecontroller.Config{
				ManagedBy:            slicetest.ManagedBy,
				Shards:               1,
				MaxEndpointsPerSlice: 100,
				Workers:              1,
			}, slicecontroller.Deps{
				Writer: m,
				Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				b.Fatal(err)
			}
			m.engine = controller
			pods := fill(controller, size.services, size.pods)
			if size.refused {
				controller.PutService(slicetest.Service("svc-0", dualStack))
			}
			ctx, cancel := context.WithCancel(b.Context())
			returned := make(chan error, 2)
			go func() { returned <- controller.Run(ctx) }()
			go func() { returned <- controller.RunShard(ctx, 0, func(error) {}) }()
			for range size.services * ((size.pods + 99) / 100) {
				<-m.wrote
			}
			unready := make([]*corev1.Pod, len(pods))
			for i := range pods {
				unready[i] = pods[i].DeepCopy()
				slicetest.Unready(unready[i])
			}
			b.ReportAllocs()
			before, turn := m.version, 0
			for b.Loop() {
				states := [][]*corev1.Pod{unready, pods}
				controller.PutPod(states[turn/len(pods)%2][turn%len(pods)])
				turn++
				<-m.wrote
			}
			if writes := m.version - before; writes != turn {
				b.Errorf("%d writes for %d flips", writes, turn)
			}
			cancel()
			if err := errors.Join(<-returned, <-returned); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func address(i int) string { return fmt.Sprintf("10.%d.%d.%d", i/62_500, i/250%250, i%250+1) }

// BenchmarkMemory is the memory of the Controller for an endpoint, without the Pod.
func BenchmarkMemory(b *testing.B) {
	for _, size := range []struct{ services, pods int }{{50, 100}, {1000, 20}, {1, 100_000}} {
		b.Run(fmt.Sprintf("services=%d/pods=%d", size.services, size.pods), func(b *testing.B) {
			for b.Loop() {
				var pods, all runtime.MemStats
				m := &instantCluster{wrote: make(chan struct{}, 10000)}
				controller, err := slicecontroller.New(slicecontroller.Config{
					ManagedBy:            slicetest.ManagedBy,
					Shards:               1,
					MaxEndpointsPerSlice: 100,
					Workers:              1,
				}, slicecontroller.Deps{
					Writer: m,
					Logger: slog.New(slog.DiscardHandler),
				})
				if err != nil {
					b.Fatal(err)
				}
				m.engine = controller
				fill(controller, size.services, size.pods)
				runtime.GC()
				runtime.ReadMemStats(&pods)
				ctx, cancel := context.WithCancel(b.Context())
				returned := make(chan error, 2)
				go func() { returned <- controller.Run(ctx) }()
				go func() { returned <- controller.RunShard(ctx, 0, func(error) {}) }()
				for range size.services * ((size.pods + 99) / 100) {
					<-m.wrote
				}
				for _, key := range controller.KeysAfter("", slicecontroller.Key{}, size.services) {
					if _, err := controller.Reconcile(ctx, key, ""); err != nil {
						b.Fatal(err)
					}
				}
				runtime.GC()
				runtime.ReadMemStats(&all)
				b.ReportMetric(float64(all.HeapAlloc-pods.HeapAlloc)/float64(size.services*size.pods), "B/endpoint")
				cancel()
				if err := errors.Join(<-returned, <-returned); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func fill(controller *slicecontroller.Controller, services, perService int) []*corev1.Pod {
	controller.PutNode(node("node-a", "zone-a"))
	var pods []*corev1.Pod
	for i := range services {
		name := fmt.Sprintf("svc-%d", i)
		controller.PutService(slicetest.Service(name))
		for j := range perService {
			pod := slicetest.Pod(fmt.Sprintf("%s-%d", name, j), address(j), func(pod *corev1.Pod) {
				pod.Labels = map[string]string{"app": name, "tier": "same"}
			})
			controller.PutPod(pod)
			pods = append(pods, pod)
		}
	}
	return pods
}
