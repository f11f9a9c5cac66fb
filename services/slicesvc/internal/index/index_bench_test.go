package index_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/index"
	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicetest"
)

// BenchmarkPutPod_Flip is one readiness flip among 1,000 Services of 20 pods in
// one namespace, where upstream scans all Services.
func BenchmarkPutPod_Flip(b *testing.B) {
	x := index.New(slicetest.ManagedBy, shards)
	for i := range 1000 {
		app := fmt.Sprintf("app-%d", i)
		x.PutService(slicetest.Service(app, selector("app", app, "tier", "same")))
		for j := range 20 {
			x.PutPod(slicetest.Pod(fmt.Sprintf("%s-%d", app, j), "10.1.0.1", labels("app", app, "tier", "same", "hash", app)))
		}
	}
	var flip [2]*corev1.Pod
	for i := range flip {
		flip[i] = slicetest.Pod("app-500-7", "10.1.0.1", labels("app", "app-500", "tier", "same", "hash", "app-500"))
	}
	slicetest.Unready(flip[1])
	b.ReportAllocs()
	turn := 0
	for b.Loop() {
		turn++
		if effect := x.PutPod(flip[turn%2]); len(effect.Services) != 1 {
			b.Fatalf("concerns %v, want one Service", effect.Services)
		}
	}
}
