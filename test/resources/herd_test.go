package resources

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/test/lab/childprocess"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

const (
	// herdInterval and herdGrace are leasesvc's defaults for nodes.
	herdInterval = 5 * time.Second
	herdGrace    = 20 * time.Second
	// shortHerd is the number of agents of the short form.
	shortHerd = 100
	// secureShare divides the agents of the long form with TLS. All agents compute their handshakes
	// on the machine of the test, beside leasesvc, a kube-apiserver and etcd.
	secureShare = 4
	// maxHerdMemory bounds the memory of leasesvc during a herd, for each agent. A connection with
	// TLS needs a fifth of it at rest.
	maxHerdMemory = 256 << 10
)

// connections are the client's ends of the open connections of all agents.
type connections struct {
	mu   sync.Mutex // guards open
	open map[*countedConn]bool
}

// dialFrom connects from an address of its own for each agent, as agents on different nodes do.
func (c *connections) dialFrom(number int) func(ctx context.Context, address string) (net.Conn, error) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: addressOfAgent(number)}}
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		counted := &countedConn{Conn: conn, all: c, agent: number}
		c.open[counted] = true
		return counted, nil
	}
}

type countedConn struct {
	net.Conn
	all   *connections
	agent int
}

func (c *countedConn) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// closeAll closes all connections, and returns when it closed the last one of each agent. The first
// agents connect again before the last connection is closed.
func (c *connections) closeAll() map[int]time.Time {
	c.mu.Lock()
	open := c.open
	c.open = map[*countedConn]bool{}
	c.mu.Unlock()
	closed := map[int]time.Time{}
	for conn := range open {
		_ = conn.Conn.Close()
		closed[conn.agent] = time.Now()
	}
	return closed
}

func addressOfAgent(number int) net.IP { return net.IPv4(127, 1, byte(number>>8), byte(number)) }

// herd is one leasesvc with many agents.
type herd struct {
	*world
	leasesvc *replica
	agents   renewing
	closeAll func() map[int]time.Time
}

func herdNode(number int) string { return fmt.Sprintf("herd-%05d", number) }

// newHerd starts a leasesvc, and agents of package agent or light ones.
func newHerd(t *testing.T, size int, secure, light bool) *herd {
	t.Helper()
	h := &herd{world: newWorld(t, *long)}
	if *long {
		h.createNodes(size)
	}
	var args []string
	var own []*tls.Config
	var admin *tls.Config
	if secure {
		args, own, admin = h.secure(size)
	}
	h.leasesvc = h.newSecureServer(leases, 0, admin, append(args, "--loops=*,node-health")...)
	h.leasesvc.start()
	h.leasesvc.awaitReady()
	begin := time.Now()
	if light {
		all := h.beatLightly(size, h.leasesvc.GRPC, own)
		h.agents, h.closeAll = all, all.closeAll
	} else {
		h.beatAs(size, own)
	}
	h.renewedSince(h.agents, begin, startTimeout)
	return h
}

// beatAs starts agents of package agent.
func (h *herd) beatAs(size int, own []*tls.Config) {
	holders := make([]string, size)
	for number := range holders {
		holders[number] = herdNode(number)
	}
	all := &connections{open: map[*countedConn]bool{}}
	h.closeAll = all.closeAll
	h.agents = h.beat(nodeHolders(holders), []string{h.leasesvc.GRPC}, func(number int) func(string) (*grpc.ClientConn, error) {
		transport, from := insecure.NewCredentials(), all.dialFrom(number)
		if own != nil {
			transport = credentials.NewTLS(own[number])
		}
		return func(target string) (*grpc.ClientConn, error) {
			return grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(transport), grpc.WithContextDialer(from),
				grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10))
		}
	})
}

// createNodes creates ready Nodes, as kubelets register them.
func (h *herd) createNodes(size int) {
	h.Helper()
	group, ctx := errgroup.WithContext(context.Background())
	group.SetLimit(16)
	for number := range size {
		group.Go(func() error {
			now := metav1.Now()
			_, err := h.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: herdNode(number)},
				Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
					Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test", LastHeartbeatTime: now, LastTransitionTime: now,
				}}},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		h.Fatal(err)
	}
}

// secure returns the flags of a server with TLS, the configuration of each agent, and a client of
// the administrative address.
func (h *herd) secure(size int) (args []string, all []*tls.Config, admin *tls.Config) {
	h.Helper()
	i := h.newIssuer(leases)
	all = make([]*tls.Config, size)
	for number := range all {
		own, err := i.client(certs.NodeLeaf(herdNode(number)))
		if err != nil {
			h.Fatal(err)
		}
		all[number] = own
	}
	return i.args(), all, i.administrator()
}

