package resources

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
	trivetv1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

var errDone = errors.New("the newest state")

const (
	slowRate = 100 // bytes per second
	// maxReaderMemory bounds the memory for one reader that is slow: the windows of its connection,
	// buffers and goroutines.
	maxReaderMemory = 512 << 10
	// maxSlowdown bounds the latency of a reader beside slow ones.
	maxSlowdown = time.Second
)

// slowConn reads slowRate bytes a second.
type slowConn struct{ net.Conn }

func (c slowConn) Read(p []byte) (int, error) {
	time.Sleep(time.Second) // the rate
	return c.Conn.Read(p[:min(len(p), slowRate)])
}

func dialSlowly(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	return slowConn{conn}, err
}

// leaseWatch is a reader that notes when it was told of each lease.
type leaseWatch struct {
	mu   sync.Mutex // guards seen
	seen map[string]time.Time
}

func (w *world) watchLeases(ctx context.Context, address string) *leaseWatch {
	w.Helper()
	stream, err := leasev1.NewLeaseServiceClient(w.dial(address)).WatchLeases(ctx, &leasev1.WatchLeasesRequest{})
	if err != nil {
		w.Fatal(err)
	}
	l := &leaseWatch{seen: map[string]time.Time{}}
	synced := make(chan struct{})
	go func() {
		first := sync.OnceFunc(func() { close(synced) })
		for {
			event, err := stream.Recv()
			if err != nil {
				return
			}
			if event.GetType() == trivetv1.EventType_EVENT_TYPE_BOOKMARK {
				first()
				continue
			}
			l.mu.Lock()
			if name := event.GetLease().GetHolder().GetName(); l.seen[name].IsZero() {
				l.seen[name] = time.Now()
			}
			l.mu.Unlock()
		}
	}()
	select {
	case <-synced:
	case <-time.After(startTimeout):
		w.Fatalf("the watch of %s sent no bookmark in %v", address, startTimeout)
	}
	return l
}

// tell registers holders one by one, and returns how long each watch took to tell them.
func (r *registering) tell(prefix string, number int, watches ...*leaseWatch) (all []time.Duration) {
	r.Helper()
	for i := range number {
		name := fmt.Sprintf("%s-%d", prefix, i)
		begin := time.Now()
		r.register(name)
		for _, l := range watches {
			r.await(time.Minute, func(context.Context) error {
				l.mu.Lock()
				defer l.mu.Unlock()
				at, seen := l.seen[name]
				if !seen {
					return fmt.Errorf("the watch has not told of %s", name)
				}
				all = append(all, at.Sub(begin))
				return nil
			})
		}
	}
	return all
}

func TestSlowReaders(t *testing.T) {
	w := newWorld(t, false)
	lease := w.newServer(leases, 0)
	gateway := w.newServer(gateways, 0, "--http-listen=")
	readers, leasesBefore, changes := 5, 500, 5
	if *long {
		readers, leasesBefore, changes = 100, 5000, 100
	}
	for _, s := range w.servers {
		s.start()
	}
	for _, s := range w.servers {
		s.awaitReady()
	}
	w.awaitLeading(lease)
	w.await(startTimeout, func(context.Context) error {
		return (&churn{what: "gateway", server: gateway, open: watchLeases}).run(1)
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := w.newRegistering(ctx, lease.GRPC)
	var names []string
	for i := range leasesBefore {
		names = append(names, fmt.Sprintf("before-%d", i))
	}
	r.register(names...)
	direct, merged := w.watchLeases(ctx, lease.GRPC), w.watchLeases(ctx, gateway.GRPC)
	alone := r.tell("alone", changes, direct, merged)
	before := map[*replica]usage{lease: lease.usage(), gateway: gateway.usage()}
	tb := newTable(t, fmt.Sprintf("%d watches that read nothing, and %d that read %d bytes a second, on leasesvc and on the gateway", readers, readers, slowRate))

	silent := map[*replica][]grpc.ServerStreamingClient[leasev1.WatchLeasesResponse]{}
	for _, s := range w.servers {
		for range readers {
			stream, err := leasev1.NewLeaseServiceClient(w.dial(s.GRPC)).WatchLeases(ctx, &leasev1.WatchLeasesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			silent[s] = append(silent[s], stream)
			slow := w.dial(s.GRPC, grpc.WithContextDialer(dialSlowly))
			go func() {
				_, _ = leasev1.NewLeaseServiceClient(slow).WatchLeases(ctx, &leasev1.WatchLeasesRequest{}, grpc.WaitForReady(true))
			}()
		}
	}
	beside := r.tell("beside", changes, direct, merged)
	tb.add("latency of another watch without them, p50 and p99", "%s, %s", duration(percentile(alone, 0.5)), duration(percentile(alone, 0.99)))
	tb.add("latency of another watch beside them, p50", "%s", duration(percentile(beside, 0.5)))
	bound := percentile(alone, 0.99) + maxSlowdown
	if !*long {
		bound = time.Minute // the short form says nothing about time
	}
	atMost(tb, "latency of another watch beside them, p99", percentile(beside, 0.99), bound, duration)
	for _, s := range w.servers {
		u := s.usage()
		atMost(tb, s.Service+": memory for them", u.heap+u.other-before[s].heap-before[s].other, int64(2*readers*maxReaderMemory), mebibytes)
	}
	// Each reader that goes on is told of the last lease, or that it has to begin anew.
	last := fmt.Sprintf("beside-%d", changes-1)
	var reading sync.WaitGroup
	var mu sync.Mutex
	current, ended := 0, map[string]int{}
	for _, streams := range silent {
		for _, stream := range streams {
			reading.Go(func() {
				for {
					event, err := stream.Recv()
					mu.Lock()
					if err != nil {
						ended[err.Error()]++
					} else if event.GetLease().GetHolder().GetName() == last {
						current++
						err = errDone
					}
					mu.Unlock()
					if err != nil {
						return
					}
				}
			})
		}
	}
	reading.Wait()
	tb.add("silent watches that have the newest state once they read, and those that are ended", "%d, %v", current, ended)
	if current+len(ended) == 0 || current < 2*readers && len(ended) == 0 {
		t.Errorf("%d of %d silent watches got the newest state, and %v ended", current, 2*readers, ended)
	}
}
