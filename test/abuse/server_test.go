package abuse

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/authn"
	"github.com/trivet-dev/trivet/internal/authz"
	"github.com/trivet-dev/trivet/internal/connlimit"
	"github.com/trivet-dev/trivet/internal/identity"
	"github.com/trivet-dev/trivet/internal/quota"
	"github.com/trivet-dev/trivet/internal/rpcserver"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

const serverName = "server"

// serve runs the server until its standard input ends. It prints its address.
func serve() error {
	var files identity.Files
	if err := settings(&files); err != nil {
		return err
	}
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.TLS = files
	quotas, err := quota.New(quota.Methods(), nil)
	if err != nil {
		return err
	}
	connections, err := connlimit.New(cfg.Connections, nil, "grpc")
	if err != nil {
		return err
	}
	server, err := rpcserver.New(cfg, rpcserver.Deps{
		Logger: slog.New(slog.DiscardHandler), Authenticator: authn.New(authn.Config{}), Authorizer: authz.New(nil),
		Quota: quotas, Connections: connections,
		Unvalidated: []string{leasev1.HeartbeatService_Heartbeat_FullMethodName, leasev1.HeartbeatService_StreamHeartbeats_FullMethodName},
	})
	if err != nil {
		return err
	}
	server.Register(func(r grpc.ServiceRegistrar) {
		leasev1.RegisterHeartbeatServiceServer(r, &answering{})
		leasev1.RegisterLeaseServiceServer(r, leasev1.UnimplementedLeaseServiceServer{})
	})
	listener, err := rpcserver.Listen(cfg)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel() // standard input ends with the test
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Println(heap())
		}
	}()
	return server.Serve(ctx, listener)
}

// heap returns the bytes of objects and of stacks. It does not stop the process.
func heap() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() + samples[1].Value.Uint64()
}

// answering answers each message of a stream.
type answering struct {
	leasev1.UnimplementedHeartbeatServiceServer
}

func (*answering) StreamHeartbeats(stream grpc.BidiStreamingServer[leasev1.StreamHeartbeatsRequest, leasev1.StreamHeartbeatsResponse]) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&leasev1.StreamHeartbeatsResponse{Sequence: request.GetSequence()}); err != nil {
			return err
		}
	}
}

// serverProcess is the server of a test.
type serverProcess struct {
	address string
	pid     int
	ask     io.Writer
	answers *bufio.Reader
}

func startServer(t *testing.T, files identity.Files) *serverProcess {
	t.Helper()
	command := child(t, "server", files)
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	answers := bufio.NewReader(stdout)
	address, err := answers.ReadString('\n')
	if err != nil {
		t.Fatalf("the server printed no address: %v", err)
	}
	return &serverProcess{address: strings.TrimSpace(address), pid: command.Process.Pid, ask: stdin, answers: answers}
}

// heap asks the server for its heap, in bytes. One goroutine calls it.
func (s *serverProcess) heap(t *testing.T) (bytes int) {
	t.Helper()
	if _, err := fmt.Fprintln(s.ask); err != nil {
		t.Error(err)
		return 0
	}
	if _, err := fmt.Fscanln(s.answers, &bytes); err != nil {
		t.Errorf("the server says nothing of its heap: %v", err)
	}
	return bytes
}

// memory returns the resident memory of the server, in bytes.
func (s *serverProcess) memory(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.pid), "statm"))
	if err != nil {
		t.Error(err)
		return 0
	}
	fields := strings.Fields(string(text))
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Error(err)
	}
	return pages * os.Getpagesize()
}

// cpu returns the processor time that the server has used.
func (s *serverProcess) cpu(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), ") ") // the name of the program
	fields := strings.Fields(after)
	var ticks int
	for _, field := range fields[11:13] { // utime and stime
		value, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += value
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond
}

// ticksPerSecond is the unit of times in /proc.
const ticksPerSecond = 100