// disturb does something to all connections, and measures from since until each agent is
// renewed again: after its own connection was lost, if do knows when that was.
func (h *herd) disturb(tb *table, what string, do func() (since time.Time, lost map[int]time.Time)) {
	h.Helper()
	lostBefore, answers := h.agents.counters()
	client, err := childprocess.UsageOf(os.Getpid())
	if err != nil {
		h.Fatal(err)
	}
	server := h.leasesvc.kernel()
	since, lost := do()
	if lost == nil {
		server = h.leasesvc.kernel() // of a new process
	}
	if err := h.leasesvc.Process().ResetPeak(); err != nil {
		h.Fatal(err)
	}
	var peak atomic.Int64
	watching, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for watching.Err() == nil {
			if text, err := h.leasesvc.get(watching, "/metrics"); err == nil {
				peak.Store(max(peak.Load(), int64(sumOf(text, "trivet_connection_handshakes"))))
			}
			testkit.Pause(watching, 500*time.Millisecond)
		}
	})
	renewed, missing := renewals(h.agents, since, lost, startTimeout)
	took := durations(renewed, since)
	stop()
	done.Wait()
	after := h.leasesvc.kernel()
	clientAfter, err := childprocess.UsageOf(os.Getpid())
	if err != nil {
		h.Fatal(err)
	}
	bound := herdInterval
	if !*long {
		bound = startTimeout // the short form says nothing about time
	}
	size := time.Duration(h.agents.size())
	if lost != nil {
		last := slices.MaxFunc(slices.Collect(maps.Values(lost)), time.Time.Compare)
		tb.add(what+": time in which the connections were lost", "%s", duration(last.Sub(since)))
		var longest time.Duration
		for i, at := range renewed {
			longest = max(longest, at.Sub(lost[i]))
		}
		tb.add(what+": longest time from an agent's loss of its connection to its renewal", "%s", duration(longest))
	}
	tb.add(what+": half of the agents renewed after", "%s", duration(percentile(took, 0.5)))
	tb.add(what+": 99 % of the agents renewed after", "%s", duration(percentile(took, 0.99)))
	atMost(tb, what+": all agents renewed after", percentile(took, 1), bound, duration)
	if missing != nil {
		h.Error(missing)
		tb.add(what+": agents that were not renewed within "+duration(startTimeout), "%d", h.agents.size()-len(took))
	}
	tb.add(what+": processor time of leasesvc meanwhile, for each agent", "%s, %s in all", duration((after.CPU-server.CPU)/size), duration(after.CPU-server.CPU))
	tb.add(what+": processor time of all agents meanwhile, on the same machine", "%s", duration(clientAfter.CPU-client.CPU))
	atMost(tb, what+": largest memory of leasesvc", after.Peak, h.memoryBound(), mebibytes)
	tb.add(what+": TLS handshakes at a time, at most seen", "%d", peak.Load())
	lostAfter, answersAfter := h.agents.counters()
	tb.add(what+": streams lost by agents, a reconnection that is refused included", "%d", lostAfter-lostBefore)
	tb.add(what+": answers with an interval and no directive, and with one", "%d, %d", answersAfter["none"]-answers["none"], directed(answersAfter)-directed(answers))
	m := h.leasesvc.metrics()
	tb.add(what+": connections and streams that leasesvc refused", "%.0f, %.0f", m["trivet_connections_refused_total"], m["trivet_lease_rejected_streams_total"])
	if *long {
		atMost(tb, what+": Nodes that were marked", len(h.marked()), 0, count)
	}
}

// memoryBound is that of all agents, beside what the process needs without them.
func (h *herd) memoryBound() int64 {
	const empty = 512 << 20 // with the race detector
	return empty + int64(h.agents.size())*maxHerdMemory
}

func directed(answers map[string]uint64) (sum uint64) {
	for directive, n := range answers {
		if directive != "none" {
			sum += n
		}
	}
	return sum
}

func testHerd(t *testing.T, secure, light bool) {
	size, name := shortHerd, "agents reconnect at once, without TLS"
	if *long {
		size = *agents
	}
	if secure {
		name = "agents reconnect at once, with TLS"
	}
	if light {
		name = "light " + name
	} else if secure {
		size = max(size/secureShare, shortHerd)
	}
	h := newHerd(t, size, secure, light)
	tb := newTable(t, fmt.Sprintf("%d %s", size, name))
	tb.add("interval of the beats, and grace period", "%v, %v", herdInterval, herdGrace)
	tb.add("processors of the machine", "%d", runtime.NumCPU())
	h.disturb(tb, "all connections closed", func() (time.Time, map[int]time.Time) {
		since := time.Now()
		closed := h.closeAll()
		if len(closed) < size {
			t.Errorf("connections of %d agents were closed, want %d", len(closed), size)
		}
		return since, closed
	})
	if !*long {
		return
	}
	h.disturb(tb, "the only replica restarted", func() (time.Time, map[int]time.Time) {
		h.leasesvc.stop()
		h.leasesvc.start()
		h.await(startTimeout, func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", h.leasesvc.GRPC)
			return errors.Join(err, closed(conn))
		})
		return time.Now(), nil
	})
}

func closed(conn net.Conn) error {
	if conn == nil {
		return nil
	}
	return conn.Close()
}

func TestHerd_Plaintext(t *testing.T) { testHerd(t, false, false) }

func TestHerd_TLS(t *testing.T) {
	full(t)
	testHerd(t, true, false)
}

func TestHerd_LightPlaintext(t *testing.T) {
	full(t)
	testHerd(t, false, true)
}

func TestHerd_LightTLS(t *testing.T) { testHerd(t, true, true) }
