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
	"strconv"
	"strings"
	"testing"

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
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test
		cancel()
	}()
	return server.Serve(ctx, listener)
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
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the server printed no address: %v", err)
	}
	return &serverProcess{address: strings.TrimSpace(address), pid: command.Process.Pid}
}

// memory returns the resident memory of the server, in bytes.
func (s *serverProcess) memory(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.pid), "statm"))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text))
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
