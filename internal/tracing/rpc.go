package tracing

import (
	"context"
	"net/http"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/stats"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// traceable returns whether calls of a gRPC method are traced. Heartbeats are too many and tell
// nothing; health checks and reflection are of tools. A caller may send any name: one that is long
// or not UTF-8 is none of Trivet's.
func traceable(fullMethod string) bool {
	service, method, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	return len(fullMethod) <= maxValueLength && utf8.ValidString(fullMethod) &&
		strings.HasPrefix(service, "trivet.") && !strings.Contains(method, "Heartbeat")
}

// Server returns the stats handler of a gRPC server, or nil for a nil *Tracing. trusted returns
// whether the caller of a call may say in which trace the call is, and whether it is sampled.
func (t *Tracing) Server(trusted func(context.Context) bool) stats.Handler {
	if t == nil {
		return nil
	}
	return &rpcs{
		key: serverKey{},
		Handler: otelgrpc.NewServerHandler(append(t.grpcOptions(), otelgrpc.WithPublicEndpointFn(
			func(ctx context.Context, _ *stats.RPCTagInfo) bool { return !trusted(ctx) },
		))...),
	}
}

// Client returns the stats handler of gRPC connections to Trivet's servers, or nil for a nil
// *Tracing. Only calls inside of a span are traced.
func (t *Tracing) Client() stats.Handler {
	if t == nil {
		return nil
	}
	return &rpcs{key: clientKey{}, insideOnly: true, Handler: otelgrpc.NewClientHandler(t.grpcOptions()...)}
}

func (t *Tracing) grpcOptions() []otelgrpc.Option {
	return []otelgrpc.Option{
		otelgrpc.WithTracerProvider(t.provider),
		otelgrpc.WithMeterProvider(metricnoop.NewMeterProvider()), // Prometheus has the metrics of the calls
		otelgrpc.WithPropagators(propagation.TraceContext{}),      // not baggage, which callers choose
	}
}

type (
	serverKey struct{}
	clientKey struct{}
)

// rpcs passes only traced calls to its Handler. Otherwise each message of a stream of heartbeats
// would cost.
type rpcs struct {
	stats.Handler

	// key marks the contexts of traced calls.
	key any
	// insideOnly leaves calls out that belong to no span.
	insideOnly bool
}

// TagRPC marks and begins a traced call.
func (r *rpcs) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	if !traceable(info.FullMethodName) || r.insideOnly && !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return r.Handler.TagRPC(context.WithValue(ctx, r.key, true), info)
}

// HandleRPC records an event of a traced call.
func (r *rpcs) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if ctx.Value(r.key) != nil {
		r.Handler.HandleRPC(ctx, event)
	}
}

// WrapTransport returns the transport of a client of kube-apiserver: it records the requests that
// belong to a span, and tells kube-apiserver their trace. It has the type of a wrapper of
// client-go. With a nil *Tracing it returns its argument.
func (t *Tracing) WrapTransport(inner http.RoundTripper) http.RoundTripper {
	if t == nil {
		return inner
	}
	traced := otelhttp.NewTransport(inner,
		otelhttp.WithTracerProvider(t.provider),
		otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelhttp.WithPropagators(propagation.TraceContext{}),
	)
	return &transport{inner: inner, traced: traced}
}

type transport struct{ inner, traced http.RoundTripper }

// client-go finds the next transport by WrappedRoundTripper, to close its idle connections and to
// read its TLS config.
var _ utilnet.RoundTripperWrapper = (*transport)(nil)

func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.inner }

// RoundTrip sends a request, with a span if it belongs to one.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if !trace.SpanContextFromContext(request.Context()).IsValid() {
		return t.inner.RoundTrip(request)
	}
	return t.traced.RoundTrip(request)
}
