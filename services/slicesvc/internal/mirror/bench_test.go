package mirror_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/pack"
)

// BenchmarkFlip resolves and plans an Endpoints object one of whose addresses changed its
// readiness.
func BenchmarkFlip(b *testing.B) {
	for _, count := range []int{20, 1000} {
		b.Run(fmt.Sprintf("addresses=%d", count), func(b *testing.B) {
			texts := addresses(count)
			states := []*corev1.Endpoints{endpointsOf(subset([]string{"http:80"}, texts...))}
			texts[count/2] = "!" + texts[count/2]
			states = append(states, endpointsOf(subset([]string{"http:80"}, texts...)))
			store := newCluster()
			store.sync(b, states[0], standard())
			existing := store.list()
			b.ReportAllocs()
			turn := 0
			for b.Loop() {
				turn++
				plan := pack.Make(input(states[turn%2], standard(), existing))
				if len(plan.Changes) != 1 {
					b.Fatalf("writes %v, want one", verbs(plan))
				}
				existing[0] = plan.Changes[0].Slice
			}
		})
	}
}

// BenchmarkUnchanged resolves and plans an Endpoints object whose slices are as they should be.
func BenchmarkUnchanged(b *testing.B) {
	for _, count := range []int{20, 1000} {
		b.Run(fmt.Sprintf("addresses=%d", count), func(b *testing.B) {
			endpoints := endpointsOf(subset([]string{"http:80"}, addresses(count)...))
			store := newCluster()
			store.sync(b, endpoints, standard())
			existing := store.list()
			b.ReportAllocs()
			for b.Loop() {
				if plan := pack.Make(input(endpoints, standard(), existing)); !plan.Empty() {
					b.Fatalf("writes %v, want none", verbs(plan))
				}
			}
		})
	}
}
