package pack_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// BenchmarkFlip is one readiness flip through the cores: the pod is put into the
// index, the part of its Service that it touches is planned, and what is written,
// which must be one slice, is taken down.
func BenchmarkFlip(b *testing.B) {
	for _, pods := range []int{20, 100, 5000, 100_000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			x := index.New(slicetest.ManagedBy, 1)
			x.PutNode("node-a", hints.Node{Zone: "zone-a"})
			service := slicetest.Service("web")
			x.PutService(service)
			var ready, unready []*corev1.Pod
			for i := range pods {
				pod := slicetest.Pod(fmt.Sprintf("web-%d", i), fmt.Sprintf("10.%d.%d.%d", i/62_500, i/250%250, i%250+1))
				ready, unready = append(ready, pod), append(unready, pod.DeepCopy())
				slicetest.Unready(unready[i])
				x.PutPod(pod)
			}
			in := pack.Input{
				Service:   service,
				Limit:     100,
				ManagedBy: slicetest.ManagedBy,
			}
			known := settled(b, x, in)
			states := [][]*corev1.Pod{unready, ready}
			b.ReportAllocs()
			turn := 0
			for b.Loop() {
				effect := x.PutPod(states[turn/pods%2][turn%pods])
				turn++
				name := effect.Pods[0].Name
				candidate, _ := x.Candidate(effect.Services[0], name)
				in.Endpoints = desired.Resolve(service, []desired.Candidate{candidate})
				plan := known.Plan(in, map[string]struct{}{name: {}})
				if len(plan.Changes) != 1 || !known.Wrote(plan.Changes[0].Slice) {
					b.Fatalf("%d writes for one flip, want 1", len(plan.Changes))
				}
				x.KeepSlice(plan.Changes[0].Slice)
			}
		})
	}
}

func settled(b *testing.B, x *index.Index, in pack.Input) *pack.Placement {
	b.Helper()
	observed, _ := x.Observed(index.Key{Namespace: slicetest.Namespace, Name: "web"})
	in.Endpoints = desired.ResolveEach(in.Service, observed.Candidates())
	var slices []*discoveryv1.EndpointSlice
	for _, change := range pack.Make(in).Changes {
		slices = append(slices, change.Slice)
		x.PutSlice(change.Slice)
	}
	known, ok := pack.NewPlacement(slices)
	if !ok {
		b.Fatal("not settled")
	}
	return known
}
