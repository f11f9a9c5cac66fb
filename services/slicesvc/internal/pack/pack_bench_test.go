package pack_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/desired"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// BenchmarkPlan is a full recompute of one Service whose one pod changed its
// readiness: resolve all pods, compare all slices, write one.
func BenchmarkPlan(b *testing.B) {
	for _, count := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("endpoints=%d", count), func(b *testing.B) {
			service, pods := slicetest.Service("web"), slicetest.Pods(0, count)
			in := input(service, pods)
			var err error
			if in.Slices, err = slicetest.CarryOut(nil, pack.Make(in)); err != nil {
				b.Fatal(err)
			}
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
			b.ReportAllocs()
			for b.Loop() {
				if plan := pack.Make(input(service, pods)); len(plan.Changes) != count/100 {
					b.Fatalf("%d changes, want %d", len(plan.Changes), count/100)
				}
			}
		})
	}
}

// BenchmarkCompact merges 50 slices with a tenth of what they may hold.
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
