package allocation_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

const (
	manyServices = 20_000
	allPorts     = 2768
	portRange    = "30000-32767"
)

// large returns a cluster of 20,000 Services, each with its IPAddress, in which every node port is
// taken.
func large() objects {
	s := objects{
		CIDRs:   []allocation.CIDR{{Name: "kubernetes", Prefixes: []string{"10.0.0.0/12"}, Ready: true}},
		Bitmaps: []allocation.Bitmap{bitmap(allocation.NodePorts, portRange, sequence(0, allPorts)...)},
	}
	address := netip.MustParseAddr("10.0.0.1")
	for i := range manyServices {
		name := fmt.Sprintf("service-%05d", i)
		user := service(name, address.String())
		user.UID = fmt.Sprintf("5f0c7a52-8d8f-4a4e-9a0e-%012d", i)
		if i < allPorts {
			user.Type, user.Ports = "NodePort", []allocation.Port{{Number: int32(30000 + i), Protocol: "TCP"}}
		}
		s.Services = append(s.Services, user)
		kept := object(address.String(), name)
		kept.UID = fmt.Sprintf("77e1a4c3-10c6-4b3b-8f69-%012d", i)
		s.IPAddresses = append(s.IPAddresses, kept)
		address = address.Next()
	}
	return s
}

func bothSettings() allocation.Settings {
	return allocation.Settings{
		Stores: []allocation.Store{allocation.IPAddresses, allocation.NodePorts},
		Ranges: map[allocation.Store]string{allocation.NodePorts: portRange},
	}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// BenchmarkFull measures the first comparison of a term. held-MiB is the memory of the index beside
// the objects.
func BenchmarkFull(b *testing.B) {
	all := large()
	b.ReportAllocs()
	var held float64
	for b.Loop() {
		b.StopTimer()
		before := heap()
		b.StartTimer()
		x := load(bothSettings(), all)
		delta := x.Compare(start)
		b.StopTimer()
		if len(delta.Changed) != 1 { // the range is full
			b.Fatalf("%d findings, want 1", len(delta.Changed))
		}
		held = float64(int64(heap())-int64(before)) / (1 << 20)
		runtime.KeepAlive(x)
		b.StartTimer()
	}
	b.ReportMetric(held, "held-MiB")
}

// BenchmarkFull_EverythingWrong has every Service without its IPAddress and every port leaked.
func BenchmarkFull_EverythingWrong(b *testing.B) {
	all := large()
	all.IPAddresses = nil
	for i := range all.Services {
		all.Services[i].Ports = nil
	}
	b.ReportAllocs()
	var held float64
	for b.Loop() {
		b.StopTimer()
		before := heap()
		b.StartTimer()
		x := load(bothSettings(), all)
		x.Compare(start)
		x.Compare(start.Add(time.Second))
		b.StopTimer()
		if found := len(x.Findings()); found != manyServices+allPorts+1 {
			b.Fatalf("%d findings", found)
		}
		held = float64(int64(heap())-int64(before)) / (1 << 20)
		runtime.KeepAlive(x)
		b.StartTimer()
	}
	b.ReportMetric(held, "held-MiB")
}

// BenchmarkOneServiceChanged moves a Service between two addresses and ports, in a cluster that has
// leaks, too.
func BenchmarkOneServiceChanged(b *testing.B) {
	x := load(bothSettings(), large())
	now := runPasses(x, start)
	one, other := service("mover", "10.9.0.1"), service("mover", "10.9.0.2")
	one.Ports, other.Ports = []allocation.Port{{Number: 30100}}, []allocation.Port{{Number: 30200}}
	b.ReportAllocs()
	for b.Loop() {
		one, other = other, one
		x.PutService(one)
		if delta := x.Compare(now); len(delta.Changed) == 0 {
			b.Fatal("nothing was found")
		}
	}
}

// BenchmarkOneObjectDeleted deletes an IPAddress in use and puts it back.
func BenchmarkOneObjectDeleted(b *testing.B) {
	all := large()
	x := load(bothSettings(), all)
	now := runPasses(x, start)
	b.ReportAllocs()
	for b.Loop() {
		x.DeleteIPAddress(all.IPAddresses[777].Name)
		x.Compare(now)
		x.PutIPAddress(all.IPAddresses[777])
		x.Compare(now)
	}
}

// BenchmarkOnePortTaken measures the cost of each allocation of a node port.
func BenchmarkOnePortTaken(b *testing.B) {
	x := load(bothSettings(), large())
	now := runPasses(x, start)
	full := bitmap(allocation.NodePorts, portRange, sequence(0, allPorts)...)
	less := bitmap(allocation.NodePorts, portRange, sequence(1, allPorts)...)
	b.ReportAllocs()
	for b.Loop() {
		full, less = less, full
		x.PutBitmap(full)
		x.Compare(now)
	}
}

// BenchmarkCountUsage measures what a live list costs before steps are checked.
func BenchmarkCountUsage(b *testing.B) {
	services := large().Services
	b.ReportAllocs()
	for b.Loop() {
		allocation.CountUsage(services)
	}
}

// The memory is bounded here, because a benchmark cannot fail.
func TestIndex_MemoryOfALargeClusterIsBounded(t *testing.T) {
	all := large()
	before := heap()
	x := load(bothSettings(), all)
	x.Compare(start)
	if held := int64(heap()) - int64(before); held > 40<<20 {
		t.Errorf("the index holds %d MiB beside the objects, want at most 40", held>>20)
	}
	runtime.KeepAlive(x)
	runtime.KeepAlive(all)
}
