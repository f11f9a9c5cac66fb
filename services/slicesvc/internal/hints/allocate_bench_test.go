package hints_test

import (
	"fmt"
	"testing"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/hints"
)

// BenchmarkAllocate is the hints of one family, all in place already.
func BenchmarkAllocate(b *testing.B) {
	for _, count := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("endpoints=%d", count), func(b *testing.B) {
			shares := sharesOf(map[string]int64{"a": 3, "b": 4, "c": 5})
			endpoints := endpointsIn(repeated("a", count)...)
			zones, _ := hints.Allocate(shares, endpoints)
			for i := range endpoints {
				endpoints[i].Hint = zones[i]
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, verdict := hints.Allocate(shares, endpoints); !verdict.Hinted {
					b.Fatal(verdict.Problem)
				}
			}
		})
	}
}
