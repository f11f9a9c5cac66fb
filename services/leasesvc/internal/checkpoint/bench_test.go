package checkpoint_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
)

// What a look costs in a shard with a thousand dead of whom nothing is new, and what it costs to write them.
func BenchmarkLedger(b *testing.B) {
	var dead []checkpoint.Entry
	for i := range 1000 {
		dead = append(dead, silent(fmt.Sprintf("ip-10-0-%d-%d.compute.internal", i/256, i%256), time.Hour+time.Duration(i)*time.Second))
	}
	empty := checkpoint.NewTracker(rules(), true)
	plan := empty.Plan(0, dead)
	stored := empty.Applied(0, plan)
	b.Run("nothing new", func(b *testing.B) {
		for b.Loop() {
			if stored.Plan(0, dead).Action != checkpoint.None {
				b.Fatal("something was new")
			}
		}
	})
	b.Run("store", func(b *testing.B) {
		for b.Loop() {
			if empty.Plan(0, dead).Action != checkpoint.Put {
				b.Fatal("nothing was stored")
			}
		}
		b.ReportMetric(float64(len(plan.Value))/float64(len(dead)), "bytes/holder")
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := checkpoint.Decode(plan.Value); err != nil {
				b.Fatal(err)
			}
		}
	})
}
