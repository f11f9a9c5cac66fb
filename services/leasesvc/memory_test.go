package leasesvc

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

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
		c.request.Sequence, c.request.Holders = 1, holders
		say(t, c, &c.request)
		c.shed()
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

// After a reconnection the stream knows its holders by the strings that their sessions keep, and not by those that came again.
func TestMemory_NameOfAHolderIsKeptOnce(t *testing.T) {
	s := newSessions(t, nil)
	say(t, s.open(t), &leasev1.StreamHeartbeatsRequest{Sequence: 1, Holders: crowd(0, 1)})
	again := s.open(t)
	say(t, again, &leasev1.StreamHeartbeatsRequest{Sequence: 1, Holders: crowd(0, 1)})
	key := s.server.catalog.mustKey("node-0")
	lease, found, err := s.keeper.Load().Get(t.Context(), key, s.server.catalog.shardOfKey(key))
	if err != nil || !found {
		t.Fatalf("found %t, error %v", found, err)
	}
	if unsafe.StringData(again.handles[0].name) != unsafe.StringData(lease.Holder.Key.Name) {
		t.Error("the stream keeps a name of its own")
	}
}
