package pack_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// BenchmarkPlan plans a whole Service one of whose Pods changed its readiness: it resolves all
// Pods, compares all slices and writes one.
func BenchmarkPlan(b *testing.B) {
	for _, count := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("endpoints=%d", count), func(b *testing.B) {
			service, pods := slicetest.Service("web"), slicetest.Pods(0, count)
			in := input(service, pods)
			in.Slices = apply(b, nil, pack.Make(in).Changes)
			slicetest.Unready(pods[count/2].Pod)
			b.ReportAllocs()
			for b.Loop() {
				in.Endpoints = desired.Resolve(service, pods)
				if plan := pack.Make(in); len(plan.Changes) != 1 {
					b.Fatalf("plan is %v, want one change", reasons(plan))
				}
			}
		})
	}
}

// BenchmarkPlan_Cold makes the slices of a Service that has none.
func BenchmarkPlan_Cold(b *testing.B) {
	for _, count := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("endpoints=%d", count), func(b *testing.B) {
			service := slicetest.Service("web", func(service *corev1.Service) { service.Labels = map[string]string{"team": "a"} })
			pods := slicetest.Pods(0, count)
			in := input(service, pods)
			b.ReportAllocs()
			for b.Loop() {
				in.Endpoints = desired.Resolve(service, pods)
				if plan := pack.Make(in); len(plan.Changes) != count/100 {
					b.Fatalf("%d changes, want %d", len(plan.Changes), count/100)
				}
			}
		})
	}
}

// BenchmarkCompact merges 50 slices with a tenth of the endpoints that they may have.
func BenchmarkCompact(b *testing.B) {
	service := slicetest.Service("web")
	in := input(service, slicetest.Pods(0, 500))
	for i := range 50 {
		in.Slices = append(in.Slices, slicetest.Slice(service, fmt.Sprintf("web-%02d", i), slicetest.Pods(10*i, 10*i+10)))
	}
	b.ReportAllocs()
	for b.Loop() {
		if plan := pack.Compact(in, 100); len(plan.Changes) != 50 {
			b.Fatalf("%d writes, want 50", len(plan.Changes))
		}
	}
}

// BenchmarkFlip is one readiness flip through the domain packages: the Pod is put into the index,
// the part of its Service that it touches is planned, and the written slice, which must be one, is
// recorded.
func BenchmarkFlip(b *testing.B) {
	for _, pods := range []int{20, 100, 5000, 100_000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			x := index.New(slicetest.ManagedBy, 1)
			x.PutNode("node-a", hints.Node{Zone: "zone-a"})
			x.PutService(slicetest.Service("web"))
			var ready, unready []*corev1.Pod
			for i := range pods {
				pod := slicetest.Pod(fmt.Sprintf("web-%d", i), fmt.Sprintf("10.%d.%d.%d", i/62_500, i/250%250, i%250+1))
				ready, unready = append(ready, pod), append(unready, pod.DeepCopy())
				slicetest.Unready(unready[i])
				x.PutPod(pod)
			}
			placement := newPlacement(b, x)
			states := [][]*corev1.Pod{unready, ready}
			b.ReportAllocs()
			turn := 0
			for b.Loop() {
				effect := x.PutPod(states[turn/pods%2][turn%pods])
				turn++
				changed := map[string]struct{}{effect.Pods[0].Name: {}}
				snapshot, _ := x.SnapshotOfPods(effect.Services[0], changed)
				plan := placement.Plan(benchInput(snapshot), changed)
				if len(plan.Changes) != 1 || !placement.Put(plan.Changes[0].Slice) {
					b.Fatalf("%d writes for one flip, want 1", len(plan.Changes))
				}
				x.PutWrittenSlice(plan.Changes[0].Slice)
			}
		})
	}
}

// newPlacement makes the slices of the Service and its Placement.
func newPlacement(b *testing.B, x *index.Index) *pack.Placement {
	b.Helper()
	web := index.Key{Namespace: slicetest.Namespace, Name: "web"}
	snapshot, _ := x.Snapshot(web)
	for _, change := range pack.Make(benchInput(snapshot)).Changes {
		x.PutSlice(change.Slice)
	}
	snapshot, _ = x.Snapshot(web)
	placement, ok := pack.NewPlacement(snapshot)
	if !ok {
		b.Fatal("a plan left slices that cannot be placed")
	}
	return placement
}

func benchInput(snapshot index.Snapshot) pack.Input {
	return pack.Input{
		Snapshot:  snapshot,
		Owner:     pack.ServiceOwner(snapshot.Service),
		Endpoints: desired.ResolveEach(snapshot.Service, snapshot.Candidates()),
		Limit:     100,
		ManagedBy: slicetest.ManagedBy,
	}
}
