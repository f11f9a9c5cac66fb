package writeback_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/monotonic"
	"github.com/trivet-dev/trivet/services/leasesvc/internal/writeback"
)

// One operation is a tick of 100 ms for holders that all beat. The cost follows the number of due
// slots.
func BenchmarkStart(b *testing.B) {
	for _, holders := range []int{130_000, 1_000_000} {
		for name, policy := range map[string]uint8{"relaxed": relaxed, "on-change": onChange} {
			b.Run(fmt.Sprintf("%d/%s", holders, name), func(b *testing.B) {
				schedule, lastBeat := steadySchedule(holders, policy)
				now, writes := at(400), 0
				b.ReportAllocs()
				for b.Loop() {
					now = now.Add(tick)
					made := schedule.Start(now, lastBeat(now), holders)
					for _, w := range made {
						schedule.Succeeded(now, w)
					}
					writes += len(made)
				}
				b.ReportMetric(float64(writes)/float64(b.N), "writes/op")
				if writes > 0 {
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(writes), "ns/write")
				}
			})
		}
	}
}

// After a takeover or an outage all slots may be due at once.
func BenchmarkStart_AllDue(b *testing.B) {
	for _, holders := range []int{130_000, 1_000_000} {
		b.Run(fmt.Sprint(holders), func(b *testing.B) {
			schedule := writeback.NewSchedule(policies)
			for i := range holders {
				schedule.Open(0, uint32(i), writeback.SlotOptions{Policy: relaxed, Phase: uint16(i)})
			}
			now := at(1)
			lastBeat := func(uint32) monotonic.Instant { return now }
			b.ReportAllocs()
			for b.Loop() {
				for _, w := range schedule.Start(now, lastBeat, 32) {
					schedule.Failed(now, w, 0)
				}
				now = now.Add(tick)
			}
		})
	}
}

// Reports the memory of a slot, with its place in the wheel.
func BenchmarkSchedule_Memory(b *testing.B) {
	const holders = 1_000_000
	for b.Loop() {
		before := heap()
		schedule, _ := steadySchedule(holders, relaxed)
		b.ReportMetric(float64(heap()-before)/holders, "B/slot")
		runtime.KeepAlive(schedule)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// steadySchedule returns a schedule that has run for 400 s, so that its writes are spread.
func steadySchedule(holders int, policy uint8) (*writeback.Schedule, func(now monotonic.Instant) writeback.LastBeat) {
	schedule := writeback.NewSchedule(policies)
	for i := range holders {
		schedule.Open(0, uint32(i), writeback.SlotOptions{Policy: policy, Phase: writeback.Phase(nodeName(i))})
	}
	lastBeat := func(now monotonic.Instant) writeback.LastBeat {
		return func(i uint32) monotonic.Instant {
			return max(0, now-(now+monotonic.Instant(i)*7919)%monotonic.Instant(interval))
		}
	}
	for now := monotonic.Instant(0); now <= at(400); now = now.Add(tick) {
		for _, w := range schedule.Start(now, lastBeat(now), holders) {
			schedule.Succeeded(now, w)
		}
	}
	return schedule, lastBeat
}
