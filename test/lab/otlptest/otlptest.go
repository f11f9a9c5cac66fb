// Package otlptest is a collector of OpenTelemetry traces for tests, on loopback.
package otlptest

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/trivet-dev/trivet/internal/tracing"
)

// Span is one received span.
type Span struct {
	*tracev1.Span

	// Process has the attributes of the process, Values those of the span, as text.
	Process, Values map[string]string
}

// ID returns the identifier of the span as text.
func (s Span) ID() string { return hex.EncodeToString(s.SpanId) }

// Parent returns the identifier of the parent; empty for a root.
func (s Span) Parent() string { return hex.EncodeToString(s.ParentSpanId) }

// Trace returns the identifier of the trace.
func (s Span) Trace() string { return hex.EncodeToString(s.TraceId) }

// Collector receives spans until the test ends.
type Collector struct {
	collectorv1.UnimplementedTraceServiceServer

	// Endpoint is its address, host:port.
	Endpoint string

	release chan struct{} // nil unless requests hang
	refusal error         // nil unless requests are refused
	mu      sync.Mutex    // guards below
	spans   []Span
	calls   int
}

// New returns a collector that accepts every span.
func New(t testing.TB) *Collector { return serve(t, &Collector{}) }

// NewHanging returns a collector that accepts connections and answers no request before the test
// ends.
func NewHanging(t testing.TB) *Collector { return serve(t, &Collector{release: make(chan struct{})}) }

// NewRefusing returns a collector that refuses each request with an error.
func NewRefusing(t testing.TB, refusal error) *Collector {
	return serve(t, &Collector{refusal: refusal})
}

func serve(t testing.TB, c *Collector) *Collector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.Endpoint = listener.Addr().String()
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		if c.release != nil {
			close(c.release)
		}
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("collector: %v", err)
		}
	})
	return c
}

// Export implements the RPC.
func (c *Collector) Export(ctx context.Context, request *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.count()
	if c.release != nil {
		select {
		case <-c.release:
		case <-ctx.Done():
		}
		return nil, ctx.Err()
	}
	if c.refusal != nil {
		return nil, c.refusal
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range request.ResourceSpans {
		process := values(of.Resource.GetAttributes())
		for _, scope := range of.ScopeSpans {
			for _, span := range scope.Spans {
				c.spans = append(c.spans, Span{Span: span, Process: process, Values: values(span.Attributes)})
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (c *Collector) count() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
}

// Calls returns how many requests have arrived.
func (c *Collector) Calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// Spans returns the spans received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Run returns running tracing of all traces to the collector. It ends with the test, or when stop
// is called, which returns after the last spans were sent.
func (c *Collector) Run(t testing.TB, service string) (running *tracing.Tracing, stop func()) {
	t.Helper()
	cfg := tracing.DefaultConfig()
	cfg.Endpoint = c.Endpoint
	running, err := tracing.New(cfg, tracing.Process{Service: service, Version: "test", Replica: service + "-0", Cluster: "test"},
		slog.New(slog.NewTextHandler(t.Output(), nil)), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- running.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("tracing: %v", err)
		}
	})
	t.Cleanup(stop)
	return running, stop
}

func values(attributes []*commonv1.KeyValue) map[string]string {
	all := make(map[string]string, len(attributes))
	for _, attribute := range attributes {
		switch value := attribute.Value.GetValue().(type) {
		case *commonv1.AnyValue_StringValue:
			all[attribute.Key] = value.StringValue
		case *commonv1.AnyValue_IntValue:
			all[attribute.Key] = strconv.FormatInt(value.IntValue, 10)
		case *commonv1.AnyValue_BoolValue:
			all[attribute.Key] = strconv.FormatBool(value.BoolValue)
		default:
			all[attribute.Key] = attribute.Value.String()
		}
	}
	return all
}
