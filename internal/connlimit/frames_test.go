package connlimit

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// bytesConn is a connection from which a test reads.
type bytesConn struct {
	net.Conn
	io.Reader
	closed bool
}

func (b *bytesConn) Read(p []byte) (int, error) { return b.Reader.Read(p) }

func (b *bytesConn) Close() error {
	b.closed = true
	return nil
}

// readAll reads what write writes, in pieces of step bytes.
func readAll(t *testing.T, step int, write func(*http2.Framer) error) (*bytesConn, error) {
	t.Helper()
	var sent bytes.Buffer
	sent.WriteString(http2.ClientPreface)
	if err := write(http2.NewFramer(&sent, nil)); err != nil {
		t.Fatal(err)
	}
	raw := &bytesConn{Reader: &sent}
	watched := &watchedConn{Conn: raw, limiter: newLimiter(t, Config{}), received: headers{skip: prefaceBytes}, closed: make(chan struct{})}
	for {
		if _, err := watched.Read(make([]byte, step)); err != nil {
			return raw, err
		}
	}
}

func TestWatchedConn_EndsFloodsOfControlFrames(t *testing.T) {
	ones := func(n int, write func(*http2.Framer) error) func(*http2.Framer) error {
		return func(f *http2.Framer) error {
			for range n {
				if err := write(f); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		write func(*http2.Framer) error
		flood bool
	}{
		"resets": {func(f *http2.Framer) error { return f.WriteRSTStream(1, http2.ErrCodeCancel) }, true},
		"pings":  {func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) }, true},
		"settings": {func(f *http2.Framer) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		}, true},
		"continuations": {func(f *http2.Framer) error { return f.WriteContinuation(1, false, []byte("abc")) }, true},
		"priorities":    {func(f *http2.Framer) error { return f.WritePriority(1, http2.PriorityParam{}) }, true},
		"empty data":    {func(f *http2.Framer) error { return f.WriteData(1, false, nil) }, true},
		"unknown":       {func(f *http2.Framer) error { return f.WriteRawFrame(0x77, 0, 1, []byte("abc")) }, true},

		"data":             {func(f *http2.Framer) error { return f.WriteData(1, false, []byte(strings.Repeat("\x03", 40))) }, false},
		"ends of streams":  {func(f *http2.Framer) error { return f.WriteData(1, true, nil) }, false},
		"answers to pings": {func(f *http2.Framer) error { return f.WritePing(true, [8]byte{}) }, false},
		"settings acks":    {func(f *http2.Framer) error { return f.WriteSettingsAck() }, false},
		"windows":          {func(f *http2.Framer) error { return f.WriteWindowUpdate(0, 1000) }, false},
		"headers": {func(f *http2.Framer) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("abc"), EndHeaders: true})
		}, false},
	} {
		for _, step := range []int{1, 7, 4096} {
			raw, err := readAll(t, step, ones(3*controlBurst, c.write))
			if flood := errors.Is(err, errControlFrames); flood != c.flood || raw.closed != c.flood || !flood && !errors.Is(err, io.EOF) {
				t.Errorf("%s, %d bytes at a time: %v, closed: %t; want a flood: %t", name, step, err, raw.closed, c.flood)
			}
		}
		burst := controlBurst
		if name == "continuations" {
			burst /= continuationCost
		}
		if _, err := readAll(t, 4096, ones(burst, c.write)); !errors.Is(err, io.EOF) {
			t.Errorf("%s: a burst of %d ends with %v", name, burst, err)
		}
	}
}

// A gateway that forwards a caller with many groups sends headers that do not fit one frame.
func TestWatchedConn_ContinuationsOfWholeFramesAreNoFlood(t *testing.T) {
	_, err := readAll(t, 4096, func(f *http2.Framer) error {
		for range 20 {
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, wholeFrame)}); err != nil {
				return err
			}
			if err := f.WriteContinuation(1, false, make([]byte, wholeFrame)); err != nil {
				return err
			}
			if err := f.WriteContinuation(1, true, []byte("abc")); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(err, io.EOF) {
		t.Errorf("20 calls with two continuations each end with %v", err)
	}
}

