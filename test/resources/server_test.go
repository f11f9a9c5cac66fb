package resources

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/test/internal/child"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

// stopTimeout is the stop timeout of a replica and a margin for a busy machine.
const stopTimeout = 60 * time.Second

// server is one replica of a service. A new process takes the place of a stopped one.
type server struct {
	*world
	service, name, grpc, admin string
	args, env                  []string
	log                        string
	process                    *child.Process
	// client and scheme reach the administrative address.
	client *http.Client
	scheme string
}

// newServer returns a server whose process does not run yet.
func (w *world) newServer(service string, number int, args ...string) *server {
	w.Helper()
	s := &server{
		world: w, service: service, name: fmt.Sprintf("%s-%d", service, number), grpc: testkit.FreeAddress(w), admin: testkit.FreeAddress(w),
		client: http.DefaultClient, scheme: "http",
	}
	s.log = filepath.Join(w.dir, s.name+".log")
	ca, cert, key := w.cluster.EtcdFiles()
	s.args = append([]string{
		"--cluster=" + clusterName, "--etcd-endpoints=" + strings.Join(w.cluster.EtcdEndpoints(), ","),
		"--etcd-ca-file=" + ca, "--etcd-cert-file=" + cert, "--etcd-key-file=" + key,
		"--listen=" + s.grpc, "--advertise-address=" + s.grpc, "--admin-listen=" + s.admin, "--profiling", "--kubeconfig=" + w.kubeconfig,
	}, args...)
	w.servers = append(w.servers, s)
	return s
}

// insecure makes the server work without TLS.
func insecureArgs(args ...string) []string {
	return append([]string{"--insecure", "--unlimited-loopback"}, args...)
}

func (s *server) start() {
	s.Helper()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.Fatal(err)
	}
	defer log.Close() // The child process has its own descriptor.
	self, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	command := exec.Command(self, s.args...)
	command.Env = append(append(os.Environ(), serviceVariable+"="+s.service, "GODEBUG=gctrace=1"), s.env...)
	command.Stdout, command.Stderr = log, log
	if s.process, err = child.Start(command); err != nil {
		s.Fatal(err)
	}
}

// stop sends SIGTERM and fails the test unless the process exits with code 0.
func (s *server) stop() {
	s.Helper()
	if err := s.process.Stop(stopTimeout); err != nil {
		s.Errorf("%s: %v", s.name, err)
	}
}

func (s *server) kill() {
	if s.process != nil {
		s.process.Kill()
	}
}

// awaitReady waits until the server says that it is ready.
func (s *server) awaitReady() {
	s.Helper()
	s.await(startTimeout, func(ctx context.Context) error {
		select {
		case <-s.process.Exited():
			return fmt.Errorf("%s ended: %v", s.name, s.process.State())
		default:
		}
		_, err := s.get(ctx, "/readyz")
		return err
	})
}

// get returns the body of a path of the administrative address.
func (s *server) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.scheme+"://"+s.admin+path, nil)
	if err != nil {
		return "", err
	}
	reply, err := s.client.Do(request)
	if err != nil {
		return "", err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s of %s: %s: %.500s", path, s.name, reply.Status, body)
	}
	return string(body), err
}

// metrics returns the sum of each metric over its series.
func (s *server) metrics() map[string]float64 {
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
	child.Usage
	goroutines int
	// heap is what the process keeps after a garbage collection, and other what the Go runtime has
	// beside it, stacks included.
	heap, other int64
}

func (s *server) usage() usage {
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

func (s *server) kernel() child.Usage {
	s.Helper()
	u, err := s.process.Usage()
	if err != nil {
		s.Fatal(err)
	}
	return u
}

var errNoTrace = errors.New("the log has no trace of a garbage collection")

// collections returns the part of the process's time that garbage collections took since its start,
// in percent, and their number.
func (s *server) collections() (percent, number int, err error) {
	text, err := os.ReadFile(s.log)
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
func (s *server) lastLines() string {
	text, err := os.ReadFile(s.log)
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
