package session_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/session"
)

func filledTable(n int) (*session.Table, []session.Ref) {
	table := session.NewTable([]session.Class{node}, n)
	refs := make([]session.Ref, n)
	for i := range refs {
		refs[i], _ = register(table, 0, holder(fmt.Sprintf("node-%d", i), "boot"), 1)
	}
	return table, refs
}

func BenchmarkBeat_130kHolders(b *testing.B) {
	table, refs := filledTable(130_000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		table.Beat(at(time.Duration(i)), at(time.Duration(i)), refs[i%len(refs)], uint64(i))
	}
}

// One operation is a tick for 130,000 holders that all beat every 10 s.
func BenchmarkAdvance_130kHoldersBeating(b *testing.B) {
	table, refs := filledTable(130_000)
	now, turn := time.Duration(0), 0
	b.ReportAllocs()
	for b.Loop() {
		now += session.Granularity
		for range len(refs) / int(10*time.Second/session.Granularity) {
			turn = (turn + 1) % len(refs)
			table.Beat(at(now), at(now), refs[turn], uint64(now))
		}
		table.Advance(at(now), len(refs), func(session.Transition) {})
	}
}

// One operation expires 100,000 holders that fell silent together.
func BenchmarkAdvance_100kExpireAtOnce(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		table, _ := filledTable(100_000)
		table.Advance(at(node.Suspect), 100_000, func(session.Transition) {})
		expired := 0
		b.StartTimer()
		table.Advance(at(node.TTL), 100_000, func(session.Transition) { expired++ })
		if expired != 100_000 {
			b.Fatalf("%d expired", expired)
		}
	}
}
