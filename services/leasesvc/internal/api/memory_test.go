package api

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"google.golang.org/protobuf/proto"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// maxHolderBytes is the most memory that a holder may use in addition to its connection.
const maxHolderBytes = 300

// holderBytes returns the heap bytes for each of n holders on streams of 1,000: session, index,
// deadlines, write slot and handle.
func holderBytes(t testing.TB, n int) float64 {
	t.Helper()
	f := newFixture(t, setup{maxSessions: n, maxRegistrations: unlimited})
	clients := make([]*client, n/1000)
	for i := range clients {
		clients[i] = f.open(t)
	}
	before := liveHeap()
	for i, c := range clients {
		registered := holders(1000*i, 1000)
		for _, h := range registered {
			h.BootId = fmt.Sprint("7c1e6f0e-89d4-4c1b-b0aa-", i)
		}
		c.request.Sequence, c.request.Registrations = 1, registrations(registered)
		c.send(&c.request)
		c.releaseMemory()
	}
	bytes := float64(liveHeap()-before) / float64(n)
	if got := f.sessions.Counts(); got.Total() != n { // the first may be silent for long
		t.Fatalf("%d holders have the sessions %+v", n, got)
	}
	runtime.KeepAlive(clients)
	return bytes
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // frees what the first pass left to finalizers
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestMemory_HolderIsSmallWithoutItsConnection(t *testing.T) {
	bytes := holderBytes(t, 200_000)
	t.Logf("%.0f bytes for each of 200,000 holders", bytes)
	if bytes > maxHolderBytes {
		t.Errorf("%.0f bytes for each of 200,000 holders, want %d at most", bytes, maxHolderBytes)
	}
}

func TestMemory_HandleHas32Bytes(t *testing.T) {
	if size := unsafe.Sizeof(handle{}); size > 32 {
		t.Errorf("a handle has %d bytes, want 32 at most", size)
	}
}

func BenchmarkMemory_AMillionHolders(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(holderBytes(b, 1_000_000), "bytes/holder")
	}
}

// After a reconnection the stream must refer to the name string of the session, not to that of the
// new registration.
func TestMemory_NameOfAHolderIsStoredOnce(t *testing.T) {
	f := newFixture(t, setup{})
	f.open(t).register(holders(0, 1)...)
	again := f.open(t)
	again.register(holders(0, 1)...)
	lease, found := f.lease("node-0")
	if !found {
		t.Fatal("the holder has no session")
	}
	if unsafe.StringData(again.handles[0].name) != unsafe.StringData(lease.Holder.Key.Name) {
		t.Error("the stream stores a copy of the name")
	}
}

// A message of a node needs at most sixteen times the memory of its limit, with its answer.
func TestHeartbeat_MemoryOfRefusedItemsIsBounded(t *testing.T) {
	const limit = 64 << 10
	f := newFixture(t, setup{maxMessages: unlimited})
	list := holders(0, 1000)
	message, err := proto.Marshal(unary(1, list))
	if err != nil || len(message) > limit {
		t.Fatalf("a message of %d bytes: %v", len(message), err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	request := &leasev1.HeartbeatRequest{}
	if err := proto.Unmarshal(message, request); err != nil {
		t.Fatal(err)
	}
	response, err := f.beat(t, node("thief"), request)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := proto.Marshal(response)
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	used := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d bytes for a message of %d and an answer of %d", used, len(message), len(answer))
	if used > 16*limit {
		t.Errorf("%d bytes were allocated, more than 16 times the limit", used)
	}
	for _, i := range []int{0, maxExplained, 999} {
		expectRefused(t, list[i].Name, response.Results[i].GetRejection())
	}
}
