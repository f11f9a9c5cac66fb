package tracing_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trivet-dev/trivet/test/lab/otlptest"
)

// anyMethod answers every method.
func anyMethod(_ any, stream grpc.ServerStream) error {
	var message healthv1.HealthCheckRequest
	if err := stream.RecvMsg(&message); err != nil {
		return err
	}
	return stream.SendMsg(&healthv1.HealthCheckResponse{})
}

// Heartbeats, health checks and reflection have no spans on servers and clients. A remote parent
// counts only if the caller is trusted.
func TestRPC_WhichCallsAreTraced(t *testing.T) {
	collector := otlptest.New(t)
	running, stop := collector.Run(t, "leasesvc")
	var trusted atomic.Bool
	server := grpc.NewServer(grpc.UnknownServiceHandler(anyMethod),
		grpc.StatsHandler(running.Server(func(context.Context) bool { return trusted.Load() })))
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithStatsHandler(running.Client()))
	if err != nil {
		t.Fatal(err)
	}
	call := func(ctx context.Context, method string) {
		t.Helper()
		if err := conn.Invoke(ctx, method, &healthv1.HealthCheckRequest{}, &healthv1.HealthCheckResponse{}); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
	}
	ctx, parent := running.Tracer("leasesvc").Start(t.Context(), "parent")
	for _, method := range []string{
		"/trivet.lease.v1.HeartbeatService/Heartbeat", "/trivet.lease.v1.HeartbeatService/StreamHeartbeats",
		"/trivet.lease.v1.HeartbeatService/ForwardHeartbeats", "/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
	} {
		call(ctx, method)
	}
	const method = "/trivet.lease.v1.LeaseService/GetLease"
	// A caller chooses the name of a method that does not exist. Text that is not UTF-8 would cost
	// the batch; a long one is kept in the queue.
	call(ctx, "/trivet.lease.v1.LeaseService/\xff")
	call(ctx, "/trivet.lease.v1.LeaseService/"+strings.Repeat("x", 4096))
	call(t.Context(), method) // outside of a span: the server's alone
	call(ctx, method)         // the server links the client's span
	trusted.Store(true)
	call(ctx, method) // the server's span is under the client's
	const stranger = "4bf92f3577b34da6a3ce929d0e0e4736"
	trusted.Store(false)
	call(metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+stranger+"-00f067aa0ba902b7-01"), method)
	parent.End(nil)
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	server.GracefulStop() // the span of a call may end after the call
	<-served
	stop()

	var names []string
	under, linked := 0, 0
	for _, span := range collector.Spans() {
		names = append(names, span.Name)
		if span.Trace() == stranger {
			t.Errorf("an untrusted caller has chosen the trace of %v", span)
		}
		if span.Kind.String() != "SPAN_KIND_SERVER" {
			continue
		}
		if span.Parent() != "" {
			under++
		}
		linked += len(span.Links)
	}
	slices.Sort(names)
	const name = "trivet.lease.v1.LeaseService/GetLease"
	if want := []string{"parent", name, name, name, name, name, name}; !slices.Equal(names, want) {
		t.Errorf("spans are %q, want %q", names, want)
	}
	if under != 1 || linked != 2 {
		t.Errorf("%d spans of the server are under the client's and %d link it, want 1 and 2", under, linked)
	}
}
