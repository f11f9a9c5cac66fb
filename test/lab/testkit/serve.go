package testkit

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trivet-dev/trivet/internal/rpcserver"
)

// pipeBytes is the buffer size of an in-memory connection.
const pipeBytes = 1 << 20

// Serve runs a production server, with interceptors, limits and health, over an in-memory
// connection and returns a client connection. register adds the services; unvalidated are methods
// that validate their messages. Both end with the test, which fails if the server does not stop
// cleanly.
func Serve(t testing.TB, register func(grpc.ServiceRegistrar), unvalidated ...string) *grpc.ClientConn {
	t.Helper()
	return ServeWith(t, rpcserver.Deps{Unvalidated: unvalidated}, register)
}

// ServeWith is Serve with other dependencies, such as callers and their rights.
func ServeWith(t testing.TB, deps rpcserver.Deps, register func(grpc.ServiceRegistrar)) *grpc.ClientConn {
	t.Helper()
	cfg := rpcserver.DefaultConfig("127.0.0.1:0")
	cfg.Insecure = true
	deps.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	server, err := rpcserver.New(cfg, deps)
	if err != nil {
		t.Fatalf("make gRPC server: %v", err)
	}
	server.Register(register)
	server.SetServing(true)

	listener := bufconn.Listen(pipeBytes)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	// Cleanups run in reverse order: the connection closes before the server stops, so open streams
	// do not delay the stop.
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve gRPC: %v", err)
		}
	})
	return dial(t, listener)
}

func dial(t testing.TB, listener *bufconn.Listener) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("passthrough:///testkit",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}),
	)
	if err != nil {
		t.Fatalf("make gRPC client: %v", err)
	}
	t.Cleanup(func() {
		if err := connection.Close(); err != nil {
			t.Errorf("close gRPC client: %v", err)
		}
	})
	return connection
}
