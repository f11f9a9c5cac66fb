package leasesvc

import (
	"fmt"
	"runtime"
	"testing"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// maxHolderBytes is what a holder may cost beyond its connection.
const maxHolderBytes = 300

// holderBytes is the heap that each of n holders costs, on streams of 1,000: session, index, deadlines, what is to be written,
// and the stream's handle.
func holderBytes(t testing.TB, n int) float64 {
	t.Helper()
	s := newSessions(t, func(c *Config) { c.MaxSessions, c.MaxIntroductions = n, maxRate })
	streams := make([]*connection, n/1000)
	for i := range streams {
		streams[i] = s.open(t)
	}
	before := liveHeap()
	for i, c := range streams {
		holders := crowd(1000*i, 1000)
		for _, h := range holders {
			h.BootId = fmt.Sprint("7c1e6f0e-89d4-4c1b-b0aa-", i)
		}
		say(t, c, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Holders: holders})
		c.answer.begin(1)
	}
	bytes := float64(liveHeap()-before) / float64(n)
	if got := s.keeper.Load().Counts().Alive; got != n {
		t.Fatalf("%d of %d holders are alive", got, n)
	}
	runtime.KeepAlive(streams)
	return bytes
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // what the first left to finalizers
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestMemory_HolderCostsLittleBesideItsConnection(t *testing.T) {
	bytes := holderBytes(t, 200_000)
	t.Logf("%.0f bytes for each of 200,000 holders", bytes)
	if bytes > maxHolderBytes {
		t.Errorf("%.0f bytes for each of 200,000 holders, want %d at most", bytes, maxHolderBytes)
	}
}

func BenchmarkMemory_AMillionHolders(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(holderBytes(b, 1_000_000), "bytes/holder")
	}
}