// A client that measures the delay of its connection pings once for each frame of data. Pings
// without data are a flood.
func TestWatchedConn_APingForEachFrameOfDataIsFree(t *testing.T) {
	ping := frames(t, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) })
	data := frames(t, func(f *http2.Framer) error { return f.WriteData(1, false, []byte("12345")) })
	answer := frames(t, func(f *http2.Framer) error { return f.WritePing(true, [8]byte{}) })
	for name, c := range map[string]struct {
		sent  []byte
		flood bool
	}{
		"data":               {sent: data},
		"much data at once":  {sent: slices.Concat(data, data, data)},
		"only answers":       {sent: answer, flood: true},
		"tiny frames":        {sent: frames(t, func(f *http2.Framer) error { return f.WriteData(1, false, []byte("1")) }), flood: true},
		"an end of a stream": {sent: frames(t, func(f *http2.Framer) error { return f.WriteData(1, true, nil) }), flood: true},
	} {
		for _, step := range []int{1, 5, 4096} {
			w := &watchedConn{Conn: discardConn{}}
			flood := false
			for range 3 * controlBurst {
				for piece := range slices.Chunk(c.sent, step) {
					if _, err := w.Write(piece); err != nil {
						t.Fatal(err)
					}
				}
				_, ok := w.count(ping)
				flood = flood || !ok
			}
			if flood != c.flood {
				t.Errorf("%s, %d bytes at a time: a flood: %t, want %t", name, step, flood, c.flood)
			}
		}
	}
	w := &watchedConn{Conn: discardConn{}}
	if _, err := w.Write(bytes.Repeat(data, 100*mostFreePings)); err != nil {
		t.Fatal(err)
	}
	pings := 0
	for ok := true; ok; pings++ {
		_, ok = w.count(ping)
	}
	if most := mostFreePings + controlBurst + 10; pings > most {
		t.Errorf("%d pings pass after much data, want %d at most", pings, most)
	}
}

// frames returns the bytes that write writes.
func frames(t *testing.T, write func(*http2.Framer) error) []byte {
	t.Helper()
	var sent bytes.Buffer
	if err := write(http2.NewFramer(&sent, nil)); err != nil {
		t.Fatal(err)
	}
	return sent.Bytes()
}

type discardConn struct{ net.Conn }

func (discardConn) Write(p []byte) (int, error) { return len(p), nil }

// A gRPC client without settings of its own may call as fast as it gets answers, and watch a stream
// with many messages per second.
func TestCredentials_AGRPCClientIsNoFlood(t *testing.T) {
	server := grpc.NewServer(grpc.Creds(newLimiter(t, Config{}).Credentials(insecure.NewCredentials())))
	status := health.NewServer()
	healthpb.RegisterHealthServer(server, status)
	listener := &countingListener{}
	var err error
	if listener.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		<-served
	}()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	watch, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * controlBurst {
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		status.SetServingStatus("", healthpb.HealthCheckResponse_ServingStatus(1+i%2))
		if _, err := watch.Recv(); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if n := listener.accepted.Load(); n != 1 {
		t.Errorf("the client needed %d connections, want 1", n)
	}
}

type countingListener struct {
	net.Listener
	accepted atomic.Int32
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return conn, err
}

func TestWatchedConn_AdmitsTheRate(t *testing.T) {
	w, now := &watchedConn{}, time.Now()
	if !w.admit(controlBurst, now) || w.admit(1, now) {
		t.Errorf("a burst of %d frames is not the limit", controlBurst)
	}
	w = &watchedConn{}
	for range 10_000 {
		now = now.Add(time.Second / controlRate)
		if !w.admit(1, now) {
			t.Fatal("frames at the rate are refused")
		}
	}
}

func BenchmarkWatchedConn_Read(b *testing.B) {
	var frame bytes.Buffer
	if err := http2.NewFramer(&frame, nil).WriteData(1, false, make([]byte, 40)); err != nil {
		b.Fatal(err)
	}
	w := &watchedConn{}
	for b.Loop() {
		if _, ok := w.count(frame.Bytes()); !ok {
			b.Fatal("refused")
		}
	}
}
