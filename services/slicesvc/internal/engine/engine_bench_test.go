package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/engine"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// mirror is an apiserver without I/O: every write is stored and shown at once.
type mirror struct {
	engine  *engine.Engine
	version int
	wrote   chan struct{}
}

func (m *mirror) Write(_ context.Context, change pack.Change) (*discoveryv1.EndpointSlice, error) {
	m.version++
	stored := *change.Slice
	stored.ResourceVersion = fmt.Sprint(m.version)
	m.engine.PutSlice(&stored)
	m.wrote <- struct{}{}
	return &stored, nil
}

// BenchmarkFlip is one readiness flip from the pod's event to the slice's
// write: index, queue, full recompute of the Service, expectations. What is not
// in it: decoding, encoding and the network.
func BenchmarkFlip(b *testing.B) {
	for _, size := range []struct{ services, pods int }{{50, 100}, {1, 5000}, {1000, 20}} {
		b.Run(fmt.Sprintf("services=%d/pods=%d", size.services, size.pods), func(b *testing.B) {
			m := &mirror{wrote: make(chan struct{}, 10000)}
			e, err := engine.New(engine.Config{
				ManagedBy: slicetest.ManagedBy,
				Shards:    1,
				Limit:     100,
				Workers:   1,
			}, engine.Deps{
				Writer: m,
				Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				b.Fatal(err)
			}
			m.engine = e
			pods := fill(e, size.services, size.pods)
			ctx, cancel := context.WithCancel(b.Context())
			returned := make(chan error, 2)
			go func() { returned <- e.Run(ctx) }()
			go func() { returned <- e.Hold(ctx, 0, func(error) {}) }()
			for range size.services * ((size.pods + 99) / 100) {
				<-m.wrote
			}
			b.ReportAllocs()
			turn := 0
			for b.Loop() {
				pod := pods[turn%len(pods)].DeepCopy()
				if turn/len(pods)%2 == 0 {
					slicetest.Unready(pod)
				}
				turn++
				e.PutPod(pod)
				<-m.wrote
			}
			cancel()
			if err := errors.Join(<-returned, <-returned); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func fill(e *engine.Engine, services, perService int) []*corev1.Pod {
	e.PutNode(node("node-a", "zone-a"))
	var pods []*corev1.Pod
	for i := range services {
		name := fmt.Sprintf("svc-%d", i)
		e.PutService(slicetest.Service(name))
		for j := range perService {
			pod := slicetest.Pod(fmt.Sprintf("%s-%d", name, j), slicetest.Address(j), func(pod *corev1.Pod) {
				pod.Labels = map[string]string{"app": name, "tier": "same"}
			})
			e.PutPod(pod)
			pods = append(pods, pod)
		}
	}
	return pods
}
