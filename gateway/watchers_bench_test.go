package gateway_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/trivet-dev/trivet/internal/term"
	nodev1 "github.com/trivet-dev/trivet/proto/trivet/node/v1"
)

// BenchmarkWatchers measures what 100 readers of 1,000 Nodes over HTTP cost the process while they
// read everything, and once they only wait. The clients are in the process, with 4 KiB each.
func BenchmarkWatchers(b *testing.B) {
	leasesvc := newLeasesvc("l1")
	for i := range 1000 {
		leasesvc.put(fmt.Sprintf("node-%04d", i), "zone-a", nodev1.NodeHealth_HEALTH_READY)
	}
	_, l1 := leasesvc.start(b, "l1")
	service := startGateway(b, newDirectory(l1), longTimeout)
	first := readUntilBookmark(b, service.HTTPAddress()) // the streams to replicas are open
	defer first.Close()
	for b.Loop() {
		before := memory()
		started := time.Now()
		peak := newPeak()
		var conns []net.Conn
		var mu sync.Mutex
		var opening sync.WaitGroup
		for range 100 {
			opening.Go(func() {
				conn := readUntilBookmark(b, service.HTTPAddress())
				mu.Lock()
				defer mu.Unlock()
				conns = append(conns, conn)
			})
		}
		opening.Wait()
		b.ReportMetric(time.Since(started).Seconds(), "s-to-read")
		b.ReportMetric(float64(peak.stop()-before.inUse)/1e6, "MB-peak")
		after := memory()
		b.ReportMetric(float64(after.allocated-before.allocated)/1e6, "MB-allocated")
		b.ReportMetric(float64(after.inUse-before.inUse)/1e6, "MB-waiting")
		for _, conn := range conns {
			conn.Close()
		}
	}
}

type memoryUse struct{ inUse, allocated uint64 }

func memory() memoryUse {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return memoryUse{inUse: stats.HeapAlloc + stats.StackInuse, allocated: stats.TotalAlloc}
}

// peak samples the memory in use.
type peak struct {
	end  chan struct{}
	most chan uint64
}

func newPeak() peak {
	p := peak{end: make(chan struct{}), most: make(chan uint64)}
	go func() {
		var most uint64
		for {
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			most = max(most, stats.HeapInuse+stats.StackInuse)
			select {
			case <-p.end:
				p.most <- most
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return p
}

func (p peak) stop() uint64 {
	close(p.end)
	return <-p.most
}

// readUntilBookmark opens a watch of Nodes and reads its initial events.
func readUntilBookmark(b *testing.B, address string) net.Conn {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		b.Error(err)
		return nil
	}
	fmt.Fprintf(conn, "GET /v1/nodes:watch HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	reader := bufio.NewReaderSize(conn, 4096)
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			b.Error(err)
			return conn
		}
		if bytes.Contains(line, []byte(`"initialEventsEnd":true`)) {
			return conn
		}
	}
}

// BenchmarkStatus measures a line of the watch of the status of a cluster with three services of
// 128 shards.
func BenchmarkStatus(b *testing.B) {
	var members []term.Member
	for _, name := range []string{"leasesvc", "bootstrapsvc", "slicesvc"} {
		leaders := make([]string, 128)
		for i := range leaders {
			leaders[i] = fmt.Sprintf("%s-%d", name, i%3)
		}
		fake := newLeasesvc(leaders...)
		fake.name = name
		for replica := range 3 {
			_, member := fake.start(b, fmt.Sprintf("%s-%d", name, replica))
			members = append(members, member)
		}
	}
	service := startGateway(b, newDirectory(members...), longTimeout)
	conn, err := net.Dial("tcp", service.HTTPAddress())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/status:watch?interval=0.25s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	reader := bufio.NewReaderSize(conn, 1<<20)
	for b.Loop() {
		size := 0
		started := time.Now()
		for range 8 {
			line, err := reader.ReadBytes('\n')
			for ; err == nil && !bytes.Contains(line, []byte(`"result"`)); line, err = reader.ReadBytes('\n') {
				size += len(line)
			}
			if err != nil {
				b.Fatal(err)
			}
			size += len(line)
		}
		b.ReportMetric(float64(size)/time.Since(started).Seconds()/4/1e3, "kB/s-at-1s")
	}
}
