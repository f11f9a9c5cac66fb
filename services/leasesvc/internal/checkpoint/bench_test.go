package checkpoint_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/checkpoint"
)

// A shard with a thousand expired holders: planning without a change, encoding and decoding.
func BenchmarkTracker(b *testing.B) {
	var expired []checkpoint.Entry
	for i := range 1000 {
		expired = append(expired, silent(fmt.Sprintf("ip-10-0-%d-%d.compute.internal", i/256, i%256), time.Hour+time.Duration(i)*time.Second))
	}
	empty := checkpoint.NewTracker(rules(), true)
	plan := empty.Plan(0, expired)
	stored := empty.Applied(0, plan)
	b.Run("no change", func(b *testing.B) {
		for b.Loop() {
			if stored.Plan(0, expired).Action != checkpoint.None {
				b.Fatal("planned a change")
			}
		}
	})
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			if empty.Plan(0, expired).Action != checkpoint.Put {
				b.Fatal("planned no write")
			}
		}
		b.ReportMetric(float64(len(plan.Value))/float64(len(expired)), "bytes/holder")
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			if _, err := checkpoint.Decode(plan.Value); err != nil {
				b.Fatal(err)
			}
		}
	})
}
