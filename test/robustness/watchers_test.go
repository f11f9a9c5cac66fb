package robustness

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/certs"
	"github.com/trivet-dev/trivet/test/lab/testkit"
	"github.com/trivet-dev/trivet/test/robustness/internal/schedule"
)

const (
	slowWatchers = 20 // of each kind
	// slowMemory is what a replica may need for them, in MiB: their windows, and what a churn of
	// endpoints changes meanwhile.
	slowMemory = 96
)

// pace is how fast a slow client reads.
type pace int

const (
	readsAll pace = iota
	readsBytes
	readsNothing
)

// slowConn is a connection whose client reads as slowly as pace says.
type slowConn struct {
	net.Conn
	pace   *atomic.Int64
	closed chan struct{}
	once   sync.Once
}

// Read waits for data for a moment at a time, so that a new pace counts at once.
func (c *slowConn) Read(into []byte) (int, error) {
	for {
		allowed := into
		if now := pace(c.pace.Load()); now != readsAll {
			select {
			case <-c.closed:
				return 0, net.ErrClosed
			case <-time.After(time.Second):
			}
			if now == readsNothing {
				continue
			}
			allowed = into[:1]
		}
		if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return 0, err
		}
		n, err := c.Conn.Read(allowed)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		return n, err
	}
}

func (c *slowConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// slowWatcher is a watch whose client is slow once the first event has come.
type slowWatcher struct {
	conn   *grpc.ClientConn
	stream receiver
	pace   atomic.Int64
	local  atomic.Pointer[string]
}

// watchSlowly opens watches whose clients then read no byte, one byte per second, or everything but
// no message. The replica drops those that do not answer its pings. Its memory is bounded.
func (w *world) watchSlowly(target *slot, f schedule.Fault) error {
	ctx, cancel := context.WithTimeout(context.Background(), f.Duration+6*requestTimeout)
	defer cancel()
	process := target.ProcessName()
	before, err := target.residentMemory()
	if err != nil {
		return err
	}
	var watchers []*slowWatcher
	defer func() {
		for _, each := range watchers {
			_ = each.conn.Close()
		}
	}()
	for n := range 3 * slowWatchers {
		each, err := w.newSlowWatcher(ctx, target, fmt.Sprintf("reader-%d", n))
		if err != nil {
			return w.unlessDisturbed(target, process, err)
		}
		each.pace.Store(int64(pace(n % 3))) // A third reads all bytes and takes no message.
		watchers = append(watchers, each)
	}
	peak := before
	for end := time.Now().Add(f.Duration); time.Now().Before(end); testkit.Pause(ctx, time.Second) {
		memory, err := target.residentMemory()
		if err == nil {
			peak = max(peak, memory)
		}
	}
	connected := 0.0
	clients, err := establishedTo(target.GRPC)
	if err != nil {
		return err
	}
	for n, each := range watchers {
		if pace(n%3) != readsAll && clients[each.address()] {
			connected++
		}
	}
	if !w.disturbed(target, process) {
		w.level(target, fmt.Sprintf("watches of clients that read at most one byte per second, still open after %v", f.Duration), connected, 0, 0)
		w.level(target, "resident memory beside slow watches, in MiB", peak, 0, before+slowMemory)
	}
	return nil
}

// newSlowWatcher opens a watch for a caller and reads its first event. Its client has no keepalive,
// so it ends nothing by itself.
func (w *world) newSlowWatcher(ctx context.Context, target *slot, caller string) (*slowWatcher, error) {
	files, err := w.pki.Files(caller, certs.ClientLeaf(caller))
	if err != nil {
		return nil, err
	}
	client, err := files.Client(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	watcher := &slowWatcher{}
	watcher.conn, err = grpc.NewClient(target.GRPC, grpc.WithTransportCredentials(client.Credentials()), grpc.WithAuthority(target.Service),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			var dialer net.Dialer
			conn, err := dialer.DialContext(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			local, err := hexAddress(conn.LocalAddr().String())
			if err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			watcher.local.Store(&local)
			return &slowConn{Conn: conn, pace: &watcher.pace, closed: make(chan struct{})}, nil
		}))
	if err != nil {
		return nil, err
	}
	if watcher.stream, err = watch(ctx, watcher.conn, target.Service); err == nil {
		err = watcher.stream.receive()
	}
	if err != nil {
		_ = watcher.conn.Close()
		return nil, fmt.Errorf("a watch of %s: %w", target.Name, err)
	}
	return watcher, nil
}

// address is that of the client.
func (s *slowWatcher) address() string {
	if address := s.local.Load(); address != nil {
		return *address
	}
	return ""
}

// established is the state of a TCP connection in /proc/net/tcp that neither side has closed.
const established = "01"

// establishedTo returns the addresses of the clients whose connections a server on 127.0.0.1 has
// open. A client that does not read learns of the end only after what it was sent before.
func establishedTo(server string) (map[string]bool, error) {
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return nil, err
	}
	local, err := hexAddress(server)
	if err != nil {
		return nil, err
	}
	clients := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 3 && fields[1] == local && fields[3] == established {
			clients[fields[2]] = true
		}
	}
	return clients, nil
}

// hexAddress returns an address of 127.0.0.1 as /proc/net/tcp has it.
func hexAddress(address string) (string, error) {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return "", err
	}
	ip := parsed.Addr().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), parsed.Port()), nil
}
