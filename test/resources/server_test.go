package resources

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/server"
)

// stopTimeout is the stop timeout of a replica and a margin for a busy machine.
const stopTimeout = 60 * time.Second

// replica is one server. A new process takes the place of a stopped one.
type replica struct {
	*world
	*server.Server
}

// newServer returns a replica without TLS whose process does not run yet.
func (w *world) newServer(service string, number int, args ...string) *replica {
	w.Helper()
	return w.newSecureServer(service, number, nil, append([]string{"--unlimited-loopback"}, args...)...)
}

// newSecureServer is newServer. The flags of TLS are in args, if the admin server's client has TLS.
func (w *world) newSecureServer(service string, number int, client *tls.Config, args ...string) *replica {
	w.Helper()
	s, err := server.New(server.Config{
		Service: service, Number: number, Log: filepath.Join(w.dir, fmt.Sprintf("%s-%d.log", service, number)), ControlPlane: w.cluster,
		Kubeconfig: w.kubeconfig, Client: client, Env: []string{"GODEBUG=gctrace=1"}, Grace: stopTimeout,
		Args: append([]string{"--cluster=" + clusterName}, args...),
	})
	if err != nil {
		w.Fatal(err)
	}
	r := &replica{world: w, Server: s}
	w.servers = append(w.servers, r)
	return r
}

func (s *replica) start() {
	s.Helper()
	if err := s.Start(); err != nil {
		s.Fatal(err)
	}
}

// stop sends SIGTERM and fails the test unless the process exits with code 0.
func (s *replica) stop() {
	s.Helper()
	if err := s.Stop(); err != nil {
		s.Errorf("%s: %v", s.Name, err)
	}
}

// awaitReady waits until the server says that it is ready.
func (s *replica) awaitReady() {
	s.Helper()
	s.await(startTimeout, s.AwaitReady)
}

// get returns the body of a path of the administrative address.
func (s *replica) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return s.Get(ctx, path)
}

// metrics returns the sum of each metric over its series.
func (s *replica) metrics() map[string]float64 {
	s.Helper()
	text, err := s.get(context.Background(), "/metrics")
	if err != nil {
		s.Fatal(err)
	}
	return sumsOf(text)
}

func sumsOf(text string) map[string]float64 {
	sums := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			continue
		}
		name, _, _ := strings.Cut(line[:at], "{")
		sums[name] += value
	}
	return sums
}

func sumOf(text, name string) float64 { return sumsOf(text)[name] }

// valueOf returns the value of one series.
func valueOf(text, series string) float64 {
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, series+" "); is {
			number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err == nil {
				return number
			}
		}
	}
	return 0
}

// usage is what the kernel counts, and the goroutines.
type usage struct {
	childprocess.Usage
	goroutines int
	// heap is what the process keeps after a garbage collection, and other what the Go runtime has
	// beside it, stacks included.
	heap, other int64
}

func (s *replica) usage() usage {
	s.Helper()
	// A profile of the heap may begin with a garbage collection.
	for range 2 {
		if _, err := s.get(context.Background(), "/debug/pprof/heap?gc=1"); err != nil {
			s.Fatal(err)
		}
	}
	m := s.metrics()
	u := usage{
		Usage: s.kernel(), goroutines: int(m["go_goroutines"]), heap: int64(m["go_memstats_heap_alloc_bytes"]),
		other: int64(m["go_memstats_stack_inuse_bytes"] + m["go_memstats_mspan_inuse_bytes"] + m["go_memstats_mcache_inuse_bytes"] +
			m["go_memstats_buck_hash_sys_bytes"] + m["go_memstats_gc_sys_bytes"] + m["go_memstats_other_sys_bytes"]),
	}
	return u
}

func (s *replica) kernel() childprocess.Usage {
	s.Helper()
	u, err := s.Process().Usage()
	if err != nil {
		s.Fatal(err)
	}
	return u
}

var errNoTrace = errors.New("the log has no trace of a garbage collection")

// collections returns the part of the process's time that garbage collections took since its start,
// in percent, and their number.
func (s *replica) collections() (percent, number int, err error) {
	text, err := os.ReadFile(s.LogFile())
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		var n, p int
		var at float64
		if _, err := fmt.Sscanf(line, "gc %d @%fs %d%%:", &n, &at, &p); err == nil {
			number, percent = n, p
		}
	}
	if number == 0 {
		return 0, 0, errNoTrace
	}
	return percent, number, nil
}

// lastLines returns the end of the log.
func (s *replica) lastLines() string {
	text, err := os.ReadFile(s.LogFile())
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "gc ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-25):], "")
}
